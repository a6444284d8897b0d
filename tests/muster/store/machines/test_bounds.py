"""Whatever a machine reports over its life, its rows and the other nodes' are bounded, and its history says so once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from muster import store
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, PartRow, PlacementRow
from muster.store.machines import contested, parts
from muster_criteria.measured import BadResult
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

PLACED, REMARKED = 12, 4
SLOTS = st.sampled_from([f"gpu{number}" for number in range(4)])
REPORTS = st.lists(st.dictionaries(SLOTS, st.integers(1, 60).map("S{}".format), max_size=4), min_size=1, max_size=12)


def counts() -> dict[str, int]:
    with reading() as session:
        tables = {"parts": PartRow, "placements": PlacementRow, "events": EventRow}
        return {name: session.scalar(select(func.count()).select_from(row)) or 0 for name, row in tables.items()}


def report(node: str, serials: dict[str, str]) -> list[str]:
    with writing() as session:
        access.node_row(session, node, lock=True)
        return parts.place(session, node, serials)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PLACED_MAX", PLACED)
    monkeypatch.setattr(parts, "REMARKS_MAX", REMARKED)


@pytest.mark.usefixtures("_small")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=REPORTS)
def test_what_a_machine_reports_over_its_life_is_bounded(reports: list[dict[str, str]]) -> None:
    number = len(store.nodes.find())
    victim, hostile = f"n{number}", f"n{number + 1}"
    store.nodes.add(fleet.new_node(victim))
    store.nodes.add(fleet.new_node(hostile))
    report(victim, {f"gpu{each}": f"V{number}-{each}" for each in range(4)})
    before, others = counts(), len(store.nodes.events(victim))
    for each in reports:
        chassis = {"system": f"C{number}"}  # by which it is the same machine, whatever GPUs it claims
        mine = {slot: f"{number}-{serial}" for slot, serial in each.items()}
        report(hostile, chassis | mine)
        report(hostile, chassis | {slot: f"V{number}-{int(serial[1:]) % 4}" for slot, serial in each.items()})
    after = counts()
    assert after["placements"] - before["placements"] <= PLACED
    assert after["parts"] - before["parts"] <= PLACED
    assert after["events"] - before["events"] <= 2 * REMARKED + 2
    assert len(store.nodes.events(victim)) - others <= REMARKED


@pytest.mark.usefixtures("_small")
def test_a_machine_that_reports_parts_without_end_is_told_once_and_another_machine_begins_again() -> None:
    store.nodes.add(fleet.new_node("n1"))
    for number in range(PLACED + 5):
        report("n1", {"gpu0": f"S{number}"})
    assert [event.reason for event in store.nodes.events("n1")].count(parts.MANY_PARTS) == 1
    assert [place.serial for place in store.parts.of_node("n1") if place.until is None] == [f"S{PLACED - 1}"]
    last, _ = fleet.result(node="n1", serials={"gpu0": f"S{PLACED + 4}"})
    with reading() as session:
        # What is found there is charged to no part.
        assert contested.unsure(parts.current_serials(session, "n1"), last) == {"gpu0"}
    store.adoption.replace("n1", "Ada", "another board", host_key=fleet.host_key("n1 again"))
    report("n1", {"gpu0": "NEW"})
    assert [place.serial for place in store.parts.of_node("n1") if place.until is None] == ["NEW"]
    assert [place.serial for place in store.parts.of_node("n1", 2)] == [f"S{PLACED - 1}", "NEW"]


def test_many_swaps_of_one_report_are_told_in_few_sentences() -> None:
    store.nodes.add(fleet.new_node("n1"))
    report("n1", {f"dimm{number}": f"A{number}" for number in range(200)})
    told = report("n1", {f"dimm{number}": f"B{number}" for number in range(200)})
    assert len(told) == parts.TOLD_MAX + 1
    assert str(200 - parts.TOLD_MAX) in told[-1]


def test_a_result_with_more_parts_than_a_machine_has_is_refused() -> None:
    with pytest.raises(BadResult):
        fleet.result(serials={f"disk:{number}": f"S{number}" for number in range(600)})
