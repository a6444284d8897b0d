"""SQL of the fleet's records: compiled once a process, where a conftest imports the fixture, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event

from muster.store.database import engine


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """All engines of SQLite share a dialect and its compiled statements, as all transactions of a process do.

    Each test has an engine of its own, which would otherwise compile every statement again.
    """
    make, first = engine._make, engine._make("sqlite://")
    first.connect().close()
    first._compiled_cache.capacity = 5000

    def sharing(url: str) -> Engine:
        made = make(url)
        if made.dialect.name == engine.SQLITE:
            made.dialect, made._compiled_cache = first.dialect, first._compiled_cache
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_make", sharing)
        yield


@contextlib.contextmanager
def executed() -> Iterator[list[str]]:
    """The statements that are executed within the block, in order."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)
