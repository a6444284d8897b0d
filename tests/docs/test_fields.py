"""What a field means stands in the docstring of its class, not in a string below the field."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("dags", "plugins", "reports", "tests", "validators")


def described_below(source: str) -> list[str]:
    """Class and name of each annotated field with a string below it."""
    return [
        f"{of.name}.{ast.unparse(field.target)}"
        for of in ast.walk(ast.parse(source))
        if isinstance(of, ast.ClassDef)
        for field, below in itertools.pairwise(of.body)
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    ]


def test_a_string_below_a_field_is_seen() -> None:
    assert described_below('class A:\n    """``b``: ok."""\n    b: int\n    c: str = ""\n    """Not."""\n') == ["A.c"]


@pytest.mark.parametrize("room", ROOMS)
def test_fields_are_described_in_one_place(room: str) -> None:
    found = {str(path): below for path in (ROOT / room).rglob("*.py") if (below := described_below(path.read_text()))}
    assert found == {}
