"""A repair from evidence to proof, on the bench of ``repairs``."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.errors import LeaseLost, NodeLeased, SchedulerDown
from muster.integration import closing
from muster.judging import health, policies
from muster.model.attention import Cause, Turn
from muster.model.health import Report
from muster.model.repairs import Bundle, Outcome
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators.lifecycle import repair
from muster.reporting import bundles
from muster.store.database import access
from muster_criteria.health.readings import Reading
from muster_criteria.model import FaultClass, Finding, Verdict
from tests.muster import fleet
from tests.muster.operators.lifecycle.repairs import FAULT, KEY, Bench, act, begun, by_themselves
from tests.support import lives

pytestmark = pytest.mark.needs_sshd


def test_a_repair_counts_only_when_the_tests_that_can_see_the_fault_passed(bench: Bench) -> None:
    incident = begun()
    done = act(bench, incident)
    assert done["rung"] == "reset_gpu"
    assert bench.calls == ["--gpu-reset -i 1650423000003"]
    assert bench.node().state is State.REGISTERED
    repair.release(KEY)
    (proof,) = repair.proofs(KEY, incident)
    assert repair.proofs(RunKey("repair", "another"), incident) == []
    assert proof["conf"]["level"] == "standard"
    assert store.repairs.prove("this-node") == [], "nothing was tested yet"
    fleet.qualify("this-node", "this-node__short", level="short")
    assert store.repairs.prove("this-node") == [], "at this level the tests do not see the fault"
    open_points = store.admission.decision("this-node").reasons  # type: ignore[union-attr]
    assert any(each.startswith(f"incident {incident} ") for each in open_points)
    fleet.qualify("this-node", "this-node__standard", level="standard")
    open_points = store.admission.decision("this-node").reasons  # type: ignore[union-attr]
    assert not any(each.startswith(f"incident {incident} ") for each in open_points)
    assert store.repairs.prove("this-node") == [incident]
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (attempt.outcome, attempt.proved) == (Outcome.SUCCEEDED, True)
    assert store.repairs.find("this-node", still_open=True) == []


def test_a_pass_from_before_a_repair_proves_nothing_even_if_the_clock_was_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.move("this-node", State.TRIAGE, "Ada", "looks sound")
    store.nodes.move("this-node", State.REGISTERED, "Ada", "looks sound")
    now = access.now
    with monkeypatch.context() as ahead:
        ahead.setattr(access, "now", lambda: now() + datetime.timedelta(hours=2))
        fleet.qualify("this-node", "this-node__ahead", level="standard")
    store.nodes.move("this-node", State.QUARANTINE, "Ada", "XID 95")
    incident = begun()
    act(bench, incident)
    assert store.repairs.prove("this-node") == []
    repair.release(KEY)
    fleet.qualify("this-node", "this-node__after", level="standard")
    assert store.repairs.prove("this-node") == [incident]


def test_evidence_that_cannot_be_kept_asks_a_person_and_repairs_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident, usage = repair.claim(KEY, FAULT), shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr(bundles.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(AirflowFailException):
        repair.take_evidence(incident, bench.connect)
    assert "MUSTER_ARCHIVE" in store.repairs.get_incident(incident).asks
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    assert bench.calls == []


def test_a_gpu_in_use_is_not_reset_and_costs_no_budget(bench: Bench) -> None:
    (bench.folder / "in-use").touch()
    incident = begun()
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.outcome is Outcome.TRANSIENT
    assert bench.node().state is State.QUARANTINE, "it does not stay in repair"
    (bench.folder / "in-use").unlink()
    assert act(bench, incident)["rung"] == "reset_gpu", "the same rung: it was not carried out"


@pytest.mark.parametrize(
    "said", ['{"busy": true, "sentence": "foreign GPU processes: python"}', "", '{"busy": 0}', "[]"]
)
def test_a_node_whose_own_processes_use_it_or_may_is_left_alone(bench: Bench, said: str) -> None:
    (bench.server.home / "usage").write_text(said)
    incident = begun()
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert store.repairs.history(store.repairs.get_incident(incident)) == []
    assert store.repairs.get_incident(incident).asks, "its scheduler calls it free: somebody has to look"


def test_a_node_that_waits_for_its_turn_is_shown_as_such_until_it_is_repaired(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = begun()
    with monkeypatch.context() as full:
        full.setattr(store.repairs, "under_way", lambda _: {f"n{number}": {} for number in range(4)})
        for _ in range(2):
            with pytest.raises(AirflowSkipException):
                act(bench, incident)
    repair.release(KEY)
    (shown,) = store.attention.collect()
    assert (shown.cause, shown.turn) == (Cause.WAITS_FOR_REPAIR, Turn.MUSTER)
    assert "n0, n1, n2 and 1 more" in shown.why
    told = [each for each in store.nodes.events("this-node") if f"incident {incident} waits" in each.reason]
    assert len(told) == 1, "a day of waiting is one remark"
    assert repair.claim(KEY, FAULT) == incident
    act(bench, incident)
    assert store.repairs.get_incident(incident).waits == ""


def test_a_node_in_shadow_mode_is_a_persons(bench: Bench) -> None:
    store.nodes.move("this-node", State.REGISTERED, "Ada", "it serves already")
    store.adoption.adopt(["this-node"], "Ada", "it serves already")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)


def test_a_node_that_its_scheduler_does_not_call_free_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = begun()

    def down(node: str) -> None:
        raise SchedulerDown("slurmctld does not answer")

    monkeypatch.setattr(repair.service, "in_hands", down)
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert store.repairs.history(store.repairs.get_incident(incident)) == []
    assert "slurmctld does not answer" in store.repairs.get_incident(incident).waits, "it is not known to be in use"


def test_an_open_incident_is_not_gone_on_with_where_a_person_took_the_node_out(bench: Bench) -> None:
    by_themselves(bench)
    incident = begun()
    act(bench, incident)
    repair.release(KEY)
    store.nodes.move("this-node", State.QUARANTINE, "Ada", "chassis is open, riser 2 is reseated")
    for _ in range(2):
        assert repair.wanted() == [], "the node would be rebooted while a technician works on it"
    assert "something else" in store.repairs.get_incident(incident).asks
    history = [each.reason for each in store.nodes.events("this-node")]
    assert len([each for each in history if f"incident {incident} waits for a person" in each]) == 1
    assert repair.claim(KEY, FAULT) == incident
    repair.release(KEY)
    (run,) = repair.wanted()
    assert (run["conf"]["fault"], run["conf"]["device"]) == ("gpu_memory", "gpu3"), "a person took it up again"


@pytest.mark.parametrize(("check", "device"), [("xid/95", "gpu5"), ("xid/95", "gpu3"), ("clock_offset", "node")])
def test_what_a_node_left_service_for_is_repaired_and_not_what_is_open_besides(
    bench: Bench, check: str, device: str
) -> None:
    by_themselves(bench)
    incident = begun()
    act(bench, incident)
    repair.release(KEY)
    lives.in_production("this-node", "short")
    seen = Reading(check, device, value="uncontained", severity="ISOLATE")
    health.record([Report("this-node", "sweep", (seen,), "b1")], {"this-node": "cpu-generic"})
    (observed,) = store.health.of_node("this-node")
    store.health.withdraw(observed, "seen by the sweep")
    known = policies.repair().ladder_for(check)
    assert [each["conf"]["device"] for each in repair.wanted()] == ([device] if known else [])
    assert bool(store.repairs.get_incident(incident).asks) is (known is None)


def test_a_repair_that_waited_for_days_is_wanted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    by_themselves(bench)  # no sweep reads a node that is out of service
    for state in (State.TRIAGE, State.REGISTERED):
        store.nodes.move("this-node", state, "Ada", "looks sound")
    lives.in_production("this-node", "short")
    seen, now = Reading("gpu_lost", "gpu3", bad=True), store.clock.now
    health.record([Report("this-node", "sweep", (seen,), "b1")], {"this-node": "cpu-generic"})
    store.health.withdraw(store.health.of_node("this-node")[0], "seen by the sweep")
    monkeypatch.setattr(store.clock, "now", lambda: now() + datetime.timedelta(days=3))
    assert [each["conf"]["device"] for each in repair.wanted()] == ["gpu3"]


def fail(stage: str, *found: Finding, serials: dict[str, str] | None = None) -> None:
    """The node's test fails at this stage."""
    lease = fleet.begin("this-node", "its test")
    for passed in STAGES[: STAGES.index(stage)]:
        fleet.do_stage(lease, passed)
    fleet.do_stage(lease, stage, Verdict.FAIL, findings=found, serials=serials)
    store.runs.finish(lease.key, Verdict.FAIL, found[0].summary)
    store.leases.release(lease.key, "over")


def test_a_replaced_part_is_not_repaired_any_more(bench: Bench) -> None:
    by_themselves(bench)
    incident = begun()
    attempt = store.repairs.reserve(incident, "reset_gpu", KEY)
    store.repairs.settle(attempt.id, Outcome.PERMANENT, "it hangs")
    repair.release(KEY)
    store.nodes.move("this-node", State.REGISTERED, "Ada", "RMA 17: gpu3 replaced")
    fail("intake", fleet.FINDING, fleet.finding(device="node"), serials={"gpu3": "1650423000077"})
    store.repairs.prove("this-node")
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.proved is None, "the fault of another part"
    assert repair.wanted() == []
    assert "replaced" in store.repairs.get_incident(incident).asks
    assert repair.claim(KEY, FAULT) != incident, "a person has the new part repaired"


@pytest.mark.parametrize(("device", "fault", "stage", "proved", "goes_on"), [
    ("gpu3", "gpu", "intake", False, True), ("nic0", "nic", "intake", None, False),
    ("gpu5", "gpu", "intake", None, False), ("node", "gpu", "intake", False, True),
    ("node", "nic", "intake", None, False), ("node", "gpu", "performance", None, False),
])  # fmt: skip
def test_a_failed_test_is_about_an_incident_only_if_it_found_its_part_at_fault(
    bench: Bench, device: str, fault: str, stage: str, proved: bool | None, goes_on: bool
) -> None:
    by_themselves(bench)
    incident = begun()
    act(bench, incident)
    repair.release(KEY)
    fail(stage, fleet.finding(device=device, fault_class=FaultClass(fault)))
    assert bench.node().state is State.QUARANTINE
    assert store.repairs.prove("this-node") == []
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.proved is proved
    assert [each["conf"]["fault"] for each in repair.wanted()] == ["gpu_memory"] * goes_on
    assert bool(store.repairs.get_incident(incident).asks) is not goes_on


def test_an_attempt_that_did_not_succeed_is_followed_by_the_next_one(bench: Bench) -> None:
    by_themselves(bench)
    incident = begun()
    attempt = store.repairs.reserve(incident, "reset_gpu", KEY)
    store.repairs.settle(attempt.id, Outcome.PERMANENT, "it hangs")
    repair.release(KEY)
    assert [each["conf"]["fault"] for each in repair.wanted()] == ["gpu_memory"]
    assert store.repairs.get_incident(incident).asks == ""


def test_a_job_that_begins_after_the_reservation_stops_the_act(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    incident, words = begun(), iter([("", ""), ("job 17 of ada", "")])
    monkeypatch.setattr(repair, "allocated", lambda *_: next(words))
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    assert bench.calls == []
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.outcome is Outcome.TRANSIENT


def test_nothing_is_repaired_without_evidence_or_the_lease(bench: Bench) -> None:
    incident = repair.claim(KEY, FAULT)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100))
    repair.release(KEY)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    with pytest.raises(LeaseLost):
        store.repairs.reserve(incident, "reset_gpu", KEY)
    assert bench.calls == []


def test_two_repairs_never_hold_one_node(bench: Bench) -> None:
    begun()
    with pytest.raises(AirflowFailException):
        repair.claim(RunKey("repair", "other"), FAULT)
    with pytest.raises(NodeLeased):
        store.leases.acquire("this-node", RunKey("node_qualification", "x"))


def test_an_attempt_whose_worker_was_lost_counts_and_is_not_repeated(bench: Bench) -> None:
    incident = begun()
    store.repairs.reserve(incident, "reset_gpu", KEY)
    with pytest.raises(NodeLeased):
        store.repairs.reserve(incident, "reset_gpu", KEY)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    assert bench.calls == []
    assert act(bench, incident)["rung"] == "reboot", "the next rung, since the reset may have been carried out"


def test_the_wait_for_a_node_ends_no_attempt_but_its_own_runs(bench: Bench) -> None:
    """What tasks hand on by XCom anyone may write who may start a run: it looks at the records."""
    incident = begun()
    attempt = store.repairs.reserve(incident, "reboot", KEY)
    with pytest.raises(AirflowFailException):
        repair.returned(KEY, incident, bench.connect)  # reserved, and nothing was ordered
    store.repairs.order(attempt.id, "another boot", "the reboot")
    with pytest.raises(AirflowFailException):
        repair.returned(RunKey("repair", "another"), incident, bench.connect)
    (kept,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (kept.outcome, kept.before) == (None, "another boot")
    assert repair.returned(KEY, incident, bench.connect)
    (kept,) = store.repairs.history(store.repairs.get_incident(incident))
    assert kept.outcome is Outcome.SUCCEEDED


def test_a_run_that_is_over_leaves_no_node_in_repair(bench: Bench) -> None:
    """Its tasks were killed, and Airflow's listener or housekeeping releases its node."""
    incident = begun()
    store.repairs.reserve(incident, "reboot", KEY)
    assert closing.release(KEY, "its run failed") == ["this-node"]
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (attempt.outcome, bench.node().state) == (Outcome.PERMANENT, State.QUARANTINE)


def test_a_history_that_cannot_be_read_stops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = begun()

    def broken(incident: object) -> None:
        raise OSError("the disk")

    monkeypatch.setattr(store.repairs, "history", broken)
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []


def test_a_node_that_is_paused_after_the_claim_is_left_alone(bench: Bench) -> None:
    incident = begun()
    store.pauses.pause("this-node", access.now() + datetime.timedelta(days=1), "Ada", "its chassis is open")
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []


def test_what_is_switched_off_is_a_persons_after_the_evidence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SKU_PATH", "")
    incident = begun()
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert bench.node().state is State.QUARANTINE
    assert store.repairs.get_incident(incident).asks
    assert any("waits for a person" in each.reason for each in store.nodes.events("this-node"))


def test_only_a_node_out_of_service_is_repaired(bench: Bench) -> None:
    store.nodes.move("this-node", State.REGISTERED, "Ada", "repaired by hand")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)
    assert store.leases.get("this-node") is None


def test_a_paused_node_and_an_unknown_fault_are_refused(bench: Bench) -> None:
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT | {"fault": "no_such"})
    store.pauses.pause("this-node", store.waivers.end_of("2099-12-31"), "Ada", "a technician works on it")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)


def test_the_sudoers_file_allows_what_a_repair_runs_and_no_more() -> None:
    text = (Path(__file__).parents[4] / "docs" / "examples" / "muster-repair.sudoers").read_text()
    listed = text.split("MUSTER_REPAIRS =")[1].split("\n\n")[0].replace("\\\n", "").split(", ")
    allowed = {" ".join(each.split()).replace("/usr/bin/", "") for each in listed}
    assert allowed == {"nvidia-smi ^--gpu-reset -i [0-9A-Za-z-]{6,64}$", "systemctl reboot"}
