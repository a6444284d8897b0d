"""``muster escapes``: a node that failed after it had passed."""

from __future__ import annotations

import json
from collections.abc import Callable

from muster import store
from muster.admission.entry import move
from muster.model.states import State
from muster_criteria.model import FaultClass
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]


def test_a_fault_that_a_passed_stage_can_see_is_listed_and_counted(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    name = "gpu-0001"
    move(name, State.PRODUCTION, "Ada", "needed now")
    assert json.loads(muster("escapes", "--json")[1]) == []
    fleet.fail(name, "later", fleet.finding(fault_class=FaultClass.HBM), stage="integrity")
    assert store.nodes.get(name).state is State.QUARANTINE
    found = json.loads(muster("escapes", "--json")[1])
    assert {each["failure"]["group"] for each in found} == {"memory"}
    assert "integrity" in {each["passed"]["stage"] for each in found}
    assert json.loads(muster("escapes", "--simulated", "--json")[1]) == []
    (rates,) = [each for each in json.loads(muster("digest", "--json")[1]) if each["title"] == "Escapes"]
    assert {stage for _, stage, *_ in rates["rows"]} == {each["passed"]["stage"] for each in found}
