"""docs/threats.md: each row names the tests that show its claims, one by one, and each of these is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threats.md").read_text()
CITED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| aim", "|---"))
]  # fmt: skip


def cases_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_each_row_names_its_tests(row: str) -> None:
    aim, prevented, shown = (cell.strip() for cell in row.strip("|").split(" | "))
    assert aim
    assert prevented
    assert CITED.sub("", shown).strip(", ") == "", "the last cell holds tests alone"
    assert CITED.search(shown)
    assert not CITED.search(prevented)


def test_each_test_that_is_cited_is_there() -> None:
    assert set(re.findall(r"tests/[\w/.:*-]+", PAGE)) == {f"{path}::{name}" for path, name in CITED.findall(PAGE)}
    for path, name in sorted({*CITED.findall(PAGE)}):
        assert name in cases_in(ROOT / path), f"{path} has no {name}"
