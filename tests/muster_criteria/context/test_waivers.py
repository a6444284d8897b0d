"""What a waiver does to a verdict, on any judgement whatever: it marks, never passes, and once over is nothing."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.context.waivers import Machine, Waiver, concerns, covers, finding_id, subject_of, waive
from muster_criteria.model import (
    COMMON_CAUSE,
    Action,
    Coverage,
    Evidence,
    Extent,
    FaultClass,
    Finding,
    Gap,
    Judgement,
    Lack,
    Severity,
    Verdict,
)
from muster_criteria.stage.findings import evidence_finding
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


def rate(value: float) -> Extent:
    return Extent(value, "TFLOPS", "lower")


def count(value: float) -> Extent:
    return Extent(value, "count", "higher")


@pytest.mark.parametrize(
    ("waived", "found", "covered"),
    [
        (rate(590.0), rate(590.0), True),
        (rate(590.0), rate(595.0), True),
        (rate(590.0), rate(585.0), True),
        (rate(590.0), rate(573.0), True),  # just within 3 %
        (rate(590.0), rate(572.0), False),
        (rate(590.0), rate(400.0), False),
        (rate(590.0), rate(0.0), False),
        (Extent(90.0, "°C", "higher"), Extent(92.0, "°C", "higher"), True),
        (Extent(90.0, "°C", "higher"), Extent(93.0, "°C", "higher"), False),
        (count(3.0), count(3.0), True),
        (count(3.0), count(2.0), True),
        (count(3.0), count(4.0), False),
        (count(1000.0), count(1001.0), False),
        (Extent(1975.0, "MHz", "lower"), Extent(1985.0, "MHz", "higher"), False),  # exactly 1980: another fault
        (Extent("96.00.74"), Extent("96.00.74"), True),
        (Extent("96.00.74"), Extent("96.00.75"), False),
        (None, rate(1.0), True),
        (rate(1.0), None, True),
    ],
)
def test_what_is_clearly_worse_than_what_was_waived_is_another_finding(
    waived: Extent | None, found: Extent | None, covered: bool
) -> None:
    known = dataclasses.replace(waiver("gpu G-0"), extents=(waived,) if waived else ())
    finding = Finding("floor", "gemm_rate", "gpu0", Severity.CRITICAL, FaultClass.GPU, Action.RMA, "1", "2", "s", "x",
                      extent=found)  # fmt: skip
    assert covers(known, finding, MACHINE) is covered


def given_for(found: Finding) -> Waiver:
    """The waiver of a finding, as the records give it."""
    return dataclasses.replace(
        waiver(subject_of(found.device, SERIALS), found.device), rule=found.rule, metric=found.metric,
        labels=found.labels, severity=found.severity, observed=found.observed,
        extents=(found.extent,) if found.extent else (),
    )  # fmt: skip


def test_a_finding_of_several_verdicts_is_waived_as_far_as_it_goes_in_any() -> None:
    known = dataclasses.replace(waiver("gpu G-0"), extents=(rate(590.0), rate(500.0)))
    found = Finding("floor", "gemm_rate", "gpu0", Severity.CRITICAL, FaultClass.GPU, Action.RMA, "1", "2", "s", "x")
    covered = {
        value: covers(known, dataclasses.replace(found, extent=rate(value)), MACHINE) for value in (495.0, 400.0)
    }
    assert covered == {495.0: True, 400.0: False}


def test_another_error_that_returns_and_another_reboot_are_other_findings() -> None:
    def back(code: str, boots: int) -> Finding:
        labels = (("code", code), ("kind", "xid"))
        return evidence_finding(Evidence("event_returns", f"back in {boots} boots", "gpu0", labels=labels))

    def reboot(job: str) -> Finding:
        return evidence_finding(Evidence("uncommanded_reboot", "it rebooted by itself", incident=job))

    assert covers(given_for(back("109", 3)), back("109", 4), MACHINE), "it is known that it returns"
    assert not covers(given_for(back("109", 3)), back("48", 3), MACHINE)
    assert finding_id("n1", back("109", 3)) != finding_id("n1", back("48", 3))
    assert covers(given_for(reboot("job-1")), reboot("job-1"), MACHINE)
    assert not covers(given_for(reboot("job-1")), reboot("job-2"), MACHINE)


def test_neither_a_cause_that_explains_nothing_nor_a_failure_without_a_grave_finding_is_waived_with_others() -> None:
    found = Finding("floor", "gemm_rate", "gpu0", Severity.WARNING, FaultClass.GPU, Action.RMA, "1", "2", "s", "x")
    cause = dataclasses.replace(found, rule=COMMON_CAUSE, metric="another", device="node", severity=Severity.CRITICAL)
    for findings in ((found, cause), (found,)):
        failed = Judgement("burn_in", "short", Verdict.FAIL, "x", Coverage(1, 1, 1), findings, (), False, "sku", "1")
        after = waive(failed, [given_for(found)], MACHINE, NOW)
        assert after.verdict is Verdict.FAIL
        assert [bool(each.waived) for each in after.findings] == [each is found for each in findings]
