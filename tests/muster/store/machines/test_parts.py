"""Which parts a machine has by what it reports, and what it costs to note that they are still in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import select

from muster import store
from muster.rules.identity import real_serials
from muster.store.database.engine import reading
from muster.store.database.models import RunRow
from muster.store.machines import contested, parts
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


@pytest.mark.usefixtures("sqlite_db")
@pytest.mark.parametrize(("board", "shared"), [("OM2", True), ("OM1", False), ("Not Provided", False)])
def test_a_system_serial_of_machines_with_boards_of_their_own_is_their_chassis(board: str, shared: bool) -> None:
    """Sleds report it as their product's serial: it tells neither from the other, and no person can settle it."""
    for node, its in (("sled-a", "OM1"), ("sled-b", board)):
        store.nodes.add(fleet.new_node(node))
        fleet.do_stage(fleet.begin(node), "intake", serials={"system": "S4", "board": its})
    sent, _ = fleet.result(node="sled-b", serials={"system": "S4", "board": board})
    warned = store.contested.serials_elsewhere("sled-b", sent)
    remarks = [each for each in store.nodes.events("sled-b") if "serial_elsewhere" in each.evidence]
    assert ("system" in {each.device for each in warned}, bool(remarks)) == (not shared, not shared)
    assert [(each.node, each.until) for each in store.parts.history("S4")] == [("sled-a", None)]


@pytest.mark.usefixtures("sqlite_db")
def test_the_serial_of_a_chassis_stays_one_while_a_sled_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now = store.clock.now()
    for node, board in (("sled-a", "OM1"), ("sled-b", "OM2")):
        store.nodes.add(fleet.new_node(node))
        lease = fleet.begin(node)
        fleet.do_stage(lease, "intake", serials={"system": "S4", "board": board})
        store.leases.release(lease.key, "over")
    monkeypatch.setattr(parts.access, "now", lambda: now + 2 * parts.LATELY)
    fleet.do_stage(fleet.begin("sled-b", "later"), "intake", serials={"system": "S4", "board": "OM2"})
    assert [(each.node, each.until) for each in store.parts.history("S4")] == [("sled-a", None)]


@pytest.mark.usefixtures("sqlite_db")
def test_a_machine_is_replaced_by_another_of_its_chassis() -> None:
    for node, board in (("sled-a", "OM1"), ("sled-b", "OM2")):
        store.nodes.add(fleet.new_node(node, serials={"system": "S4", "board": board}))
    new = {"system": "S4", "board": "OM3"}
    store.adoption.replace("sled-b", "Ada", "swapped", host_key=fleet.host_key("new"), serials=new)
    assert [each.serial for each in store.parts.of_node("sled-b") if each.until is None] == ["OM3"]


@pytest.mark.parametrize(
    "filler",
    [
        *("To be filled", "INVALID", "Empty", "Undefined", "OEM", "O.E.M.", "Unspecified", "Not Present"),
        *("Not Provided", "SerialNumber", "FFFFFFFF", "0x00000000", "11111111", "System Serial Number", "0", "XX"),
    ],
)
def test_what_firmware_fills_in_is_no_serial(filler: str) -> None:
    assert real_serials({"system": filler, "board": "1654922001234"}) == {"board": "1654922001234"}
