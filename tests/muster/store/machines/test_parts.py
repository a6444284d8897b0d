"""What it costs to note that a machine's parts are still in it."""

from __future__ import annotations

import pytest

from muster import store
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
