"""What is shown, in which order, and what is said about it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from muster_criteria.model import COMMON_CAUSE, Action, Coverage, FaultClass, Severity, Verdict
from muster_reports.document import COLOUR, MAIL_LIMITS, PAGE_LIMITS, SEVERITY_COLOUR
from muster_reports.mail import render
from muster_reports.model import RunReport
from muster_reports.view import build

FULL = MAIL_LIMITS[0]
Samples = dict[str, RunReport]


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu_pass", ["Nothing to do."]),
        ("missing_gpu", ["gpu5: reseat (suspected: GPU, confidence 100 %).", "out of service: quarantine."]),
        ("hot_gpu", ["gpu3: inspect (suspected: cooling, confidence 100 %; gpu3 serial 1650523071103)."]),
        ("long_lists", ["gpu0–gpu7: replace (RMA) (suspected: GPU memory (HBM), confidence 100 %)."]),
        ("empty", ["does not count against the hardware", "muster qualify node-09"]),
    ],
)
def test_the_reader_is_told_what_to_do(samples: Samples, name: str, words: list[str]) -> None:
    steps = " ".join(build(samples[name], FULL).next_steps)
    for part in words:
        assert part in steps


@pytest.mark.parametrize(
    ("state", "words"), [("qualified", "Airflow asks for somebody's word on it."), ("production", "Nothing to do.")]
)
def test_after_a_block_the_reader_is_told_whether_somebody_is_asked(samples: Samples, state: str, words: str) -> None:
    one = samples["cpu_pass"].stages[0]
    together = dataclasses.replace(one, judgement=dataclasses.replace(one.judgement, stage="cluster_validation"))
    report = dataclasses.replace(
        samples["cpu_pass"], stages=(together,), state_before="cluster_validation", state_after=state
    )
    assert words in " ".join(build(report, FULL).next_steps)


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.SKIPPED])
def test_a_node_that_waits_in_revalidation_is_not_to_be_qualified_by_hand(samples: Samples, verdict: Verdict) -> None:
    report = dataclasses.replace(samples["cpu_pass"], verdict=verdict, state_after="revalidation")
    steps = " ".join(build(report, FULL).next_steps)
    assert "out of service until it passes" in steps
    assert "muster qualify" not in steps


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


def test_the_first_screen_warns_of_everything_that_weakens_the_verdict(samples: Samples) -> None:
    said = [(caution.sentence, caution.items) for caution in build(samples["hot_gpu"], FULL).cautions]
    assert said[0] == ("The in-use guard was overruled (--force): rack 12 is drained, user asleep <3", ())
    assert said[1][0] == "Waivers stand for this node:"
    assert said[2] == ("Not everything ran to its end:", ("performance: nvbandwidth skipped",))
    assert said[3][0] == "performance: 8 of 24 measured figures not judged, having no limit, peers or history:"
    assert said[3][1] == ("memory_bandwidth[op=copy] on gpu0–gpu7: no floor",)
    said = [(caution.sentence, caution.items, caution.more) for caution in build(samples["missing_gpu"], FULL).cautions]
    assert said[0][0] == "intake: 5 of 42 required figures not measured:"
    assert len(said[0][1]) + said[0][2] == 5
    assert said[1][:2] == (
        "4 stages did not run:",
        ("burn_in, integrity, performance, thermal: intake failed, and it blocks",),
    )


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


def test_a_waived_finding_says_who_bears_with_it_and_asks_for_nothing(samples: Samples) -> None:
    report = dataclasses.replace(with_finding(samples["hot_gpu"], waived=WAIVED), verdict=Verdict.WARN)
    rendered = render(report)
    assert f"  waived:    {WAIVED}\n" in rendered.text
    assert f"<strong>Waived</strong> {WAIVED}" in rendered.html
    assert "WHAT WAS FOUND" in rendered.text
    assert "WHAT FAILED" not in rendered.text
    steps = build(report, FULL).next_steps
    assert steps[0] == "Settle what is found below, or approve the node by name with a reason."
    assert build(samples["hot_gpu"], FULL).next_steps[0].startswith("gpu3: inspect")


def test_what_nobody_bears_with_stands_first(samples: Samples) -> None:
    stages = samples["hot_gpu"].stages
    first = with_finding(samples["hot_gpu"], waived=WAIVED, severity=Severity.CRITICAL).stages
    report = dataclasses.replace(samples["hot_gpu"], stages=(*first, *stages))
    assert [finding.waived for finding in build(report, FULL).findings if finding.severity is Severity.CRITICAL] == [
        "", WAIVED, WAIVED,
    ]  # fmt: skip


def test_shadow_mode_stands_on_the_first_screen(samples: Samples) -> None:
    (caution,) = build(dataclasses.replace(samples["cpu_pass"], shadow=True), FULL).cautions
    assert caution.sentence.startswith("The node is in shadow mode")


HELD = "the circuit breaker is open: 5 of 25 nodes were withdrawn from production, and no more than 5 may be"


def test_a_verdict_that_is_held_says_so_first_and_asks_for_a_decision(samples: Samples) -> None:
    report = dataclasses.replace(
        samples["hot_gpu"], held=HELD, state_before="revalidation", state_after="production", forced=None
    )
    view = build(report, FULL)
    assert view.cautions[0].sentence == f"The node goes on serving, and a person has to decide: {HELD}."
    assert view.state == "production (the verdict is held)"
    assert "muster node move sim-h100-05 quarantine" in view.next_steps[0]
    assert "muster node keep sim-h100-05" in view.next_steps[0]
    assert view.next_steps[1].startswith("gpu3: inspect")
    assert render(report).subject.endswith(" — held")


def test_a_held_node_that_does_not_serve_is_not_said_to(samples: Samples) -> None:
    report = dataclasses.replace(samples["hot_gpu"], held=HELD, state_before="burn_in", state_after="registered")
    view = build(report, FULL)
    assert view.cautions[0].sentence.startswith("The node is neither qualified nor quarantined, and a person has to")
    assert "once the cause is gone, muster qualify sim-h100-05" in view.next_steps[0]


def test_the_circuit_breaker_stands_on_the_first_screen(samples: Samples) -> None:
    sentence = "closed: 1 of 25 nodes were withdrawn from production in the last 24 hours, and 5 may be"
    shown = render(dataclasses.replace(samples["cpu_pass"], breaker=sentence))
    for text in (shown.text, shown.html):
        words = " ".join(text.split())
        assert sentence in words
        assert words.index(sentence) < len(words) / 3


@pytest.mark.parametrize(
    ("end", "words"),
    [("busy", "in use"), ("terminated", "preempted"), ("deadline", "timed out"), ("fenced", "another run"),
     ("error", "error of the node side")],
)  # fmt: skip
def test_a_job_that_was_cut_short_is_told_on_the_first_screen(samples: Samples, end: str, words: str) -> None:
    report = samples["cpu_pass"]
    stages = (dataclasses.replace(report.stages[1], end=end), *report.stages[2:])
    (caution,) = build(dataclasses.replace(report, stages=stages), FULL).cautions
    assert caution.sentence == "Not everything ran to its end:"
    assert caution.items[0].startswith("burn_in: ")
    assert words in caution.items[0]


def test_probes_that_ended_alike_are_told_together(samples: Samples) -> None:
    stages = tuple(
        dataclasses.replace(stage, probes=tuple((f"p{n}", "timed_out", "") for n in range(8)))
        for stage in samples["cpu_pass"].stages[:1]
    )
    (caution,) = build(dataclasses.replace(samples["cpu_pass"], stages=stages), FULL).cautions
    assert caution.items == ("intake: p0, p1, p2, p3, p4, p5, … timed out",)


def test_the_first_screen_says_what_was_covered_and_by_what_it_was_judged(samples: Samples) -> None:
    view = build(samples["hot_gpu"], FULL)
    assert view.coverage == "88 of 96 required figures measured and judged (91 %)"
    assert view.judged_by == "the SKU's limits alone, no peer snapshot"
    view = build(samples["missing_gpu"], FULL)
    assert view.coverage == "37 of 42 required figures measured and judged (88 %), 4 stages not run"
    judged = tuple(
        dataclasses.replace(stage, judgement=dataclasses.replace(stage.judgement, snapshot=snapshot))
        for stage, snapshot in zip(samples["cpu_pass"].stages, ("", "s-1", "s-1", "s-2", ""), strict=True)
    )
    report = dataclasses.replace(samples["cpu_pass"], stages=judged)
    assert build(report, FULL).judged_by == "peer snapshot s-1, s-2"
    for shown in (render(report).html, render(report).text):
        assert "54 of 54 required figures measured and judged (100 %)" in shown
        assert "peer snapshot s-1, s-2" in shown


def test_a_common_cause_is_told_before_what_follows_from_it(samples: Samples) -> None:
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
        COMMON_CAUSE, "software", "fix its software", "90 %",
    )  # fmt: skip
    assert "WHAT FAILED" in render(report).text
    assert build(with_finding(report, severity=Severity.CRITICAL), FULL).next_steps[0].startswith("node: fix its")


@pytest.mark.parametrize(("confidence", "told"), [(1.0, "100 %"), (0.999, "99 %"), (0.8, "80 %"), (0.0, "0 %")])
def test_confidence_is_told_and_never_rounded_up_to_certainty(samples: Samples, confidence: float, told: str) -> None:
    report = with_finding(samples["hot_gpu"], confidence=confidence)
    assert {finding.confidence for finding in build(report, FULL).findings} == {told}
    assert f"inspect (confidence {told})" in render(report).text


def test_a_full_pass_has_nothing_to_warn_of(samples: Samples) -> None:
    assert build(samples["cpu_pass"], FULL).cautions == ()


def test_a_stage_that_required_nothing_is_said_to_prove_nothing(samples: Samples) -> None:
    report = samples["cpu_pass"]
    bare = dataclasses.replace(report.stages[0].judgement, coverage=Coverage(0, 0, 0))
    report = dataclasses.replace(report, stages=(dataclasses.replace(report.stages[0], judgement=bare),))
    assert "so nothing is proven by it" in build(report, FULL).cautions[0].sentence


def test_a_forced_run_without_a_reason_is_still_shown_as_forced(samples: Samples) -> None:
    view = build(dataclasses.replace(samples["cpu_pass"], forced=""), FULL)
    assert "no reason given" in view.cautions[0].sentence


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
