"""A run that is stored and undone before task processes are forked: it compiles their statements and leaves nothing."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, event, select, text
from sqlalchemy.engine.interfaces import CacheStats

from muster import store
from muster.errors import DatabaseNotReady
from muster.integration import policy
from muster.model.runs import RunKey
from muster.store.database import access, engine
from tests.muster import fleet
from tests.support import lives

NAME = "muster.integration.rehearsal"


@pytest.fixture
def rehearsal(fleet_db: str) -> ModuleType:
    """Imported by the test that asks for it: the import rehearses."""
    return importlib.import_module(NAME)


@contextlib.contextmanager
def compiled() -> Iterator[list[str]]:
    """The statements that are compiled within the block."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        if context.cache_hit is CacheStats.CACHE_MISS:
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def rows() -> dict[str, list[Any]]:
    """All that the database holds."""
    made, tables = store.engine.engine(), MetaData()
    tables.reflect(made)
    with made.connect() as connection:
        return {each.name: sorted(map(repr, connection.execute(select(each)))) for each in tables.sorted_tables}


@pytest.mark.both_dialects
def test_it_changes_no_row_and_leaves_no_connection_to_a_fork(rehearsal: ModuleType) -> None:
    store.nodes.add(fleet.new_node())
    lives.qualified("gpu-0001")
    before = rows()
    store.engine.engine().dispose()
    opened: list[int] = []
    event.listen(store.engine.engine(), "connect", lambda *_: opened.append(os.getpid()))
    event.listen(store.engine.engine(), "close", lambda *_: opened.remove(os.getpid()))
    rehearsal.rehearse()
    assert opened == []
    assert rows() == before


@pytest.mark.both_dialects
def test_a_run_after_it_compiles_nothing(rehearsal: ModuleType) -> None:
    store.nodes.add(fleet.new_node(serials={"system": "S1"}))
    store.engine.engine()._compiled_cache.clear()
    rehearsal.rehearse()
    with compiled() as statements:
        lives.qualified("gpu-0001")
        store.reporting.run(RunKey("node_qualification", "gpu-0001__earlier"))
    assert statements == []


@pytest.mark.needs_postgresql
def test_of_workers_that_start_at_once_each_waits_for_its_turn(
    postgresql_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse = importlib.import_module(NAME).rehearse
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 1)
    with ThreadPoolExecutor(1) as another:  # a thread has transactions of its own
        with engine.writing() as session:
            access.take_turns(session, "enrol")
            waiting = another.submit(rehearse)
            while not (session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")) or waiting.done()):
                time.sleep(0.01)
        assert waiting.exception() is None


@pytest.mark.needs_postgresql
def test_a_lock_that_is_never_given_back_does_not_keep_airflow_from_starting(
    postgresql_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse = importlib.import_module(NAME).rehearse
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 100)
    with ThreadPoolExecutor(1) as another, engine.writing() as session:
        access.take_turns(session, "enrol")
        assert isinstance(another.submit(rehearse).exception(20.0), DatabaseNotReady)


def test_without_records_it_says_so_and_airflow_starts(
    muster_home: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The import alone rehearses, so the module must not be there from an earlier test."""
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    policy.preload([NAME])
    (name, error), *others = [record.args for record in caplog.records if record.name == policy.log.name]
    assert (name, type(error), others) == (NAME, DatabaseNotReady, [])
