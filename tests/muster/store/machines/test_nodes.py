"""Enrolment, identity by serial, moves and their events."""

from __future__ import annotations

import dataclasses
import datetime
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from muster import store
from muster.enrolment import inventory
from muster.errors import BadInventory, BadNode, DifferentMachine, NodeLeased, Refusal, SameMachine, UnknownNode
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster_criteria.model import Coverage, Verdict
from muster_reports import advice
from tests.muster import fleet
from tests.support.refusals import illegal


@pytest.mark.both_dialects
def test_the_node_that_another_program_means(fleet_db: str) -> None:
    hosts = {"gpu-1": "10.0.0.1", "gpu-2": "gpu-2.example", "n3": "gpu-3", "n4": "shared", "n5": "shared"}
    for name, host in (hosts | {"gpu-6": "old"}).items():
        store.nodes.add(fleet.new_node(name, host=host))
    store.nodes.move("gpu-6", State.RETIRED, "Ada", "sold")
    expected = {
        "gpu-1": "gpu-1", "10.0.0.1": "gpu-1", "gpu-1.hpc.example": "gpu-1", "gpu-2.example": "gpu-2",
        "gpu-3.hpc.example": "n3", "shared": "shared", "shared.example": "shared.example", "10.0.0.9": "10.0.0.9",
        "gpu-6": "gpu-6", "old": "old", "gpu-6.example": "gpu-6.example", "": "", "gpu-1\x00": "gpu-1\x00",
        "gpu-1.\ud800": "gpu-1.\ud800",
    }  # fmt: skip
    assert store.nodes.meant(expected.keys()) == expected


@pytest.mark.usefixtures("fleet_db")
class TestEnrolment:
    def test_adding_again_is_harmless(self) -> None:
        assert store.nodes.add(fleet.new_node()) == "added"
        before = store.nodes.get("gpu-0001")
        assert store.nodes.add(fleet.new_node()) == "unchanged"
        assert store.nodes.get("gpu-0001") == before
        assert len(store.nodes.events("gpu-0001")) == 1

    def test_a_new_address_of_the_same_machine_is_taken_over_and_told(self) -> None:
        store.nodes.add(fleet.new_node(labels={"team": "a"}))
        assert store.nodes.add(fleet.new_node(host="10.9.9.9", labels={"team": "b"})).startswith("updated: ")
        node = store.nodes.get("gpu-0001")
        assert (node.host, node.labels) == ("10.9.9.9", {"team": "b"})
        assert "10.9.9.9" in store.nodes.events("gpu-0001")[-1].reason

    @pytest.mark.parametrize("change", [{"host_key": fleet.host_key("other")}, {"serials": {"system": "S2"}}])
    def test_a_different_machine_under_a_known_name_changes_nothing(self, change: dict[str, object]) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "S1"}))
        before = store.nodes.get("gpu-0001")
        with pytest.raises(DifferentMachine):
            store.nodes.add(fleet.new_node(host="10.9.9.9", **change))
        assert store.nodes.get("gpu-0001") == before
        assert [part.serial for part in store.parts.of_node("gpu-0001")] == ["S1"]

    @pytest.mark.parametrize("simulated", [True, False])
    def test_a_simulated_node_and_a_real_one_have_names_of_their_own(self, simulated: bool) -> None:
        store.nodes.add(fleet.new_node(simulated=simulated))
        before = store.nodes.get("gpu-0001"), store.nodes.events("gpu-0001")
        for named in (None, frozenset({"name", "simulated"})):
            with pytest.raises(DifferentMachine):
                store.nodes.add(fleet.new_node(simulated=not simulated, named=named))
        assert store.nodes.add(fleet.new_node(named=frozenset({"name"}))) == "unchanged", "a line without it"
        assert (store.nodes.get("gpu-0001"), store.nodes.events("gpu-0001")) == before
        store.nodes.move("gpu-0001", State.RETIRED, "Ada", "enrolled with the mark of a demo")
        key = fleet.host_key("gpu-0001")
        assert store.nodes.add(fleet.new_node("gpu-0002", host_key=key, simulated=not simulated)) == "added"

    def test_what_a_description_does_not_name_stays_and_history_keeps_both_values(self) -> None:
        store.nodes.add(fleet.new_node(rack="r1", pool="p1", user="ubuntu"))
        ((_, line),) = inventory.described({"name": "gpu-0001", "host": "moved.example", "sku": "cpu-generic"})
        new = line.pinned(fleet.host_key("gpu-0001"))
        assert store.nodes.add(new).startswith("updated: ")
        node = store.nodes.get("gpu-0001")
        assert (node.host, node.rack, node.pool, node.user) == ("moved.example", "r1", "p1", "ubuntu")
        evidence = store.nodes.events("gpu-0001")[-1].evidence
        assert evidence == {"before": {"host": "gpu-0001.example"}, "after": {"host": "moved.example"}}

    def test_one_machine_under_two_names_is_refused(self) -> None:
        store.nodes.add(fleet.new_node())
        with pytest.raises(SameMachine):
            store.nodes.add(fleet.new_node("gpu-0002", host_key=fleet.host_key("gpu-0001")))
        with pytest.raises(UnknownNode):
            store.nodes.get("gpu-0002")

    @pytest.mark.both_dialects
    def test_an_inventory_goes_in_whole_or_not_at_all(self) -> None:
        good = [(f"f:{line}", fleet.new_node(f"n{line}")) for line in range(300)]
        bad = [("f:300", fleet.new_node("n300", host_key=fleet.host_key("n0"))), ("f:301", fleet.new_node("a__b"))]
        with pytest.raises(BadInventory) as refused:
            store.nodes.add_all([*good, *bad])
        assert [problem.split(" ")[0] for problem in refused.value.problems] == ["f:300:", "f:301:"]
        assert store.nodes.find() == []
        assert set(store.nodes.add_all(good).values()) == {"added"}
        assert len(store.nodes.find()) == 300

    def test_the_sku_of_a_tested_node_is_not_changed_by_the_way(self) -> None:
        store.nodes.add(fleet.new_node())
        assert store.nodes.add(fleet.new_node(sku="h100-sxm-8")).startswith("updated: ")
        fleet.qualify()
        with illegal(Refusal.STATE):
            store.nodes.add(fleet.new_node(sku="cpu-generic"))

    def test_what_passed_as_another_sku_does_not_count_and_a_fail_does(self) -> None:
        store.nodes.add(fleet.new_node())
        fleet.qualify(level="standard")
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "it is another model")
        fleet.fail(run_id="standard", level="standard")
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "it is another model")
        store.nodes.add(fleet.new_node(sku="h100-sxm-8"))
        fleet.qualify(run_id="short", level="short")
        known = {(each.stage, each.level, each.verdict) for each in store.verdicts.latest("gpu-0001")}
        assert known == {("intake", "standard", Verdict.FAIL), *((stage, "short", Verdict.PASS) for stage in STAGES)}

    def test_a_fail_that_a_pass_replaced_stays_replaced_as_another_sku(self) -> None:
        store.nodes.add(fleet.new_node())
        fleet.fail(run_id="standard", level="standard")
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "repaired")
        fleet.qualify(run_id="again", level="standard")
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "it is another model")
        store.nodes.add(fleet.new_node(sku="h100-sxm-8"))
        assert store.verdicts.latest("gpu-0001") == store.verdicts.open_findings("gpu-0001") == []
        fleet.qualify(run_id="short", level="short")
        known = {(each.stage, each.level, each.verdict) for each in store.verdicts.latest("gpu-0001")}
        assert known == {(stage, "short", Verdict.PASS) for stage in STAGES}

    @pytest.mark.parametrize(
        "change",
        [{"host": "10.9.9.9"}, {"port": 2222}, {"user": "root"}, {"work_dir": "/scratch"},
         {"launch": {"kind": "venv", "path": "/opt/torch"}}, {"sku": "h100-sxm-8"}],
    )  # fmt: skip
    def test_what_a_run_finds_its_job_and_judges_its_node_by_stays_until_it_is_over(
        self, change: dict[str, object]
    ) -> None:
        run = RunKey("dag", "run")
        store.nodes.add(fleet.new_node())
        store.leases.acquire("gpu-0001", run)
        place = {"rack": "r1", "pool": "p1", "labels": {"team": "a"}, "bmc": {"url": "https://10.0.0.9"}}
        assert store.nodes.add(fleet.new_node(**place)).startswith("updated: ")
        before = store.nodes.get("gpu-0001"), store.nodes.events("gpu-0001")
        with pytest.raises(NodeLeased):
            store.nodes.add(fleet.new_node(**place, **change))
        found = store.nodes.add_all([("f:1", fleet.new_node(**change)), ("f:2", fleet.new_node("new"))])
        assert [each.partition(":")[0] for each in found.values()] == [store.nodes.LEFT_OUT, "added"]
        assert (store.nodes.get("gpu-0001"), store.nodes.events("gpu-0001")) == before
        store.leases.release(run, "over")
        assert store.nodes.add(fleet.new_node(**place, **change)).startswith("updated: ")

    def test_a_node_of_a_held_rack_does_not_leave_it_by_a_new_description(self) -> None:
        store.nodes.add(fleet.new_node(rack="Rack 12"))
        store.racks.hold(RunKey("cluster_qualification", "r"), "Rack 12", ["imex"], "IMEX is down", ["gpu-0001"])
        with illegal(Refusal.RACK_HELD):
            store.nodes.add(fleet.new_node(rack="rack-12"))
        assert store.nodes.add(fleet.new_node(rack="Rack 12", pool="p")).startswith("updated: ")
        store.racks.release("Rack 12", "Ada", "IMEX is up")
        store.nodes.add(fleet.new_node(rack="rack-12"))
        assert store.nodes.get("gpu-0001").rack == "rack-12"

    @pytest.mark.parametrize(
        "change",
        [{"name": "../etc"}, {"name": "a__b"}, {"name": ""}, {"host": "a b"}, {"port": 0}, {"host_key": "none"},
         {"host_key": "ssh-ed25519 AAAA; rm"}, {"sku": " "}],
    )  # fmt: skip
    def test_a_malformed_node_is_refused(self, change: dict[str, object]) -> None:
        with pytest.raises(BadNode):
            store.nodes.add(dataclasses.replace(fleet.new_node(), **change))
        assert store.nodes.find() == []

    def test_contact_is_noted_and_never_goes_back(self) -> None:
        store.nodes.add(fleet.new_node())
        assert store.nodes.get("gpu-0001").contact_at is None
        late = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
        store.nodes.touch_contact("gpu-0001", late)
        store.nodes.touch_contact("gpu-0001", late - datetime.timedelta(days=1))
        assert store.nodes.get("gpu-0001").contact_at == late
        assert str(store.nodes.get("gpu-0001").contact_at) == "2026-01-01 19:00:00+00:00"


@pytest.mark.usefixtures("fleet_db")
class TestParts:
    @pytest.mark.both_dialects
    def test_a_part_is_followed_from_node_to_node(self) -> None:
        for name in ("gpu-0001", "gpu-0002"):
            store.nodes.add(fleet.new_node(name, serials={"system": f"S-{name}", "gpu3": f"G-{name}"}))
        lease = fleet.begin("gpu-0002")
        moved, raw = fleet.result(node="gpu-0002", serials={"gpu3": "G-gpu-0001"})
        assert fleet.record(lease.key, moved, fleet.judgement(), raw).swapped == ()
        store.contested.confirm("gpu-0002", "G-gpu-0001", "Ada", "swapped for a test")
        assert [(place.node, place.until is None) for place in store.parts.history("G-gpu-0001")] == [
            ("gpu-0001", False),
            ("gpu-0002", True),
        ]
        moved, replaced = [each.reason for each in store.nodes.events("gpu-0002")][-3:-1]
        assert "G-gpu-0001" in moved
        assert "G-gpu-0002" in replaced

    def test_two_slots_may_swap(self) -> None:
        store.nodes.add(fleet.new_node(serials={"gpu0": "A", "gpu1": "B"}))
        lease = fleet.begin()
        crossed, raw = fleet.result(serials={"gpu0": "B", "gpu1": "A"})
        fleet.record(lease.key, crossed, fleet.judgement(), raw)
        sitting = {part.slot: part.serial for part in store.parts.of_node("gpu-0001") if part.until is None}
        assert sitting == {"gpu0": "B", "gpu1": "A"}

    def test_another_chassis_is_another_machine_and_nothing_is_stored(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "S1"}))
        lease = fleet.begin()
        other, raw = fleet.result(serials={"system": "S2"})
        with pytest.raises(DifferentMachine):
            fleet.record(lease.key, other, fleet.judgement(), raw)
        assert store.runs.stages(lease.key) == []

    def test_what_firmware_says_for_want_of_a_serial_is_no_identity(self) -> None:
        fillers = {
            "system": "To Be Filled By O.E.M.", "board": "Default string", "gpu0": "0000", "gpu1": "N/A",
            "gpu2": "0123456789", "gpu3": "01234567890123456789AB", "disk:sda": "XXXXXXXX", "disk:sdb": ".........",
        }  # fmt: skip
        store.nodes.add(fleet.new_node(serials=fillers))
        assert store.nodes.add(fleet.new_node("gpu-0002", serials=fillers)) == "added"
        assert store.parts.of_node("gpu-0001") == []


@pytest.mark.usefixtures("fleet_db")
class TestMoves:
    def test_a_person_moves_with_a_reason(self) -> None:
        store.nodes.add(fleet.new_node())
        store.nodes.move("gpu-0001", State.QUARANTINE, "Ada", "smells of smoke")
        event = store.nodes.events("gpu-0001")[-1]
        assert (event.from_state, event.to_state, event.actor, event.reason) == (
            State.REGISTERED, State.QUARANTINE, "Ada", "smells of smoke",
        )  # fmt: skip
        assert event.evidence == {"person": "Ada", "reason": "smells of smoke"}

    @pytest.mark.parametrize(("actor", "reason"), [("Ada", " "), ("airflow", "why not"), ("", "why not")])
    def test_no_person_or_no_reason_moves_nothing(self, actor: str, reason: str) -> None:
        store.nodes.add(fleet.new_node())
        with illegal(Refusal.EVIDENCE):
            store.nodes.move("gpu-0001", State.QUARANTINE, actor, reason)
        assert store.nodes.get("gpu-0001").state is State.REGISTERED
        assert len(store.nodes.events("gpu-0001")) == 1

    @pytest.mark.parametrize("state", [State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA])
    @pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED, Verdict.FAIL])
    def test_the_next_step_of_a_report_brings_the_node_back_to_a_test(self, state: State, verdict: Verdict) -> None:
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        for each in (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA):
            if each is State.REPAIR is not state:
                continue
            store.nodes.move("gpu-0001", each, "Ada", "a person looks at it")
            if each is state:
                break
        store.runs.finish(lease.key, verdict, "It ended.")
        store.leases.release(lease.key, "over")
        steps = " ".join(advice.next_steps(store.reporting.run(lease.key)))
        for to in re.findall(r"muster node move gpu-0001 (\w+) --reason", steps):
            store.nodes.move("gpu-0001", State(to), "Ada", "as the report says")
        assert "muster qualify gpu-0001" in steps
        assert store.runs.begin(RunKey(fleet.DAG, "gpu-0001__again"), "gpu-0001", "short", "again")

    def test_what_a_move_claims_about_a_run_is_looked_up(self) -> None:
        """A full-coverage PASS that the records do not bear out opens nothing."""
        store.nodes.add(fleet.new_node())
        fleet.qualify()
        lease = fleet.begin(run_id="gpu-0001__cluster", required_stages=["collectives"])
        store.nodes.move(
            "gpu-0001",
            State.CLUSTER_VALIDATION,
            "muster",
            "block 7",
            Evidence(run=RunKey(fleet.DAG, "gpu-0001__cluster")),
        )
        claimed = Evidence(run=lease.key, verdict=Verdict.PASS, full_coverage=True)
        with illegal(Refusal.EVIDENCE):
            store.nodes.move("gpu-0001", State.PRODUCTION, "muster", "it says so", claimed)
        thin = fleet.judgement("collectives", coverage=Coverage(2, 1, 1))
        fleet.record(lease.key, None, thin)
        store.runs.finish(lease.key, Verdict.PASS, "thin")
        with illegal(Refusal.EVIDENCE):
            store.nodes.move("gpu-0001", State.PRODUCTION, "muster", "it says so", claimed)
        fleet.record(lease.key, None, fleet.judgement("collectives"))
        with illegal(Refusal.GATE):
            store.nodes.move("gpu-0001", State.PRODUCTION, "muster", "passed", claimed)

    @pytest.mark.parametrize("statement", ["UPDATE events SET reason = 'nothing'", "DELETE FROM events"])
    @pytest.mark.both_dialects
    def test_events_cannot_be_rewritten(self, statement: str) -> None:
        store.nodes.add(fleet.new_node())
        with pytest.raises(DBAPIError), writing() as session:
            session.execute(text(statement))
        assert store.nodes.events("gpu-0001")[0].reason == "enrolled"


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
def test_two_nodes_that_remark_about_each_other_at_once_do_not_wait_for_each_other() -> None:
    """As two of a rack do that fail at once for a cause that they share; SQLite's writers take turns anyway."""
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    both_hold = threading.Barrier(2)

    def remark(own: str, other: str) -> None:
        with writing() as session:
            access.node_row(session, own, lock=True)
            both_hold.wait(60)
            access.write_event(session, other, State.QUARANTINE, State.QUARANTINE, "muster", f"{own} failed too", {})

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(remark, "n1", "n2"), pool.submit(remark, "n2", "n1")]:
            done.result()
    assert [store.nodes.events(name)[-1].reason for name in ("n1", "n2")] == ["n2 failed too", "n1 failed too"]
