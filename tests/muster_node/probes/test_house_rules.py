"""What holds for every module of the node side's hardware and probes, read from their source."""

import ast
import sys
from pathlib import Path

import pytest

import muster_node

ROOT = Path(muster_node.__file__).parent
SOURCES = [
    path
    for room in ("probes", "workloads", "tools", "cluster", "hardware")
    for path in sorted((ROOT / room).glob("*.py"))
]
PROBES = [path for path in SOURCES if path.parent.name != "hardware"]
OLDEST_PYTHON = (3, 9)


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, node.module or ""


@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.stem)
def test_probes_take_time_from_the_hardware_only(path):
    taken = {name.split(".")[0] for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))}
    assert "time" not in taken


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_only_the_standard_library_at_import(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST_PYTHON)
    inner = {id(child) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for child in ast.walk(node)}
    at_import = {name.split(".")[0] for node, name in imports(tree) if id(node) not in inner}
    assert at_import <= set(sys.stdlib_module_names) | {"muster_node"}
