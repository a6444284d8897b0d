"""What the records are asked for, to say who acts next."""

from __future__ import annotations

import pytest

from muster import store
from muster.model.attention import Cause
from muster.model.repairs import Fault
from muster.model.runs import RunKey
from muster.model.states import State
from tests.muster import fleet
from tests.support.plugins.statements import executed

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE, STAGES = "gpu-0001", ("intake",)


def test_incidents_of_a_broken_node_that_say_nothing_cost_no_statement() -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")

    def statements(gpus: range) -> int:
        for gpu in gpus:
            store.repairs.open_incident(NODE, Fault("gpu_memory", f"gpu{gpu}"), "XID 95", STAGES, "standard")
        with executed() as all_:
            assert [each.cause for each in store.attention.collect()] == [Cause.QUARANTINE]
        return len(all_)

    assert statements(range(1)) == statements(range(1, 8))


def test_a_repair_that_has_just_begun_is_shown_before_it_asks_or_waits() -> None:
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.leases.acquire(NODE, RunKey("repair", "of gpu-0001"))
    store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", STAGES, "standard")
    assert [each.cause for each in store.attention.collect()] == [Cause.IN_REPAIR]
