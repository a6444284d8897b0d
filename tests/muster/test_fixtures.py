"""What many tests begin with is made once in a process, and what a stand-in started ends with its test."""

from __future__ import annotations

import threading

import pytest

from muster import store
from tests.muster import copied, fleet
from tests.support.servers import bmc as bmcs


@pytest.mark.both_dialects
def test_records_are_made_once_and_then_copied(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make() -> None:
        made.append(fleet.new_node("gpu-0001"))
        store.nodes.add(made[0])

    copied.records(make)
    store.nodes.add(fleet.new_node("gpu-0002"))
    with monkeypatch.context() as patch:
        patch.setattr(store.nodes, "find", list)  # as of another test, whose records are empty
        copied.records(make)
    assert [node.name for node in store.nodes.find()] == ["gpu-0001"]
    assert len(made) == 1


@pytest.mark.both_dialects
def test_the_engine_of_each_test_knows_what_others_compiled(fleet_db: str) -> None:
    store.nodes.find()
    before = store.engine.engine()
    store.engine.dispose()
    assert store.engine.engine() is not before
    assert store.engine.engine()._compiled_cache is before._compiled_cache
    assert store.engine.engine().dialect is before.dialect


def test_the_server_of_a_test_that_fails_ends() -> None:
    before = threading.enumerate()
    with pytest.raises(ZeroDivisionError), bmcs.answering(lambda path: (200, {}, b"")):
        raise ZeroDivisionError
    started = [each for each in threading.enumerate() if each not in before]
    for each in started:
        each.join(20)
    assert not [each for each in started if each.is_alive()]
