"""Suspects for life: a clean test clears nothing, a named person bears with one, a part swap takes it away."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from muster import store
from muster.admission.entry import admit_by
from muster.errors import BadWaiver, DatabaseNotReady, MusterError, Refusal
from muster.judging.case import Collected, fresh_case
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import State
from muster.rules.lifecycle.ending import CORRUPTED
from muster.rules.lifecycle.gate import NeedsPerson, Refuse
from muster.store.database import access, engine
from muster.store.machines.parts import LATELY
from muster_criteria.model import Action, Finding, Severity, Verdict
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.judge import judge
from tests.muster import fleet
from tests.muster.cli.conftest import muster  # noqa: F401 - a fixture
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
PARTS = {"system": "CHASSIS", "gpu3": "BAD", "gpu4": "GOOD"}
CORRUPT = Finding(
    "exactly", "gemm_mismatches", "gpu3", Severity.CRITICAL, fleet.FINDING.fault_class, Action.RMA, "4", "0",
    "by definition", "gpu3 computes wrong results silently; confirmed by gpu4 and gpu5.", (("dtype", "bf16"),),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _admission_at_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")


def run_all(name: str, *found: Finding, node: str = NODE, serials: dict[str, str] | None = None) -> Verdict:
    """A run of every stage, clean but for what is ``found`` in the integrity stage."""
    lease = fleet.begin(node, f"{node}__{name}")
    verdict = Verdict.FAIL if found else Verdict.PASS
    for stage in STAGES:
        bad = found if stage == "integrity" else ()
        parsed, raw = fleet.result(stage, node=node, serials=PARTS if serials is None else serials, note=name)
        store.runs.begin_stage(lease.key, stage)
        judgement = fleet.judgement(stage, Verdict.FAIL if bad else Verdict.PASS, findings=bad)
        fleet.record(lease.key, parsed, judgement, raw)
    store.runs.finish(lease.key, verdict, "so it is")
    store.leases.release(lease.key, "over")
    return verdict


def repaired(node: str = NODE) -> None:
    """Through triage and repair on a person's word, without a new part: somebody rebooted it."""
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(node, state, "Ada", "rebooted it")


def cluster_passed(node: str = NODE) -> None:
    lease = fleet.begin(node, f"{node}__block", required_stages=CLUSTER_STAGES)
    fleet.do_stage(lease, CLUSTER_STAGES[0])
    store.runs.finish(lease.key, Verdict.PASS, "so it is")
    store.leases.release(lease.key, "over")


@pytest.fixture
def suspect() -> str:
    """A node whose gpu3 corrupted data, was rebooted, and has passed every test since."""
    store.nodes.add(fleet.new_node(NODE))
    run_all("found", CORRUPT)
    repaired()
    run_all("clean")
    return NODE


def test_what_made_it_a_suspect_stays_open_after_a_clean_test(suspect: str) -> None:
    assert store.nodes.get(suspect).state is State.QUALIFIED
    assert {each.verdict for each in store.verdicts.latest(suspect)} == {Verdict.PASS}, "every test has passed since"
    (found,) = store.verdicts.open_findings(suspect)
    assert (found.finding.device, found.stage, found.run_id) == ("gpu3", "integrity", f"{NODE}__found")


def test_it_does_not_pass_the_gate_for_any_person(suspect: str) -> None:
    cluster_passed()
    decision = store.admission.decision(suspect)
    assert isinstance(decision, Refuse)
    assert len(decision.reasons) == 1
    with illegal(Refusal.GATE):
        admit_by(suspect, "Ada", "it looks fine now")
    assert store.verdicts.approvals(suspect) == []
    with illegal(Refusal.GATE):
        store.nodes.move(suspect, State.PRODUCTION, "Ada", "it looks fine now")
    assert store.nodes.get(suspect).state is State.QUALIFIED


def test_moving_a_node_into_production_asks_the_gate(suspect: str, muster: Any) -> None:  # noqa: F811 - the fixture
    status, _, err = muster("node", "move", suspect, "production", "--reason", "we need it", "--as", "Ada")
    assert (status, store.nodes.get(suspect).state) == (1, State.QUALIFIED), err
    store.nodes.add(fleet.new_node("gpu-0002"))
    run_all("clean", node="gpu-0002", serials={})
    dry = muster("node", "move", "gpu-0002", "production", "--reason", "we need it", "--as", "Ada", "--dry-run")
    assert (dry[0], store.nodes.get("gpu-0002").state) == (0, State.QUALIFIED), dry
    assert muster("node", "move", "gpu-0002", "production", "--reason", "we need it", "--as", "Ada")[0] == 0
    assert store.nodes.get("gpu-0002").state is State.PRODUCTION
    assert [each.person for each in store.verdicts.approvals("gpu-0002")] == ["Ada"]


def test_a_named_person_can_bear_with_it_and_then_decides(suspect: str) -> None:
    cluster_passed()
    (found,) = store.verdicts.open_findings(suspect)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
    store.waivers.give(found.finding.id, until, "Ada", "spare pool is empty, jobs here check their weights")
    assert isinstance(store.admission.decision(suspect), NeedsPerson)
    admit_by(suspect, "Ada", "for a week")
    assert store.nodes.get(suspect).state is State.PRODUCTION


def test_a_new_part_takes_the_suspicion_away(suspect: str) -> None:
    run_all("new part", serials={**PARTS, "gpu3": "NEW"})
    assert store.verdicts.open_findings(suspect) == []


def test_another_machine_behind_the_name_is_none(suspect: str) -> None:
    store.adoption.replace(suspect, "Ada", "new machine", host_key=fleet.host_key("another"), serials={"system": "X"})
    assert store.verdicts.open_findings(suspect) == []


@pytest.mark.both_dialects
def test_the_suspicion_follows_the_part_to_another_node_and_slot(suspect: str) -> None:
    move_bad_part()
    (found,) = store.verdicts.open_findings("gpu-0002")
    assert found.finding.device == "gpu6"
    assert store.verdicts.open_findings(suspect) == []
    assert store.measured.excluded_from_peers("cpu-generic", simulated=False) == {"gpu-0002"}


def move_bad_part() -> None:
    """The part BAD goes to gpu-0002, and a person confirms it, since it was seen in gpu-0001 lately."""
    store.nodes.add(fleet.new_node("gpu-0002"))
    run_all("with the old part", node="gpu-0002", serials={"system": "OTHER", "gpu6": "BAD"})
    store.contested.confirm("gpu-0002", "BAD", "Ada", "put there this morning")


def test_a_suspect_that_a_person_confirms_in_a_node_in_service_is_asked_about() -> None:
    """No test of the node found anything, and it is not left in service without a word."""
    for name in (NODE, "gpu-0002"):
        store.nodes.add(fleet.new_node(name))
    run_all("corrupts", CORRUPT, serials=PARTS)
    run_all("clean", node="gpu-0002", serials={"system": "OTHER", "gpu6": "BAD"})
    store.nodes.move("gpu-0002", State.PRODUCTION, "Ada", "needed now")
    store.contested.confirm("gpu-0002", "BAD", "Ada", "put there this morning")
    node = store.nodes.get("gpu-0002")
    assert (node.state, bool(node.held_run)) == (State.PRODUCTION, True)
    assert store.certificates.newest("gpu-0002").revoked


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
def test_no_part_moves_while_the_node_that_has_it_may_enter_production(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NODE, "gpu-0002"):
        store.nodes.add(fleet.new_node(name))
    run_all("clean")
    run_all("clean", node="gpu-0002", serials={"system": "OTHER", "gpu6": "BAD"})
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 1)
    with engine.writing() as session:
        access.node_row(session, NODE, lock=True)
        with pytest.raises(DatabaseNotReady), engine.hurried():
            store.contested.confirm("gpu-0002", "BAD", "Ada", "put there this morning")
    assert store.contested.confirm("gpu-0002", "BAD", "Ada", "put there this morning")[-1].node == "gpu-0002"


@pytest.mark.both_dialects
def test_a_node_that_claims_another_s_serials_harms_itself_alone() -> None:
    """The claimed parts keep their place, no suspicion meets them, and a person is asked about the claimant."""
    for node, serials in (("gpu-0001", PARTS), ("gpu-0002", {"system": "OTHER", "gpu3": "OWN"})):
        store.nodes.add(fleet.new_node(node))
        run_all("clean", node=node, serials=serials)
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    run_all("claims", CORRUPT, node="gpu-0002", serials={"system": "OTHER", "gpu3": "BAD", "gpu4": "GOOD"})
    sitting = {each.serial: each.node for each in store.parts.of_node(NODE) if each.until is None}
    assert sitting == dict.fromkeys(PARTS.values(), NODE)
    assert store.verdicts.open_findings(NODE) == []
    assert store.measured.excluded_from_peers("cpu-generic", simulated=False) == {"gpu-0002"}
    run_all("revalidation")
    assert store.nodes.get(NODE).state is State.PRODUCTION
    for node in ("gpu-0001", "gpu-0002"):
        remarks = [each for each in store.nodes.events(node) if "serial_elsewhere" in each.evidence]
        assert len(remarks) == 2, "once a part, not once a stage"
    repaired("gpu-0002")
    run_all("honest again", node="gpu-0002", serials={"system": "OTHER", "gpu3": "OWN"})
    (found,) = store.verdicts.open_findings("gpu-0002")
    assert found.finding.device == "gpu3", "what it corrupted stays with its own slot"


def test_a_part_seen_elsewhere_lately_is_a_warning_for_a_person() -> None:
    for node, serials in (("gpu-0001", PARTS), ("gpu-0002", {"system": "OTHER"})):
        store.nodes.add(fleet.new_node(node, serials=serials))
    claims, _ = fleet.result("intake", node="gpu-0002", serials={"system": "OTHER", "gpu3": "BAD"})
    lease = fleet.begin("gpu-0002")
    case = fresh_case(
        store.runs.get(lease.key), store.nodes.get("gpu-0002"), load_sku("cpu-generic"), "intake",
        Collected(claims),
    )  # fmt: skip
    (found,) = [each for each in judge(case).findings if each.rule == "serial_elsewhere"]
    assert (found.device, found.severity, found.action) == ("gpu3", Severity.WARNING, Action.INSPECT)


def test_a_serial_counts_as_elsewhere_while_its_node_was_seen_lately_or_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for node in ("gpu-0001", "gpu-0003"):
        store.nodes.add(fleet.new_node(node, serials={"gpu3": f"OF-{node}"}))
    store.adoption.adopt(["gpu-0003"], "Ada", "it serves")
    later = datetime.datetime.now(datetime.UTC) + LATELY * 1.1
    monkeypatch.setattr(access, "now", lambda: later)
    store.nodes.add(fleet.new_node("gpu-0002", serials={"gpu3": "OF-gpu-0001", "gpu4": "OF-gpu-0003"}))
    assert {each.slot for each in store.parts.of_node("gpu-0002")} == {"gpu3"}


@pytest.mark.parametrize(("serial", "person"), [("NEVER", "Ada"), ("BAD", "root")])
def test_a_part_is_confirmed_only_where_it_was_reported_and_by_a_person(serial: str, person: str) -> None:
    for node in ("gpu-0001", "gpu-0002"):
        store.nodes.add(fleet.new_node(node))
        run_all("clean", node=node, serials=PARTS if node == NODE else {"gpu6": "BAD"})
    with pytest.raises(MusterError):
        store.contested.confirm("gpu-0002", serial, person, "put there this morning")
    assert {each.node for each in store.parts.history("BAD") if each.until is None} == {NODE}


def test_it_can_be_waived_where_it_sits_now(suspect: str) -> None:
    run_all("with another", serials={**PARTS, "gpu3": "NEW"})
    store.nodes.add(fleet.new_node("gpu-0002"))
    run_all("with the old part", node="gpu-0002", serials={"system": "OTHER", "gpu6": "BAD"})
    (found,) = store.verdicts.open_findings("gpu-0002")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
    waiver = store.waivers.give(found.finding.id, until, "Ada", "jobs there check their weights")
    assert (waiver.node, waiver.device, waiver.subject) == ("gpu-0002", "gpu6", "gpu BAD")
    assert store.verdicts.open_findings("gpu-0002")[0].finding.waived
    assert store.waivers.find(node=suspect) == [], "the new part in the old slot has no waiver"


def test_it_can_be_waived_however_old_the_run_is(suspect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1")
    now = datetime.datetime.now(datetime.UTC)
    store.retention.apply(now + datetime.timedelta(days=30))
    (found,) = store.verdicts.open_findings(suspect)
    store.waivers.give(found.finding.id, now + datetime.timedelta(days=7), "Ada", "known")
    assert store.verdicts.open_findings(suspect)[0].finding.waived


def test_one_that_was_taken_out_is_not_waived_for_what_sits_there_now(suspect: str) -> None:
    (found,) = store.verdicts.open_findings(suspect)
    run_all("new part", serials={**PARTS, "gpu3": "NEW"})
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
    with pytest.raises(BadWaiver):
        store.waivers.give(found.finding.id, until, "Ada", "known")


def test_it_is_no_peer(suspect: str) -> None:
    assert store.measured.excluded_from_peers("cpu-generic", simulated=False) == {suspect}


def test_a_clean_revalidation_does_not_take_it_back_into_production(suspect: str) -> None:
    (found,) = store.verdicts.open_findings(suspect)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
    waiver = store.waivers.give(found.finding.id, until, "Ada", "known")
    store.nodes.move(suspect, State.PRODUCTION, "Ada", "for a week")
    store.waivers.revoke(waiver.id, "Ada", "no longer")
    run_all("revalidation")
    assert store.nodes.get(suspect).state is State.QUALIFIED
    assert CORRUPTED in store.nodes.events(suspect)[-1].reason


def test_a_part_without_a_serial_is_a_suspect_as_long_as_the_machine_is_the_same() -> None:
    store.nodes.add(fleet.new_node(NODE))
    run_all("found", CORRUPT, serials={})
    repaired()
    run_all("clean", serials={})
    assert len(store.verdicts.open_findings(NODE)) == 1
    store.adoption.replace(NODE, "Ada", "new machine", host_key=fleet.host_key("another"))
    assert store.verdicts.open_findings(NODE) == []


def test_what_is_slow_or_alike_on_all_siblings_makes_no_suspect() -> None:
    store.nodes.add(fleet.new_node(NODE))
    alike = dataclasses.replace(CORRUPT, action=Action.FIX_SOFTWARE)
    run_all("found", fleet.FINDING, alike)
    repaired()
    run_all("clean")
    assert store.verdicts.open_findings(NODE) == []
