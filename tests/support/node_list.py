"""The worked example of an admission backend, loaded from docs/examples as if it lay with the shipped ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_FILE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "node_list.py"
_SPEC = importlib.util.spec_from_file_location("muster.admission.backends.node_list", _FILE)
assert _SPEC
assert _SPEC.loader
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)

NodeList = _MODULE.NodeList
NodeListSettings = _MODULE.NodeListSettings


def chosen(path: Path) -> dict[str, str]:
    """What MUSTER_SCHEDULERS says of a cluster whose nodes are listed in that file."""
    return {"kind": _FILE.stem, "path": str(path)}
