"""What a report shows, in which order, grouped and cut how."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from muster_criteria.model import COMMON_CAUSE, Action, FaultClass, Severity, Verdict
from muster_reports import charts, view
from muster_reports.advice import BLOCK
from muster_reports.document import COLOUR, MAIL_LIMITS, PAGE_LIMITS, SEVERITY_COLOUR
from muster_reports.mail import render
from muster_reports.model import RunReport
from muster_reports.text import clean
from muster_reports.view import build
from tests.muster_reports.conftest import finding, observation, run, stage

FULL = MAIL_LIMITS[0]
Samples = dict[str, RunReport]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes most of a rendering's time, and test_mail and test_charts look at them."""
    monkeypatch.setattr(charts, "draw_charts", lambda report: ())


def test_gravest_findings_stand_first(samples: Samples) -> None:
    view = build(samples["hot_gpu"], FULL)
    assert [finding.severity for finding in view.findings] == [Severity.CRITICAL, Severity.WARNING]
    assert view.findings[0].devices == "gpu3"
    assert view.findings[0].serial == "gpu3 serial 1650523071103"


def test_one_rule_broken_alike_on_eight_gpus_is_one_entry(samples: Samples) -> None:
    view = build(samples["long_lists"], FULL)
    first = view.findings[0]
    assert first.devices == "gpu0–gpu7"
    assert first.observed == tuple((f"gpu{n}", f"{n + 1} wrong words") for n in range(8))
    assert len(view.findings) + len(view.brief_findings) + view.more_findings == 60


def test_no_finding_is_lost_by_grouping(samples: Samples) -> None:
    view = build(samples["long_lists"], PAGE_LIMITS)
    shown = view.findings + view.brief_findings
    assert view.more_findings == 0
    assert sum(len(finding.observed) + finding.more_observed for finding in shown) == 480


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_node_that_waits_in_revalidation_is_not_to_be_qualified_by_hand(samples: Samples, verdict: Verdict) -> None:
    report = dataclasses.replace(samples["cpu_pass"], verdict=verdict, state_after="revalidation")
    steps = " ".join(build(report, FULL).next_steps)
    assert "muster qualify" not in steps


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_qualified_node_of_a_block_that_told_nothing_is_tested_in_a_block_again(
    samples: Samples, verdict: Verdict
) -> None:
    report = dataclasses.replace(samples["cpu_pass"], verdict=verdict, state_after="qualified", dag_id=BLOCK)
    steps = " ".join(build(report, FULL).next_steps)
    assert f"muster block {report.node} " in steps
    assert "muster qualify" not in steps


@pytest.mark.parametrize("verdict", [Verdict.WARN, Verdict.PROVISIONAL, Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_node_that_goes_on_serving_is_neither_to_be_approved_nor_to_be_qualified(
    samples: Samples, verdict: Verdict
) -> None:
    report = dataclasses.replace(samples["cpu_pass"], verdict=verdict, state_after="production")
    steps = " ".join(build(report, FULL).next_steps)
    assert steps
    assert not re.search("approv|muster qualify", steps)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_a_next_step_a_sign_and_a_readable_colour(samples: Samples, verdict: Verdict) -> None:
    view = build(dataclasses.replace(samples["cpu_pass"], verdict=verdict), FULL)
    assert view.next_steps
    assert view.symbol
    assert contrast_with_white(COLOUR[verdict]) >= 4.5  # WCAG 2.2, 1.4.3


def test_severities_are_readable_on_white() -> None:
    assert min(contrast_with_white(colour) for colour in SEVERITY_COLOUR.values()) >= 4.5


def contrast_with_white(colour: str) -> float:
    """WCAG's contrast ratio of a #rrggbb colour against white."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 1.05 / (sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) + 0.05)


WAIVED = "by Ada until 2026-12-31: slow, but good enough"


def with_finding(report: RunReport, **changes: object) -> RunReport:
    """The report with every finding changed alike."""
    stages = tuple(
        dataclasses.replace(
            stage,
            judgement=dataclasses.replace(
                stage.judgement,
                findings=tuple(dataclasses.replace(found, **changes) for found in stage.judgement.findings),
            ),
        )
        for stage in report.stages
    )
    return dataclasses.replace(report, stages=stages)


def test_a_finding_shows_the_id_by_which_it_is_waived(samples: Samples) -> None:
    report = with_finding(samples["hot_gpu"], id="f-0123456789ab")
    assert {finding.ids for finding in build(report, FULL).findings} == {"f-0123456789ab"}
    rendered = render(report)
    assert "  finding:   f-0123456789ab\n" in rendered.text
    assert "finding f-0123456789ab" in rendered.html
    assert "finding:" not in render(samples["hot_gpu"]).text
    alike = with_finding(samples["long_lists"], id="f-0")
    assert build(alike, FULL).findings[0].ids.startswith("f-0 (gpu0), f-0 (gpu1), ")


def test_a_waived_finding_shows_its_waiver_and_leads_to_no_step(samples: Samples) -> None:
    report = dataclasses.replace(with_finding(samples["hot_gpu"], waived=WAIVED), verdict=Verdict.WARN)
    rendered = render(report)
    assert f"  waived:    {WAIVED}\n" in rendered.text
    assert f"<strong>Waived</strong> {WAIVED}" in rendered.html
    assert "WHAT WAS FOUND" in rendered.text
    assert "WHAT FAILED" not in rendered.text
    assert "gpu3" not in " ".join(build(report, FULL).next_steps)
    assert "gpu3" in build(samples["hot_gpu"], FULL).next_steps[0]


def test_a_serial_is_that_of_the_device_and_a_part_of_the_node_is_named_as_such(samples: Samples) -> None:
    serial = observation("serial_system", "node", None, "text", text="J302AXYZ")
    memory = finding("node", "edac_uncorrected", "1", "0", fault_class=FaultClass.DIMM, action=Action.RMA)
    broken = stage("intake", Verdict.FAIL, findings=(memory,), observations=(serial,))
    step = build(run("gpu-0001", Verdict.FAIL, "memory", (broken,)), FULL).next_steps[0]
    assert step.startswith("Replace the memory module of gpu-0001 (RMA)")
    assert "node serial J302AXYZ" in step


def test_open_findings_stand_before_waived_ones(samples: Samples) -> None:
    stages = samples["hot_gpu"].stages
    first = with_finding(samples["hot_gpu"], waived=WAIVED, severity=Severity.CRITICAL).stages
    report = dataclasses.replace(samples["hot_gpu"], stages=(*first, *stages))
    assert [finding.waived for finding in build(report, FULL).findings if finding.severity is Severity.CRITICAL] == [
        "", WAIVED, WAIVED,
    ]  # fmt: skip


HELD = "the circuit breaker is open: 5 of 25 nodes were withdrawn from production, and at most 5 may be"


def test_a_verdict_that_is_held_says_so_first_and_asks_for_a_decision(samples: Samples) -> None:
    report = dataclasses.replace(
        samples["hot_gpu"], why_held=HELD, state_before="revalidation", state_after="production", forced=None
    )
    view = build(report, FULL)
    assert view.cautions[0].code == "held"
    assert "muster node move sim-h100-05 quarantine" in view.next_steps[0]
    assert "muster node keep sim-h100-05" in view.next_steps[0]
    assert "gpu3" in view.next_steps[1]
    assert " held: " in render(report).subject


@pytest.mark.parametrize("finds", [True, False])
@pytest.mark.parametrize("shadow", [True, False])
def test_a_node_that_failed_and_serves_is_withdrawn_or_revalidated_never_qualified(
    samples: Samples, shadow: bool, finds: bool
) -> None:
    report = dataclasses.replace(samples["hot_gpu"], shadow=shadow, state_before="production", state_after="production")
    stages = report.stages if finds else ()
    steps = " ".join(build(dataclasses.replace(report, stages=stages), FULL).next_steps)
    assert "muster node move sim-h100-05 quarantine" in steps
    assert "muster revalidate sim-h100-05" in steps
    assert "muster qualify" not in steps
    assert ("gpu3" in steps) is finds


def test_the_circuit_breaker_stands_on_the_first_screen(samples: Samples) -> None:
    sentence = "closed: 1 of 25 nodes were withdrawn from production in the last 24 hours, and 5 may be"
    shown = render(dataclasses.replace(samples["cpu_pass"], breaker=sentence))
    for text in (shown.text, shown.html):
        words = " ".join(text.split())
        assert sentence in words
        assert words.index(sentence) < len(words) / 3


def test_probes_with_the_same_end_share_a_line(samples: Samples) -> None:
    stages = tuple(
        dataclasses.replace(stage, probes=tuple((f"p{n}", "timed_out", "") for n in range(8)))
        for stage in samples["cpu_pass"].stages[:1]
    )
    (caution,) = build(dataclasses.replace(samples["cpu_pass"], stages=stages), FULL).cautions
    assert caution.items == ("intake: p0, p1, p2, p3, p4, p5, … timed out",)


def test_a_common_cause_stands_before_its_consequences(samples: Samples) -> None:
    report = samples["hot_gpu"]
    blamed = report.stages[-1].judgement.findings[0]
    cause = dataclasses.replace(
        blamed, rule=COMMON_CAUSE, device="node", severity=Severity.WARNING, fault_class=FaultClass.SOFTWARE,
        action=Action.FIX_SOFTWARE, confidence=0.9,
    )  # fmt: skip
    last = dataclasses.replace(report.stages[-1].judgement, findings=(blamed, cause))
    report = dataclasses.replace(
        report, stages=(*report.stages[:-1], dataclasses.replace(report.stages[-1], judgement=last))
    )
    first = build(report, FULL).findings[0]
    assert (first.rule, first.part, first.advice, first.confidence) == (
        COMMON_CAUSE, "software", "fix its software", ", confidence 90 %",
    )  # fmt: skip
    assert "WHAT FAILED" in render(report).text
    assert (
        build(with_finding(report, severity=Severity.CRITICAL), FULL)
        .next_steps[0]
        .startswith("Fix the software (node)")
    )


@pytest.mark.parametrize(("confidence", "shown"), [(1.0, ""), (0.999, ", confidence 99 %"), (0.8, ", confidence 80 %")])
def test_confidence_is_never_certainty(samples: Samples, confidence: float, shown: str) -> None:
    report = with_finding(samples["hot_gpu"], confidence=confidence)
    assert {finding.confidence for finding in build(report, FULL).findings} == {shown}
    assert f"inspect{shown}\n" in render(report).text


def test_a_full_pass_has_nothing_to_warn_of(samples: Samples) -> None:
    assert build(samples["cpu_pass"], FULL).cautions == ()


def test_one_simulated_stage_marks_the_whole_report(samples: Samples) -> None:
    report = samples["cpu_pass"]
    assert not build(report, FULL).simulated
    simulated = dataclasses.replace(report.stages[2].judgement, simulated=True)
    stages = (*report.stages[:2], dataclasses.replace(report.stages[2], judgement=simulated), *report.stages[3:])
    assert build(dataclasses.replace(report, stages=stages), FULL).simulated


def test_a_limit_that_allows_one_value_is_written_as_that_value(samples: Samples) -> None:
    report = samples["hot_gpu"]
    stage = next(stage for stage in report.stages if stage.judgement.stage == "performance")
    exact = dataclasses.replace(stage.judgement.observations[0], floor=0.0, ceiling=0.0, value=0.0)
    judged = dataclasses.replace(stage.judgement, observations=(exact,))
    report = dataclasses.replace(report, stages=(dataclasses.replace(stage, judgement=judged),))
    assert dict(build(report, FULL).figures)["performance"][0].limit.startswith("= 0")


def test_a_value_that_breaks_its_limit_is_not_written_as_the_limit_and_each_kind_of_device_is_one_figure(
    samples: Samples,
) -> None:
    report = samples["hot_gpu"]
    stage = next(stage for stage in report.stages if stage.judgement.stage == "performance")
    rate = dataclasses.replace(
        stage.judgement.observations[0], device="gpu0", unit="GB/s", value=2609.7, floor=2609.9, ceiling=None, ok=False
    )
    rows = [rate, *(dataclasses.replace(rate, device=f"disk:{name}", value=5.0, floor=None) for name in ("a", "b"))]
    judged = dataclasses.replace(stage.judgement, observations=tuple(rows))
    figures = build(dataclasses.replace(report, stages=(dataclasses.replace(stage, judgement=judged),)), FULL).figures
    gpu, disks = dict(figures)["performance"]
    assert (gpu.median, gpu.limit) == ("2,609.7 GB/s", "≥ 2,609.9 GB/s")
    assert disks.devices == "disk:a and disk:b"


def test_a_text_is_cleaned_once_however_many_measurements_have_it(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, cleaned = samples["hot_gpu"], 0
    (first, *_) = report.stages
    rows = tuple(dataclasses.replace(observation("sm_clock", "gpu0", 1.0, "MHz"), samples=each) for each in range(500))
    judged = dataclasses.replace(first.judgement, observations=rows)

    def count(text: str, *limit: int) -> str:
        nonlocal cleaned
        cleaned += 1
        return clean(text, *limit)

    monkeypatch.setattr(view, "clean", count)
    build(dataclasses.replace(report, stages=(dataclasses.replace(first, judgement=judged),)), FULL)
    assert 0 < cleaned < 500


def test_figures_stand_as_median_and_range_beside_their_limit(samples: Samples) -> None:
    sections = dict(build(samples["hot_gpu"], FULL).figures)
    rate = sections["performance"][0]
    assert (rate.devices, rate.labels, rate.median) == ("gpu0–gpu7", "dtype=bf16", "693 TFLOPS")
    assert rate.spread == "548–697 TFLOPS"
    assert (rate.limit, rate.ok, rate.broken_on) == ("≥ 620 TFLOPS", False, "gpu3")
    bandwidth = sections["performance"][1]
    assert (bandwidth.limit, bandwidth.source, bandwidth.ok) == ("", "", True)
    assert next(iter(sections)) == "performance"


def test_probes_that_did_not_complete_are_named_in_their_stage(samples: Samples) -> None:
    stages = {stage.name: stage for stage in build(samples["hot_gpu"], FULL).stages}
    assert stages["performance"].troubles == ("nvbandwidth: skipped (no such tool on the node)",)
    assert (stages["performance"].coverage, stages["thermal"].attempts) == ("16/24", 2)
    assert [stage.verdict for stage in build(samples["missing_gpu"], FULL).stages] == [Verdict.FAIL, *[None] * 4]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "http://a b/", "//host/x", "http://[", ""])
def test_only_web_addresses_become_links(samples: Samples, url: str) -> None:
    assert build(dataclasses.replace(samples["cpu_pass"], run_url=url), FULL).run_url is None


def test_tighter_limits_never_show_more(samples: Samples) -> None:
    sizes = [len(repr(build(samples["long_lists"], limits))) for limits in MAIL_LIMITS]
    assert all(smaller < larger for larger, smaller in itertools.pairwise(sizes))


def test_a_cause_that_names_its_command_is_removed_before_the_next_test(samples: Samples) -> None:
    command = "muster node reinstalled n1 --reason …"
    why = f"n1 (n1:22) has another host key than the pinned one: `{command}` if its system was installed again"
    report = dataclasses.replace(
        samples["empty"],
        verdict=Verdict.INCONCLUSIVE,
        headline=why,
        state_before="registered",
        state_after="registered",
    )
    closing = build(report, FULL).next_steps[-1]
    assert closing.index(command) < closing.index("muster qualify")
