"""No step of the store opens a second session within its own: its process has ten connections for all requests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import muster.store

ROOM = Path(muster.store.__file__).parent
OPENS = "reading", "writing"


def bodies(function: ast.AST) -> Iterator[ast.stmt]:
    """What a function does within a session that it opens."""
    for each in ast.walk(function):
        if isinstance(each, ast.With) and any(
            isinstance(item.context_expr, ast.Call) and name_of("", item.context_expr)[1] in OPENS
            for item in each.items
        ):
            yield from each.body


def name_of(module: str, call: ast.Call) -> tuple[str, str]:
    """(module, function) that is called, as it is written: ``store.audit.lags()``, ``audit.lags()`` or ``lags()``."""
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        return getattr(owner, "attr", getattr(owner, "id", "")), call.func.attr
    return module, getattr(call.func, "id", "")


def called(module: str, node: ast.AST) -> set[tuple[str, str]]:
    return {name_of(module, each) for each in ast.walk(node) if isinstance(each, ast.Call)}


def test_a_session_is_handed_on_and_not_opened_again() -> None:
    functions = {
        (path.stem, each.name): each
        for path in ROOM.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.FunctionDef)
    }
    opening = {key for key, function in functions.items() if any(bodies(function))}
    assert ("audit", "lags") in opening
    while more := {key for key, each in functions.items() if called(key[0], each) & opening} - opening:
        opening |= more
    nested = {
        (key, inner)
        for key, function in functions.items()
        for body in bodies(function)
        for inner in called(key[0], body) & opening
    }
    assert nested == set()
