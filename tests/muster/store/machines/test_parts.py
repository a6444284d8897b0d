"""What it costs to note that a machine's parts are still in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import select

from muster import store
from muster.store.database.engine import reading
from muster.store.database.models import RunRow
from muster.store.machines import contested
from muster_criteria.device_events.policy import DeviceEvent
from tests.muster import fleet
from tests.support.plugins.statements import executed


def statements(node: str, parts: int) -> int:
    """How many statements a second report of these parts takes."""
    store.nodes.add(fleet.new_node(node))
    lease = fleet.begin(node)
    serials = {"system": f"{node}-s", **{f"gpu{place}": f"{node}-g{place}" for place in range(parts)}}
    fleet.do_stage(lease, "intake", serials=serials)
    with executed() as asked:
        fleet.do_stage(lease, "burn_in", serials=serials)
    assert {each.slot for each in store.parts.of_node(node)} == set(serials)
    return len(asked)


@pytest.mark.usefixtures("sqlite_db")
def test_a_report_costs_the_same_whatever_the_number_of_parts() -> None:
    assert statements("small", 1) == statements("large", 30)


@pytest.mark.usefixtures("sqlite_db")
def test_a_serial_that_two_slots_report_stays_the_part_of_one() -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    fleet.do_stage(lease, "intake", serials={"gpu1": "X"})
    fleet.do_stage(lease, "burn_in", serials={"gpu0": "X", "gpu1": "X"})
    assert [(each.slot, each.until) for each in store.parts.of_node("n1")] == [("gpu1", None)], "it never moved"


@pytest.mark.usefixtures("sqlite_db")
def test_a_serial_that_two_slots_report_from_the_first_on_is_no_part() -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.do_stage(fleet.begin("n1"), "intake", serials={"gpu0": "X", "gpu1": "X", "gpu2": "Y"})
    assert [each.slot for each in store.parts.of_node("n1")] == ["gpu2"]


@pytest.mark.usefixtures("sqlite_db")
def test_gpus_that_share_their_boards_serial_stay_where_they_are() -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    serials = {f"gpu{place}": f"{board}/GPU-{place}" for place, board in enumerate(("A1", "A1", "A11", "A11"))}
    for stage in ("intake", "burn_in"):
        fleet.do_stage(lease, stage, serials=serials)
    assert {each.slot: each.serial for each in store.parts.of_node("n1")} == serials
    assert all(each.until is None for each in store.parts.of_node("n1"))
    assert [each.slot for each in store.parts.history("A1")] == ["gpu0", "gpu1"]
    assert [each.slot for each in store.parts.history("A11/GPU-2")] == ["gpu2"]
    assert len(store.parts.runs_of("A1")) == 1


@pytest.mark.usefixtures("sqlite_db")
def test_a_gpu_whose_sibling_is_lost_stays_the_part_that_it_is() -> None:
    """It reports its board's serial alone then, since no other GPU of the node reports it."""
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    both = {"gpu0": "165001/GPU-0", "gpu1": "165001/GPU-1"}
    alone, known = {"identity": {"serials": {"gpu1": "165001"}}}, both["gpu1"]
    fleet.do_stage(lease, "intake", serials=both)
    fleet.do_stage(lease, "burn_in", serials=alone["identity"]["serials"])
    assert {each.slot: each.serial for each in store.parts.of_node("n1")} == both
    event = DeviceEvent("xid", "gpu1", "0000:1b:00", "", 79)
    identity = store.parts.identity_as_known("n1", alone["identity"])
    assert store.device_events.part_of(event, identity) == known
    assert contested.unsure(both, SimpleNamespace(**alone)) == frozenset()  # type: ignore[arg-type]
    with reading() as session:
        assert session.scalars(select(RunRow.identity)).one()["serials"]["gpu1"] == known
    fleet.do_stage(lease, "performance", serials=both)
    assert [(each.slot, each.serial, each.until) for each in store.parts.of_node("n1")] == [
        (slot, serial, None) for slot, serial in both.items()
    ]
    fleet.do_stage(lease, "thermal", serials={"gpu1": "165002"})
    assert store.parts.of_node("n1")[-1].serial == "165002", "another board is another part"
