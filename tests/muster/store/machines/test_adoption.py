"""Fleets that already run: adopted into shadow mode, verified out of it, machines replaced behind their names."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from muster import store
from muster.errors import BadInventory, BadNode, DifferentMachine, NodeLeased, NoPerson, Refusal, SameMachine
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster_criteria.model import Coverage, Verdict
from tests.muster import fleet
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


@pytest.fixture(autouse=True)
def short_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")


def adopted(name: str = NODE) -> None:
    store.adoption.adopt([], "Ada", "serves since spring", enrol=[("", fleet.new_node(name))])


class TestAdoption:
    def test_a_fleet_that_serves_enters_as_it_is_and_twice_is_harmless(self) -> None:
        fleet_file = [(f"f:{line}", fleet.new_node(f"n{line}")) for line in range(50)]
        assert set(store.adoption.adopt([], "Ada", "serves", enrol=fleet_file).values()) == {"adopted"}
        assert set(store.adoption.adopt([], "Ada", "serves", enrol=fleet_file).values()) == {"unchanged"}
        node = store.nodes.get("n7")
        assert (node.state, node.shadow) == (State.PRODUCTION, True)
        event = store.nodes.events("n7")[-1]
        assert (event.from_state, event.to_state, event.actor) == (State.REGISTERED, State.PRODUCTION, "Ada")
        assert event.evidence == {"adopted": True, "person": "Ada", "reason": "serves"}

    def test_all_or_none(self) -> None:
        store.nodes.add(fleet.new_node("good"))
        for name in ("failed", "tested"):
            store.nodes.add(fleet.new_node(name))
        fleet.fail("failed")
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move("failed", state, "Ada", "looked at it")
        store.leases.acquire("tested", RunKey("dag", "run"))
        with pytest.raises(BadInventory) as refused:
            store.adoption.adopt(["good", "failed", "tested", "absent"], "Ada", "serves")
        named = zip(("failed", "tested", "absent"), refused.value.problems, strict=True)
        assert all(node in problem for node, problem in named)
        assert store.nodes.get("good").state is State.REGISTERED

    @pytest.mark.parametrize(("actor", "reason"), [("airflow", "serves"), ("Ada", " ")])
    def test_without_a_person_nothing_is_adopted(self, actor: str, reason: str) -> None:
        with pytest.raises(BadInventory):
            store.adoption.adopt([], actor, reason, enrol=[("", fleet.new_node())])
        assert store.nodes.find() == []

    def test_a_qualified_node_is_not_adopted(self) -> None:
        store.nodes.add(fleet.new_node())
        fleet.qualify()
        with pytest.raises(BadInventory):
            store.adoption.adopt([NODE], "Ada", "serves")


class TestShadow:
    def test_a_fail_is_recorded_and_drains_nothing(self) -> None:
        adopted()
        lease = fleet.begin()
        fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
        with illegal(Refusal.SHADOW):
            store.nodes.move(NODE, State.QUARANTINE, "muster", "found", Evidence(run=lease.key))
        closed = store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
        store.leases.release(lease.key, "over")
        assert (closed.verdict, closed.state_after) == (Verdict.FAIL, State.PRODUCTION)
        assert [found.finding.device for found in store.verdicts.open_findings(NODE)] == ["gpu3"]
        assert store.nodes.get(NODE).shadow
        assert store.reporting.run(lease.key).shadow

    def test_four_inconclusive_runs_drain_nothing(self) -> None:
        adopted()
        for number in range(4):
            lease = fleet.begin(run_id=f"run-{number}")
            store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "no answer")
            store.leases.release(lease.key, "over")
        node = store.nodes.get(NODE)
        assert (node.state, node.shadow, node.inconclusive) == (State.PRODUCTION, True, 0)

    def test_a_full_pass_ends_it(self) -> None:
        adopted()
        fleet.qualify()
        node = store.nodes.get(NODE)
        assert (node.state, node.shadow) == (State.PRODUCTION, False)
        assert store.nodes.events(NODE)[-1].reason.startswith("out of shadow mode: the run ended with PASS")

    def test_a_pass_without_full_coverage_or_of_a_shorter_suite_does_not(self) -> None:
        adopted()
        lease = fleet.begin(run_id="thin")
        for stage in STAGES:
            fleet.do_stage(lease, stage, coverage=Coverage(2, 1, 1))
        store.runs.finish(lease.key, Verdict.PASS, "thin")
        store.leases.release(lease.key, "over")
        short = fleet.begin(run_id="short", required_stages=["integrity"])
        fleet.do_stage(short, "integrity")
        store.runs.finish(short.key, Verdict.PASS, "short")
        assert store.nodes.get(NODE).shadow

    def test_a_pass_less_thorough_than_admission_asks_for_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "standard")
        adopted()
        lease = fleet.qualify()
        assert store.runs.get(lease.key).verdict is Verdict.PASS
        assert store.nodes.get(NODE).shadow

    def test_a_person_ends_it_with_a_reason(self) -> None:
        adopted()
        for actor, reason in (("muster", "fine"), ("Ada", "")):
            with pytest.raises(NoPerson):
                store.adoption.verify(NODE, actor, reason)
        assert store.adoption.verify(NODE, "Ada", "acceptance protocol 12") == "verified"
        assert store.adoption.verify(NODE, "Ada", "again") == "unchanged"
        assert store.nodes.events(NODE)[-1].actor == "Ada"
        lease = fleet.fail()
        assert store.runs.get(lease.key).state_after is State.QUARANTINE

    def test_no_person_ends_the_shadow_of_a_node_that_the_gate_refuses(self) -> None:
        """It failed while it served; without its shadow it would serve like a node that passed."""
        adopted()
        fleet.fail()
        with illegal(Refusal.GATE):
            store.adoption.verify(NODE, "Ada", "acceptance protocol 12")
        assert store.nodes.get(NODE).shadow

    def test_a_person_takes_it_out_and_it_is_a_node_like_any_other(self) -> None:
        adopted()
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "smoke")
        assert not store.nodes.get(NODE).shadow


class TestReplacement:
    def test_history_stays_with_the_serial(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "OLD", "gpu3": "G-1"}))
        fleet.fail()
        store.adoption.replace(NODE, "Ada", "new machine", host_key=fleet.host_key("new"), serials={"system": "NEW"})
        node = store.nodes.get(NODE)
        assert (node.state, node.host_key, node.inconclusive) == (State.REGISTERED, fleet.host_key("new"), 0)
        assert [part.serial for part in store.parts.of_node(NODE) if part.until is None] == ["NEW"]
        assert store.verdicts.open_findings(NODE) == []
        assert store.runs.find(node=NODE, this_machine=True) == []
        assert [run.run_id for run in store.parts.runs_of("OLD")] == ["gpu-0001__new"]
        assert store.parts.runs_of("NEW") == []
        lease = fleet.qualify(run_id="second")
        assert [run.run_id for run in store.parts.runs_of("NEW")] == ["second"]
        assert [run.run_id for run in store.runs.find(node=NODE, this_machine=True)] == [lease.run_id]
        change = next(event for event in store.nodes.events(NODE) if "before" in event.evidence)
        assert change.evidence["before"]["serials"] == {"system": "OLD", "gpu3": "G-1"}
        assert change.evidence["after"]["serials"] == {"system": "NEW"}

    def test_the_old_machine_takes_its_history_to_its_new_name(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "OLD"}))
        fleet.qualify()
        store.adoption.replace(NODE, "Ada", "swapped", host_key=fleet.host_key("new"))
        store.nodes.add(fleet.new_node("gpu-0002", host_key=fleet.host_key(NODE), serials={"system": "OLD"}))
        fleet.qualify("gpu-0002")
        assert [run.node for run in store.parts.runs_of("OLD")] == ["gpu-0002", NODE]
        assert [place.node for place in store.parts.history("OLD")] == [NODE, "gpu-0002"]

    def test_without_it_a_different_machine_stays_refused(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "OLD"}))
        with pytest.raises(DifferentMachine):
            store.nodes.add(fleet.new_node(host_key=fleet.host_key("new")))
        store.adoption.replace(NODE, "Ada", "new board", host_key=fleet.host_key("new"))
        lease = fleet.begin()
        parsed, raw = fleet.result(serials={"system": "NEW"})
        fleet.record(lease.key, parsed, fleet.judgement(), raw)
        other, raw = fleet.result(serials={"system": "THIRD"})
        with pytest.raises(DifferentMachine):
            fleet.record(lease.key, other, fleet.judgement(), raw)

    @pytest.mark.parametrize("state", [State.REGISTERED, State.QUARANTINE, State.PRODUCTION])
    def test_it_begins_anew_wherever_it_stood(self, state: State) -> None:
        if state is State.PRODUCTION:
            adopted()
        else:
            store.nodes.add(fleet.new_node())
        if state is State.QUARANTINE:
            fleet.fail()
        assert store.nodes.get(NODE).state is state
        node = store.adoption.replace(NODE, "Ada", "new", host_key=fleet.host_key("new"), host="10.1.1.1", port=2222)
        assert (node.state, node.shadow, node.host, node.port) == (State.REGISTERED, False, "10.1.1.1", 2222)

    def test_a_reinstalled_machine_keeps_everything_but_its_host_key(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "OLD"}))
        fleet.fail()
        before, findings = store.nodes.get(NODE), store.verdicts.open_findings(NODE)
        node = store.adoption.rekey(NODE, "Ada", "new image", host_key=fleet.host_key("new"))
        assert node == dataclasses.replace(before, host_key=fleet.host_key("new"))
        assert findings
        assert store.verdicts.open_findings(NODE) == findings
        assert store.nodes.events(NODE)[-1].evidence["before"]["host_key"] == fleet.host_key(NODE)
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move(NODE, state, "Ada", "repaired")
        lease = fleet.begin(run_id="second")
        other, raw = fleet.result(serials={"system": "ANOTHER"})
        with pytest.raises(DifferentMachine):
            fleet.record(lease.key, other, fleet.judgement(), raw)

    @pytest.mark.parametrize(
        ("reported", "refused"),
        [
            ({"gpu0": "N0", "gpu1": "N1"}, True),
            ({"gpu0": "N0", "gpu1": "N1", "disk:sda": "D"}, True),  # its disks were put into another machine
            ({"gpu0": "G1", "gpu1": "N1"}, False),
            ({"gpu0": "N0"}, False),  # all others are lost
            ({"system": "S", "gpu0": "N0", "gpu1": "N1"}, False),
            ({"system": "OTHER", "gpu0": "G0", "gpu1": "G1"}, True),
            ({"disk:sda": "N"}, False),
            ({}, False),
        ],
    )
    @pytest.mark.parametrize("chassis", [{"system": "S"}, {}], ids=["DMI read before", "DMI never read"])
    def test_a_reinstalled_machine_that_shows_nothing_known_is_another_one(
        self, chassis: dict[str, str], reported: dict[str, str], refused: bool
    ) -> None:
        store.nodes.add(fleet.new_node(serials={**chassis, "gpu0": "G0", "gpu1": "G1", "disk:sda": "D"}))
        store.adoption.rekey(NODE, "Ada", "new image", host_key=fleet.host_key("new"))
        lease, (sent, raw) = fleet.begin(), fleet.result(serials=reported)
        refused = refused and bool(chassis)
        with pytest.raises(DifferentMachine) if refused else contextlib.nullcontext():
            fleet.record(lease.key, sent, fleet.judgement(), raw)
        assert bool(store.runs.stages(lease.key)) is not refused

    def test_the_advice_to_let_dmi_be_read_helps(self) -> None:
        known = {"system": "S", "gpu0": "G0", "gpu1": "G1"}
        new = {"gpu0": "N0", "gpu1": "N1"}
        store.nodes.add(fleet.new_node(serials=known))
        for shown in (new, new | {"system": "S"}):
            lease, (sent, raw) = fleet.begin(), fleet.result(serials=shown)
            with contextlib.nullcontext() if "system" in shown else pytest.raises(DifferentMachine, match="DMI"):
                fleet.record(lease.key, sent, fleet.judgement(), raw)
            store.leases.release(lease.key, "over")
        placed = {each.slot: each.serial for each in store.parts.of_node(NODE) if each.until is None}
        assert placed == new | {"system": "S"}

    def test_gpus_whose_board_alone_was_known_are_recognised(self) -> None:
        store.nodes.add(fleet.new_node(serials={"gpu0": "A1", "gpu2": "A2"}))
        shown = {f"gpu{place}": f"A{1 + place // 2}/GPU-{place}" for place in range(4)}
        fleet.do_stage(fleet.begin(), "intake", serials=shown)
        assert {each.slot: each.serial for each in store.parts.of_node(NODE) if each.until is None} == shown

    def test_a_new_host_key_needs_a_person_and_a_machine_of_its_own(self) -> None:
        store.nodes.add(fleet.new_node())
        store.nodes.add(fleet.new_node("gpu-0002"))
        for error, actor, key in (
            (NoPerson, "muster", fleet.host_key("new")),
            (BadNode, "Ada", fleet.host_key(NODE)),
            (SameMachine, "Ada", fleet.host_key("gpu-0002")),
        ):
            with pytest.raises(error):
                store.adoption.rekey(NODE, actor, "new image", host_key=key)
        assert store.nodes.get(NODE).host_key == fleet.host_key(NODE)

    def test_what_cannot_be_a_replacement_changes_nothing(self) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "OLD"}))
        store.nodes.add(fleet.new_node("gpu-0002", serials={"system": "S2"}))
        before = store.nodes.get(NODE), store.nodes.events(NODE)
        new = fleet.host_key("new")
        for error, options in (
            (BadNode, {"host_key": fleet.host_key(NODE)}),
            (BadNode, {"host_key": fleet.host_key(NODE), "serials": {"system": "OLD"}}),
            (BadNode, {"host_key": "nonsense"}),
            (SameMachine, {"host_key": fleet.host_key("gpu-0002")}),
            (SameMachine, {"host_key": new, "serials": {"system": "S2"}}),
        ):
            with pytest.raises(error):
                store.adoption.replace(NODE, "Ada", "why", **options)
        for actor, reason in (("muster", "why"), ("Ada", " ")):
            with pytest.raises(NoPerson):
                store.adoption.replace(NODE, actor, reason, host_key=new)
        store.leases.acquire(NODE, RunKey("dag", "run"))
        with pytest.raises(NodeLeased):
            store.adoption.replace(NODE, "Ada", "why", host_key=new)
        assert (store.nodes.get(NODE), store.nodes.events(NODE)) == before
        store.leases.release(RunKey("dag", "run"), "over")


class TestRetirement:
    @pytest.fixture(autouse=True)
    def retired(self, fleet_db: str) -> None:
        store.nodes.add(fleet.new_node(serials={"system": "S1"}))
        store.nodes.move(NODE, State.RETIRED, "Ada", "sold")

    def test_another_machine_takes_the_name(self) -> None:
        store.adoption.replace(NODE, "Ada", "its slot is filled", host_key=fleet.host_key("new"))
        assert store.nodes.get(NODE).state is State.REGISTERED
        assert store.parts.of_node(NODE, 9)[0].until is not None

    def test_the_machine_comes_back_by_a_persons_decision(self) -> None:
        with illegal(Refusal.STATE):
            store.nodes.add(fleet.new_node())
        with pytest.raises(BadInventory):
            store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
        store.nodes.move(NODE, State.REGISTERED, "Ada", "removed by mistake")
        assert store.nodes.add(fleet.new_node()) == "unchanged"

    @pytest.mark.both_dialects
    def test_its_machine_gets_another_name_and_does_not_come_back_under_the_old_one(self) -> None:
        assert store.nodes.add(fleet.new_node("other", host_key=fleet.host_key(NODE))) == "added"
        with pytest.raises(SameMachine):
            store.nodes.move(NODE, State.REGISTERED, "Ada", "removed by mistake")
        with pytest.raises(SameMachine):
            store.nodes.add(fleet.new_node("third", host_key=fleet.host_key(NODE)))

    def test_its_machine_takes_the_place_of_another(self) -> None:
        store.nodes.add(fleet.new_node("other"))
        taken = {"host_key": fleet.host_key(NODE), "serials": {"system": "S1"}}
        assert store.adoption.replace("other", "Ada", "swapped", **taken).host_key == fleet.host_key(NODE)
