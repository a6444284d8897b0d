"""SQL in a test process: compiled once, where a conftest imports the fixture, never synced to the disk, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, Pool, event

from muster.store.database import engine


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """All engines of a server share a dialect and its compiled statements, as all transactions of a process do.

    Each test has an engine of its own, which would otherwise compile every statement again.
    """
    make, firsts = engine._make, dict[tuple[object, ...], Engine]()

    def sharing(url: str) -> Engine:
        made = make(url)
        server = (made.dialect.name, made.url.host, made.url.port, made.url.query.get("host"))
        first = firsts.get(server)
        if first and first.dialect.server_version_info:  # its first connection set what the dialect knows of the server
            made.dialect, made._compiled_cache = first.dialect, first._compiled_cache
        else:
            firsts[server] = made
            made._compiled_cache.capacity = 5000
        if made.dialect.name == engine.SQLITE:
            event.listen(made, "connect", _unsynced)  # after the records' own listener, which asks for NORMAL
        return made

    event.listen(Pool, "connect", _unsynced)  # also of Airflow's metadata and of back-ups, to the end of the process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_make", sharing)
        yield


def _unsynced(connection: Any, _record: object) -> None:
    """SQLite does not wait for the disk at each commit. No machine loses power in a test; a process that dies
    loses nothing by it."""
    if "sqlite" in repr(type(connection)):
        connection.execute("PRAGMA synchronous=OFF")


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
