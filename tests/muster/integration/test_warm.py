"""What is done once before task processes are forked: it has to spare them work, and to touch nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.sql import compiler

from muster import store
from muster.integration import warm
from muster.model.nodes import NewNode
from muster.store.database.models import Base
from muster_criteria.sku_files import skus
from muster_criteria.stage import suite

READY = """
import sys
from matplotlib import font_manager
from muster.integration import warm
print(font_manager._get_font.cache_info().currsize)
"""


def test_it_touches_no_records_and_leaves_no_thread_behind(muster_home: Path) -> None:
    before = set(threading.enumerate())
    warm.warm()
    assert not muster_home.exists()
    assert set(threading.enumerate()) <= before


def test_what_each_task_would_set_up_for_itself_is_ready() -> None:
    suite._frames.cache_clear()
    skus._parsed_policy.cache_clear()
    warm.warm()
    assert suite._frames.cache_info().currsize, "Great Expectations sets itself up at the first verdict"
    assert skus._parsed_policy.cache_info().currsize, "the kernel policy is parsed with the first SKU"
    assert all(mapper.configured for mapper in Base.registry.mappers), "tables are mapped at the first query"


def test_importing_it_draws_a_chart() -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 0, "fonts are read when the first chart is drawn"


def _rows() -> dict[str, int]:
    with store.engine.reading() as session:
        return {
            table.name: session.scalar(select(func.count()).select_from(table)) or 0
            for table in Base.metadata.sorted_tables
        }


def test_a_rehearsed_run_leaves_the_records_as_they_were(fleet_db: str) -> None:
    store.nodes.add(NewNode("a", "host-a", f"ssh-ed25519 {'B' * 68}", warm.SKU))
    before, events = _rows(), store.nodes.events("a")
    warm.rehearse()
    assert (_rows(), store.nodes.events("a")) == (before, events)
    assert store.leases.live() == []
    assert store.outbox.pending() == []


def test_a_rehearsal_that_breaks_off_leaves_the_records_as_they_were(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _rows()
    monkeypatch.setattr(warm, "_conclude", lambda: 1 / 0)
    warm.rehearse()
    assert _rows() == before


def test_what_a_run_reads_and_writes_is_compiled_by_its_rehearsal(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    before = compiler.SQLCompiler.__init__

    def counted(self: compiler.SQLCompiler, *args: object, **options: object) -> None:
        before(self, *args, **options)  # type: ignore[arg-type]
        compiled.append(self.string)

    warm.rehearse()
    monkeypatch.setattr(compiler.SQLCompiler, "__init__", counted)
    warm.rehearse()
    assert {sql for sql in compiled if "SAVEPOINT" not in sql} == set()


def test_without_records_there_is_no_rehearsal(muster_home: Path) -> None:
    warm.rehearse()
