"""Waivers in the records: given by a person, followed by serial, shown while they hold, and never a pass."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from typing import Any

import pytest

from muster import store
from muster.errors import BadWaiver, DatabaseNotReady, NoPerson, UnknownFinding
from muster.model.runs import Run, RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.store.database import access, engine
from muster_criteria.model import Coverage, Extent, Finding, Gap, Lack, Severity, Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


def days(number: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=number)


def found(run_id: str = "", **serials: str) -> str:
    """The id of what a failing run of a node found."""
    store.nodes.add(fleet.new_node(serials=serials))
    lease = fleet.fail(run_id=run_id)
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "it is known to be slow")
    (finding,) = store.reporting.run(lease.key).stages[0].judgement.findings
    return finding.id


def again(run_id: str, node: str = NODE, **changes: object) -> Run:
    """A whole run in which the same is found once more, and nothing else."""
    lease = fleet.begin(node, run_id)
    for stage in STAGES:
        fields = {"findings": (fleet.finding(**changes),)} if stage == "performance" else {}
        fleet.do_stage(lease, stage, Verdict.FAIL if fields else Verdict.PASS, **fields)
    stages = store.runs.stages(lease.key)
    gravest = next((each.verdict for each in stages if each.verdict is not Verdict.PASS), Verdict.PASS)
    closed = store.runs.finish(lease.key, gravest, "so it ended")
    store.leases.release(lease.key, "over")
    return closed


def test_the_same_thing_has_the_same_id_in_every_run() -> None:
    first = found("one")
    assert first.startswith("f-")
    assert found("two") == first
    assert store.waivers.give(first, days(1), "Ada", "known").finding == first


def test_a_waived_finding_warns_and_a_person_still_has_to_open_production() -> None:
    waiver = store.waivers.give(found(), days(30), "Ada", "slow but good enough")
    closed = again("second")
    assert (closed.verdict, closed.state_after) == (Verdict.WARN, State.QUALIFIED)
    report = store.reporting.run(closed.key)
    judgement = next(each.judgement for each in report.stages if each.judgement.stage == "performance")
    assert judgement.findings[0].severity is Severity.CRITICAL
    assert judgement.findings[0].waived == f"by Ada until {waiver.until:%Y-%m-%d}: slow but good enough"
    assert judgement.reason.startswith("gemm_rate on gpu3 is 480 TFLOPS, expected ≥ 600 TFLOPS (waived by Ada")
    (shown,) = report.waivers
    assert shown.startswith("gemm_rate (dtype bf16, rule floor) of gpu3 (f-")
    summary = next(each for each in store.runs.stages(closed.key) if each.stage == "performance")
    assert summary.verdict is Verdict.WARN
    assert [
        each.finding.waived != "" for each in store.verdicts.open_findings(NODE) if each.stage == "performance"
    ] == [True]


def waived(finding: Finding) -> None:
    """A node that failed by this finding, which is waived, and is to be tested again."""
    store.nodes.add(fleet.new_node())
    fleet.fail(NODE, "", finding)
    (known,) = store.verdicts.open_findings(NODE)
    store.nodes.move(NODE, State.REGISTERED, "Ada", "it is known")
    given = store.waivers.give(known.finding.id, days(30), "Ada", "known")
    assert (given.observed, given.extents) == (finding.observed, (finding.extent,) if finding.extent else ())
    assert store.waivers.find(node=NODE) == [given]


@pytest.mark.both_dialects
@pytest.mark.parametrize(("value", "verdict"), [(585.0, Verdict.WARN), (400.0, Verdict.FAIL)])
def test_what_is_clearly_worse_fails_again(value: float, verdict: Verdict) -> None:
    waived(fleet.finding(observed="590 TFLOPS", extent=Extent(590.0, "TFLOPS", "lower")))
    assert again("second", extent=Extent(value, "TFLOPS", "lower")).verdict is verdict


def test_what_two_stages_found_is_waived_as_far_as_it_goes_in_either() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage, value in (("intake", 500.0), ("burn_in", 590.0)):
        slow = fleet.finding(observed=f"{value:.0f}", extent=Extent(value, "TFLOPS", "lower"))
        fleet.do_stage(lease, stage, Verdict.FAIL, findings=(slow,))
    (known,) = {each.finding.id for each in store.verdicts.open_findings(NODE)}
    assert store.waivers.give(known, days(30), "Ada", "known").observed == "500; 590"
    assert [each.finding.waived != "" for each in store.verdicts.open_findings(NODE)] == [True, True]


@pytest.mark.parametrize(("code", "verdict"), [("109", Verdict.WARN), ("48", Verdict.FAIL)])
def test_another_error_that_returns_fails(code: str, verdict: Verdict) -> None:
    def returns(code: str) -> dict[str, Any]:
        return {"rule": "event_returns", "metric": "evidence", "labels": (("code", code), ("kind", "xid"))}

    waived(fleet.finding(**returns("109")))
    assert again("second", **returns(code)).verdict is verdict


def test_a_reboot_is_waived_and_the_next_one_is_not() -> None:
    def reboot(job: str) -> dict[str, Any]:
        return {"rule": "uncommanded_reboot", "metric": "evidence", "device": "node", "extent": Extent(job)}

    waived(fleet.finding(**reboot("job-1")))
    assert [each.finding.waived != "" for each in store.verdicts.open_findings(NODE)] == [True]
    assert again("second", **reboot("job-2")).verdict is Verdict.FAIL


def test_what_was_judged_before_stays() -> None:
    waiver = store.waivers.give(found(), days(30), "Ada", "known")
    first = store.runs.get(RunKey(fleet.DAG, "gpu-0001__new"))
    assert first.verdict is Verdict.FAIL
    (before,) = store.reporting.run(RunKey(fleet.DAG, "gpu-0001__new")).stages[0].judgement.findings
    assert before.waived == ""
    event = store.nodes.events(NODE)[-1]
    assert (event.actor, event.from_state, event.to_state) == ("Ada", State.REGISTERED, State.REGISTERED)
    assert event.evidence == {"waiver": waiver.id, "finding": waiver.finding, "person": "Ada"}


@pytest.mark.parametrize("ends", ["expires", "is revoked"])
def test_one_that_is_over_does_nothing(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waiver = store.waivers.give(found(), days(1), "Ada", "for a day")
    assert store.waivers.find(node=NODE) == [waiver]
    if ends == "is revoked":
        store.waivers.revoke(waiver.id, "Ada", "changed my mind")
        with pytest.raises(BadWaiver):
            store.waivers.revoke(waiver.id, "Ada", "again")
    else:
        later = days(2)
        monkeypatch.setattr("muster.store.database.access.now", lambda: later)
    assert again("second").verdict is Verdict.FAIL
    assert store.waivers.find(node=NODE) == []
    assert [each.id for each in store.waivers.find(over=True)] == [waiver.id]
    assert store.reporting.run(RunKey(fleet.DAG, "second")).waivers == ()
    assert [each.finding.waived for each in store.verdicts.open_findings(NODE)][-1] == ""


def test_it_is_about_nothing_else() -> None:
    store.waivers.give(found(), days(30), "Ada", "known")
    for number, change in enumerate(
        [{"device": "gpu4"}, {"metric": "power"}, {"rule": "ceiling"}, {"labels": (("dtype", "fp16"),)}]
    ):
        assert again(f"run-{number}", **change).verdict is Verdict.FAIL
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move(NODE, state, "Ada", "next")


@pytest.mark.both_dialects
def test_it_follows_the_part_and_not_the_slot() -> None:
    waiver = store.waivers.give(found(system="S-1", gpu3="G-77"), days(30), "Ada", "slow card")
    assert waiver.subject == "gpu G-77"
    lease, (swapped, raw) = fleet.begin(run_id="swapped"), fleet.result(serials={"system": "S-1", "gpu3": "G-78"})
    fleet.record(lease.key, swapped, fleet.judgement(), raw)
    store.leases.release(lease.key, "over")
    store.nodes.add(fleet.new_node("gpu-0002", serials={"system": "S-2", "gpu0": "G-77"}))
    assert again("moved", "gpu-0002", device="gpu0").verdict is Verdict.WARN
    assert again("stayed", device="gpu3").verdict is Verdict.FAIL
    assert store.waivers.find(node="gpu-0002") == [waiver]
    assert store.waivers.find(node=NODE) == []


def test_without_a_serial_it_ends_with_the_machine() -> None:
    finding = found()
    waiver = store.waivers.give(finding, days(30), "Ada", "known")
    assert waiver.subject == ""
    store.adoption.replace(NODE, "Ada", "new board", host_key=fleet.host_key("new"))
    assert again("second").verdict is Verdict.FAIL
    assert store.waivers.find(node=NODE) == []


@pytest.mark.both_dialects
def test_its_end_asks_about_the_chassis_also_under_another_name() -> None:
    waiver = store.waivers.give(found(system="S-1"), days(30), "Ada", "known")
    assert waiver.subject == "gpu3 of system S-1"
    store.nodes.move(NODE, State.RETIRED, "Ada", "renamed")
    store.nodes.add(fleet.new_node("gpu-0002", host_key=fleet.host_key(NODE), serials={"system": "S-1"}))
    assert again("renamed", "gpu-0002").verdict is Verdict.WARN
    store.nodes.move("gpu-0002", State.PRODUCTION, "Ada", "good enough")
    store.waivers.revoke(waiver.id, "Ada", "it fails jobs")
    assert store.nodes.get("gpu-0002").held_run == RunKey(fleet.DAG, "renamed")


def test_what_cannot_be_waived() -> None:
    finding = found()
    for who, why in (("airflow", "known"), ("Ada", " ")):
        with pytest.raises(NoPerson):
            store.waivers.give(finding, days(1), who, why)
    with pytest.raises(BadWaiver):
        store.waivers.give(finding, days(-1), "Ada", "known")
    with pytest.raises(UnknownFinding):
        store.waivers.give("f-000000000000", days(1), "Ada", "known")
    with pytest.raises(BadWaiver):
        store.waivers.revoke(99, "Ada", "why")
    store.adoption.replace(NODE, "Ada", "new board", host_key=fleet.host_key("new"))
    with pytest.raises(BadWaiver):
        store.waivers.give(finding, days(1), "Ada", "known")
    assert store.waivers.find(over=True) == []


@pytest.mark.parametrize(
    ("given", "also", "state"),
    [
        ("before", {}, State.PRODUCTION),
        ("before, and renewed", {}, State.PRODUCTION),
        ("before it was verified", {}, State.PRODUCTION),
        ("before, and revoked", {}, State.QUALIFIED),
        ("after", {}, State.PRODUCTION),
        ("never", {}, State.QUALIFIED),
        ("before", {"device": "gpu5"}, State.QUALIFIED),
        (
            "before",
            {"coverage": Coverage(2, 2, 1, unjudged=(Gap(Lack.UNJUDGED, "no peers", "gemm_rate", "gpu1"),))},
            State.QUALIFIED,
        ),
    ],
)
def test_what_is_waived_does_not_end_a_nodes_service_whenever_that_was_decided(
    given: str, also: dict[str, Any], state: State
) -> None:
    slow = fleet.finding(severity=Severity.WARNING)
    found = (slow, dataclasses.replace(slow, device=also.get("device", slow.device)))

    def test(run_id: str, findings: tuple[Finding, ...], **changes: Any) -> Run:
        lease = fleet.begin(NODE, run_id)
        for stage in STAGES:
            warns = {"verdict": Verdict.WARN, "findings": findings, **changes} if stage == "performance" else {}
            fleet.do_stage(lease, stage, **warns)
        closed = store.runs.finish(lease.key, Verdict.WARN, "it is slow")
        store.leases.release(lease.key, "over")
        return closed

    adopted = given == "before it was verified"
    store.nodes.add(fleet.new_node())
    if adopted:
        store.adoption.adopt([NODE], "Ada", "it serves")
    first = test("first", (slow,))
    (known,) = store.verdicts.open_findings(NODE)
    waive = functools.partial(store.waivers.give, known.finding.id, days(30), "Ada", "slow but good enough")
    waiver = waive() if given.startswith("before") else None
    if adopted:
        store.adoption.verify(NODE, "Ada", "good enough")
    else:
        store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    if waiver is not None and given in ("before, and renewed", "before, and revoked"):
        store.waivers.revoke(waiver.id, "Ada", "renewed")
    if given in ("after", "before, and renewed"):
        waive()
    closed = test("again", found, **{name: value for name, value in also.items() if name == "coverage"})
    assert first.state_after is (State.PRODUCTION if adopted else State.QUALIFIED)
    assert (closed.verdict, closed.state_after) == (Verdict.WARN, state)


@pytest.mark.parametrize(("stages", "certified"), [(STAGES, True), (("intake", "performance"), False)])
def test_a_whole_test_that_warns_of_nothing_but_that_issues_the_next_certificate(
    stages: tuple[str, ...], certified: bool
) -> None:
    """Else its certificate would expire for good, and its test be requested again and again."""
    store.nodes.add(fleet.new_node())
    slow = {"verdict": Verdict.WARN, "findings": (fleet.finding(severity=Severity.WARNING),)}
    before = None
    for run_id, tested in (("first", STAGES), ("again", stages)):
        lease = fleet.begin(NODE, run_id, required_stages=tested)
        for stage in tested:
            fleet.do_stage(lease, stage, **slow if stage == "performance" else {})
        store.runs.finish(lease.key, Verdict.WARN, "it is slow")
        store.leases.release(lease.key, "over")
        if before is None:
            (known,) = store.verdicts.open_findings(NODE)
            store.waivers.give(known.finding.id, days(30), "Ada", "slow but good enough")
            store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
            before = store.certificates.newest(NODE)
    after = store.certificates.newest(NODE)
    assert before
    assert after
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert (after.id != before.id) is certified


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
def test_no_waiver_is_revoked_while_its_node_may_enter_production_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waiver = store.waivers.give(found(), days(1), "Ada", "known")
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 1)
    with engine.writing() as session:
        access.node_row(session, NODE, lock=True)
        with pytest.raises(DatabaseNotReady), engine.hurried():
            store.waivers.revoke(waiver.id, "Ada", "it is not")
    store.waivers.revoke(waiver.id, "Ada", "it is not")
