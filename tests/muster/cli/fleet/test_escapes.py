"""``muster digest --rows Escapes``: a node that failed after it had passed."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable

import pytest

from muster import store
from muster.admission.entry import move
from muster.model.states import State
from muster.store.database import access
from muster_criteria.model import FaultClass
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]
ROWS = ("digest", "--rows", "Escapes", "--json")


def test_a_fault_that_a_passed_stage_can_see_is_listed_and_counted(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    name = "gpu-0001"
    move(name, State.PRODUCTION, "Ada", "needed now")
    assert json.loads(muster(*ROWS)[1]) == []
    fleet.fail(name, "later", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
    assert store.nodes.get(name).state is State.QUARANTINE
    found = json.loads(muster(*ROWS)[1])
    assert {each["group of faults"] for each in found} == {"memory"}
    assert "integrity" in {each["stage"] for each in found}
    assert json.loads(muster(*ROWS, "--simulated")[1]) == []
    (rates,) = [each for each in json.loads(muster("digest", "--json")[1]) if each["title"] == "Escapes"]
    assert {stage for _, stage, *_ in rates["rows"]} == {each["stage"] for each in found}


def test_a_pass_before_the_days_that_are_listed_counts_for_a_failure_in_them(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node())
    name = "gpu-0001"
    with monkeypatch.context() as past:
        past.setattr(access, "now", lambda: datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10))
        fleet.qualify()
        move(name, State.PRODUCTION, "Ada", "needed now")
    fleet.fail(name, "later", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
    found = json.loads(muster(*ROWS, "--days", "7")[1])
    assert "integrity" in {each["stage"] for each in found}
