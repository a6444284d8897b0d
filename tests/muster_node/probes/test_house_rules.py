"""What holds for every probe and workload, read from its source (tests/muster_node/agent/test_zipapp.py has more)."""

from __future__ import annotations

import ast
from pathlib import Path

import muster_node

ROOT = Path(muster_node.__file__).parent
ROOMS = ("probes", "workloads", "tools", "cluster")
CLOCKS = {"time", "datetime.datetime"}


def imported(path: Path) -> set[str]:
    """Modules, and names from modules, that the file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return found


def test_probes_take_time_from_the_hardware_only() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert {path.parent.name for path in files} >= set(ROOMS)
    assert [str(path) for path in files if CLOCKS & imported(path)] == []
