"""What is done once before task processes are forked: it has to spare them work, and to touch nothing."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib import font_manager
from sqlalchemy import TextClause, event
from sqlalchemy.engine.interfaces import CacheStats

from muster import store
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.store.database.models import Base
from muster_criteria.sku_files import skus
from muster_criteria.stage import suite


@pytest.fixture
def warm() -> ModuleType:
    """Imported by the test that asks for it: the import judges and reports, in each process that collects tests."""
    return importlib.import_module("muster.integration.warm")


def test_it_touches_no_records_and_leaves_no_thread_behind(warm: ModuleType, muster_home: Path) -> None:
    before = set(threading.enumerate())
    warm.warm()
    assert not muster_home.exists()
    assert set(threading.enumerate()) <= before


def test_importing_it_makes_ready_what_each_task_would_set_up_for_itself(warm: ModuleType) -> None:
    fonts = vars(font_manager)["_get_font"]
    suite._frames.cache_clear()
    skus._parsed_policy.cache_clear()
    fonts.cache_clear()
    importlib.reload(warm)
    assert suite._frames.cache_info().currsize, "Great Expectations sets itself up at the first verdict"
    assert skus._parsed_policy.cache_info().currsize, "the kernel policy is parsed with the first SKU"
    assert all(mapper.configured for mapper in Base.registry.mappers), "tables are mapped at the first query"
    assert fonts.cache_info().currsize, "fonts are read when the first chart is drawn"


@pytest.mark.both_dialects
def test_a_process_that_is_forked_later_compiles_no_statement_of_a_test(
    warm: ModuleType, fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store.engine.engine()
    monkeypatch.setattr(made, "_compiled_cache", {})  # not that of all tests, which other tests have filled
    warm.warm()
    assert store.engine.engine() is made
    key, compiled = RunKey("node_qualification", "n1__new"), {}
    store.nodes.add(NewNode("n1", "127.0.0.1", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'1' * 43}", "cpu-generic"))

    def note(*executed: Any) -> None:
        if executed[4].compiled is not None and not isinstance(executed[4].compiled.statement, TextClause):
            compiled.setdefault(executed[2], executed[4].cache_hit)

    event.listen(made, "after_cursor_execute", note)
    store.leases.acquire_all(["n1"], key)
    store.runs.begin(key, "n1", "demo", "new")
    assert store.runs.get(key).level == "demo"
    store.runs.begin_stage(key, "intake")
    assert len(compiled) >= 10
    assert [each for each, hit in compiled.items() if hit is not CacheStats.CACHE_HIT] == []
