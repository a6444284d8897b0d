"""SKU files with an error, in a fleet's own copy of what is shipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Spoil = Callable[[dict[str, Any]], object]


def rewrite(folder: Path, spoil: Spoil, name: str = "h100-sxm-8") -> Path:
    path = folder / f"{name}.yaml"
    raw = yaml.safe_load(path.read_text())
    spoil(raw)
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    return path
