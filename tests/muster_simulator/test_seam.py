"""Import rules: the model does not know the judge, and probes take time only from the seam."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import muster_criteria
import muster_node

NODE = Path(muster_node.__file__).parent
SIMULATED = sorted((NODE.parent / "muster_simulator").glob("*.py"))
PROBES = sorted((NODE / "probes").glob("*.py"))
CRITERIA = sorted(Path(muster_criteria.__file__).parent.rglob("*.py"))


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.name)
def test_the_model_knows_neither_judge_nor_probes(path: Path) -> None:
    foreign = ("muster_criteria", "muster.", "muster_reports", "muster_node.probes")
    assert not [name for name in _imports(path) if name.startswith(foreign)]


@pytest.mark.parametrize("path", CRITERIA, ids=lambda path: path.name)
def test_the_judge_does_not_know_the_model(path: Path) -> None:
    assert not [name for name in _imports(path) if name.startswith("muster_node.hardware")]


@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.name)
def test_probes_take_time_from_the_seam(path: Path) -> None:
    assert not {"time", "datetime.datetime"} & _imports(path)


def test_only_the_simulated_clock_looks_at_real_time() -> None:
    assert [path.name for path in SIMULATED if "time" in _imports(path)] == ["clock.py"]
