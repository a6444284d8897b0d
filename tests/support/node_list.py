"""The worked example of an admission backend, loaded from docs/examples, which is no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "node_list.py"
_SPEC = importlib.util.spec_from_file_location("node_list_example", _FILE)
assert _SPEC
assert _SPEC.loader
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)

NodeList = _MODULE.NodeList
NodeListSettings = _MODULE.NodeListSettings
