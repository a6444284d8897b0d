"""What a waiver does to a verdict, on any judgement whatever: it marks, never passes, and once over is nothing."""

from __future__ import annotations

import dataclasses
import datetime

from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.context.waivers import Machine, Waiver, concerns, covers, finding_id, subject_of, waive
from muster_criteria.model import Action, Coverage, FaultClass, Finding, Gap, Judgement, Lack, Severity, Verdict
from muster_criteria.stage.verdict import verdict_of

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
SERIALS = {"system": "S-1", "gpu0": "G-0", "gpu1": "G-1"}
MACHINE = Machine("n1", SERIALS, 2)

LABELS = st.sampled_from([(), (("dtype", "bf16"),)])
DEVICES = st.sampled_from(["gpu0", "gpu1", "gpu2", "cpu0", "node"])
FINDINGS = st.builds(
    Finding,
    rule=st.sampled_from(["floor", "exact"]),
    metric=st.sampled_from(["gemm_rate", "power"]),
    device=DEVICES,
    severity=st.sampled_from(Severity),
    fault_class=st.just(FaultClass.GPU),
    action=st.just(Action.INSPECT),
    observed=st.just("1"),
    expected=st.just("2"),
    source=st.just("test"),
    summary=st.just("It is slow."),
    labels=LABELS,
)
COVERAGES = st.builds(
    lambda required, missing, unjudged: Coverage(
        required, max(0, required - missing), max(0, required - missing - unjudged),
        (Gap(Lack.NOT_REPORTED, "m"),) * missing, (Gap(Lack.UNJUDGED, "u"),) * unjudged,
    ),
    st.integers(0, 4), st.integers(0, 2), st.integers(0, 2),
)  # fmt: skip


@st.composite
def judgements(draw: st.DrawFn) -> Judgement:
    """What the judge may say: its own table makes the verdict."""
    findings, coverage = tuple(draw(st.lists(FINDINGS, max_size=4))), draw(COVERAGES)
    verdict, _ = verdict_of(findings, coverage)
    return Judgement("burn_in", "short", verdict, "so it is", coverage, findings, (), False, "sku", "1")


@st.composite
def waivers(draw: st.DrawFn) -> Waiver:
    device = draw(DEVICES)
    return Waiver(
        id=draw(st.integers(1, 99)),
        node=draw(st.sampled_from(["n1", "n2"])),
        subject=draw(st.sampled_from(["", subject_of(device, SERIALS), "gpu G-9"])),
        rule=draw(st.sampled_from(["floor", "exact"])),
        metric=draw(st.sampled_from(["gemm_rate", "power"])),
        device=device,
        labels=draw(LABELS),
        person="Ada",
        reason="known",
        created_at=NOW - datetime.timedelta(days=draw(st.sampled_from([1, 200]))),
        until=NOW + datetime.timedelta(seconds=draw(st.integers(-5, 5))),
        revoked_at=draw(st.sampled_from([None, NOW])),
    )


def bare(judgement: Judgement) -> list[Finding]:
    return [dataclasses.replace(finding, waived="") for finding in judgement.findings]


@given(judgements(), st.lists(waivers(), max_size=6))
def test_a_waiver_marks_deletes_nothing_and_never_passes(judgement: Judgement, given_: list[Waiver]) -> None:
    after = waive(judgement, given_, MACHINE, NOW)
    assert bare(after) == list(judgement.findings)
    holding = [waiver for waiver in given_ if waiver.until > NOW and waiver.revoked_at is None]
    for finding, marked in zip(judgement.findings, after.findings, strict=True):
        assert bool(marked.waived) == any(covers(waiver, finding, MACHINE) for waiver in holding)
    if after.verdict is Verdict.PASS:
        assert judgement.verdict is Verdict.PASS
    if after.verdict is not judgement.verdict:
        assert judgement.verdict is Verdict.FAIL
        assert after.verdict in (Verdict.WARN, Verdict.PROVISIONAL, Verdict.INCONCLUSIVE)
        assert all(finding.waived for finding in after.findings if finding.severity is Severity.CRITICAL)
        assert "waived by Ada" in after.reason


@given(judgements(), st.lists(waivers(), max_size=6))
def test_once_over_it_is_nothing(judgement: Judgement, given_: list[Waiver]) -> None:
    over = [waiver for waiver in given_ if waiver.until <= NOW or waiver.revoked_at]
    assert waive(judgement, over, MACHINE, NOW) is judgement


@given(judgements(), st.sampled_from(["gpu3", "node"]))
def test_with_every_critical_finding_waived_the_rest_is_judged_as_the_judge_would(
    judgement: Judgement, node: str
) -> None:
    everything = [
        Waiver(1, "n1", subject_of(found.device, SERIALS), found.rule, found.metric, found.device, found.labels, "Ada",
               "known", NOW, NOW + datetime.timedelta(days=1), machine=2)
        for found in judgement.findings
    ]  # fmt: skip
    after = waive(judgement, everything, MACHINE, NOW)
    softened = tuple(
        dataclasses.replace(found, severity=Severity.WARNING) if found.severity is Severity.CRITICAL else found
        for found in judgement.findings
    )
    assert after.verdict is verdict_of(softened, judgement.coverage)[0]


def waiver(subject: str, device: str = "gpu0", node: str = "n1", machine: int = 2) -> Waiver:
    until = NOW + datetime.timedelta(days=1)
    return Waiver(1, node, subject, "floor", "gemm_rate", device, (), "Ada", "known", NOW, until, machine=machine)


@given(FINDINGS, st.sampled_from(Severity))
def test_a_waiver_covers_nothing_graver_than_what_was_waived(found: Finding, waived: Severity) -> None:
    given_ = dataclasses.replace(
        waiver(subject_of(found.device, SERIALS), found.device), rule=found.rule, metric=found.metric,
        labels=found.labels, severity=waived,
    )  # fmt: skip
    assert covers(given_, found, MACHINE) == (found.severity.rank >= waived.rank)


def test_whom_a_waiver_concerns() -> None:
    moved = Machine("n2", {"system": "S-2", "gpu1": "G-0"}, 2)
    assert subject_of("gpu0", SERIALS) == "gpu G-0"
    assert subject_of("cpu0", SERIALS).endswith(" S-1")
    assert subject_of("cpu0", {"board": "B-1"}).endswith(" B-1")
    assert subject_of("cpu0", {}) == ""
    assert concerns(waiver("gpu G-0"), MACHINE)
    assert concerns(waiver("gpu G-0"), moved)
    assert not concerns(waiver("cpu0 of system S-1", "cpu0"), moved)
    assert concerns(waiver(""), MACHINE)
    assert not concerns(waiver(""), moved)
    assert not concerns(waiver("", machine=1), MACHINE)


def test_the_id_says_what_was_found_where_and_nothing_of_the_figures() -> None:
    found = Finding("floor", "gemm_rate", "gpu0", Severity.CRITICAL, FaultClass.GPU, Action.RMA, "1", "2", "s", "x")
    same = dataclasses.replace(found, observed="9", summary="y", severity=Severity.WARNING, confidence=0.1)
    assert finding_id("n1", found) == finding_id("n1", same)
    others = [dataclasses.replace(found, **change) for change in ({"device": "gpu1"}, {"labels": (("a", "b"),)})]
    assert len({finding_id("n1", each) for each in [found, *others]} | {finding_id("n2", found)}) == 4
