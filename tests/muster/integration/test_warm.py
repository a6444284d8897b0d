"""What is done once before task processes are forked: it has to spare them work, and to touch nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.errors import UnknownRun
from muster.integration import warm
from muster.store.database import engine
from tests.muster import fleet


def test_a_rehearsal_touches_no_records_and_leaves_no_thread_behind(muster_home: Path) -> None:
    before = set(threading.enumerate())
    warm.rehearse()
    assert not muster_home.exists()
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("sqlite_db")
def test_what_was_rehearsed_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    warm.rehearse()

    def compiled_again(*_: Any, **__: Any) -> None:
        pytest.fail("a statement was compiled that the rehearsal should have compiled")

    monkeypatch.setattr(engine.engine().dialect, "statement_compiler", compiled_again)
    with pytest.raises(UnknownRun):
        store.runs.get("node_qualification", "gpu-0001__new")
    assert store.leases.get("gpu-0001") is None


@pytest.mark.usefixtures("fleet_db")
def test_a_rehearsal_beside_records_in_use_leaves_them_as_they_are() -> None:
    store.nodes.add(fleet.new_node())
    warm.rehearse()
    assert [node.name for node in store.nodes.find()] == ["gpu-0001"]
