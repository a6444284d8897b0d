"""Only one module of the simulator knows real time; import-linter holds who imports whom (pyproject.toml)."""

from __future__ import annotations

import ast
from pathlib import Path

import muster_simulator


def _imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    return plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_only_the_simulated_clock_looks_at_real_time() -> None:
    files = Path(muster_simulator.__file__).parent.glob("*.py")
    assert [path.name for path in files if "time" in _imports(path)] == ["clock.py"]
