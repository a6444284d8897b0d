"""Second readings: which probes are repeated, when, and what the repeat changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.readings import readings_of
from muster_criteria.measured import StageResult
from muster_criteria.model import Action, FaultClass, Judgement, Lack, Severity, Variant, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import watching
from muster_criteria.stage.retests import repeatable, repeated_rows
from tests.muster_criteria.nodes import Case, MakeCase


def slowed(made: Case, share: float, metric: str = "memory_bandwidth", device: str = "gpu3") -> Case:
    for row in made.rows(metric, device):
        row["value"] *= 1.0 - share
    return made


def alone(made: Case, probe: str) -> StageResult:
    """A repeat: what one probe gives, and those that watch its load."""
    kept = {probe, *watching(made.sku, made.raw["stage"], made.raw["level"])}
    for key in ("probes", "measurements"):
        made.raw[key] = [each for each in made.raw[key] if each["probe"] in kept]
    made.raw["repeat"] = True
    return made.result()


def judged(made: Case, references: References, sku: Sku, *repeats: StageResult, **more: Any) -> Judgement:
    expected = [
        readings_of(repeated_rows(each, sku), node="node-1", at=float(number), run=f"again-{number}", sku=sku.name,
                    environment=each.environment)
        for number, each in enumerate(repeats)
    ]  # fmt: skip
    if expected:
        references = dataclasses.replace(references, repeats=expected[0])
        more |= {"repeats": expected[0], "others": repeats}
    return made.judge(references=references, **more)


def test_an_outlier_asks_for_the_probe_once_more(case: MakeCase, references: References, h100: Sku) -> None:
    judgement = judged(slowed(case("performance"), 0.029), references, h100)
    assert judgement.verdict is Verdict.WARN
    assert judgement.repeat == ("memory_bandwidth",)
    assert {(each.device, each.action, each.variant) for each in judgement.findings} == {
        ("gpu3", Action.RETEST, Variant.RETEST)
    }


def test_a_second_reading_is_the_last_that_is_asked_for_and_both_are_reported(
    case: MakeCase, references: References, h100: Sku
) -> None:
    again = alone(case("performance"), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.029), references, h100, again)
    assert judgement.verdict is Verdict.WARN
    assert judgement.repeat == ()
    assert {(each.action, each.variant) for each in judgement.findings} == {(Action.NONE, Variant.CLEARED)}
    first = {each.device: each.value for each in judgement.observations if each.labels == (("op", "copy"),)}
    expected = next(each for each in judgement.findings if each.labels == (("op", "copy"),))
    assert "2 runs: " in expected.observed
    assert f"{first['gpu3']:.0f}"[:3] in expected.observed.replace(",", "").split("2 runs: ")[1]


def test_an_outlier_seen_twice_within_the_threshold_stays_a_warning(
    case: MakeCase, references: References, h100: Sku
) -> None:
    again = alone(slowed(case("performance"), 0.028), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.029), references, h100, again)
    assert judgement.verdict is Verdict.WARN
    assert judgement.repeat == ()
    doubts = [each for each in judgement.findings if each.action is Action.RETEST]
    assert doubts
    assert {each.variant for each in doubts} == {Variant.PERSISTENT}


def test_two_readings_alike_fail_and_point_at_the_measurements(
    case: MakeCase, references: References, h100: Sku
) -> None:
    again = alone(slowed(case("performance"), 0.046), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.045), references, h100, again)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.repeat == ()
    critical = [each for each in judgement.findings if each.severity is Severity.CRITICAL]
    assert {each.device for each in critical} == {"gpu3"}
    assert all("2 runs: " in each.observed for each in critical)


def test_part_to_part_variation_is_not_measured_again(case: MakeCase, references: References, h100: Sku) -> None:
    made = case("performance")
    for metric in ("gemm_rate", "gemm_clock"):
        slowed(made, 0.09, metric)
    judgement = judged(made.limited(), dataclasses.replace(references, history=None), h100)
    expected = [each for each in judgement.findings if each.metric == "gemm_rate"]
    assert expected
    for each in expected:
        assert each.severity is Severity.WARNING
        assert each.action is Action.INSPECT
        assert each.variant is Variant.RARE
    assert judgement.repeat == ()


def test_common_part_to_part_variation_is_no_finding(case: MakeCase, references: References, h100: Sku) -> None:
    """3.5 robust σ among eight siblings are common: a warning for each would be noise."""
    made = case("performance")
    for metric in ("gemm_rate", "gemm_clock"):
        slowed(made, 0.06, metric)
    assert not judged(made.limited(), dataclasses.replace(references, history=None), h100).findings


def test_only_what_the_programme_names_is_run_again(case: MakeCase, references: References, h100: Sku) -> None:
    plan = h100.programme.stages["performance"]
    use = plan.probes["memory_bandwidth"].model_copy(update={"retest": ()})
    stages = {
        **h100.programme.stages,
        "performance": plan.model_copy(update={"probes": {**plan.probes, "memory_bandwidth": use}}),
    }
    strict = h100.model_copy(update={"programme": h100.programme.model_copy(update={"stages": stages})})
    made = slowed(case("performance"), 0.029)
    judgement = judged(dataclasses.replace(made, sku=strict), references, strict)
    assert judgement.verdict is Verdict.WARN
    assert judgement.repeat == ()


def test_a_bit_that_only_the_repeat_got_wrong_fails(case: MakeCase, references: References, h100: Sku) -> None:
    wrong = case("performance")
    for row in wrong.rows("transfer_mismatches", "gpu5"):
        row["value"] = 1.0
    made = slowed(case("performance"), 0.028, "pcie_bandwidth")
    judgement = judged(made, references, h100, alone(wrong, "transfers"))
    assert judgement.verdict is Verdict.FAIL
    critical = [each for each in judgement.findings if each.severity is Severity.CRITICAL]
    assert {(each.metric, each.device) for each in critical} == {("transfer_mismatches", "gpu5")}
    assert all(each.observed.endswith("(in a repeat)") for each in critical)


def test_what_a_repeat_cannot_have_measured_is_said(case: MakeCase, references: References, h100: Sku) -> None:
    again = alone(case("performance").set("memory_bandwidth", "gpu5", value=1e5), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.029), references, h100, again)
    found = {(each.device, each.severity) for each in judgement.findings if each.fault_class is FaultClass.SOFTWARE}
    assert found == {("gpu5", Severity.WARNING)}


def test_a_second_reading_that_is_invalid_decides_nothing(case: MakeCase, references: References, h100: Sku) -> None:
    again = alone(case("performance").set("memory_bandwidth", "gpu3", value=1e6), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.029), references, h100, again)
    assert (judgement.verdict, judgement.repeat) == (Verdict.INCONCLUSIVE, ())
    assert [(gap.code, gap.what) for gap in judgement.coverage.missing] == [(Lack.INVALID, "memory_bandwidth")]


def test_a_warning_of_the_judged_run_hides_no_failure_of_the_repeat(
    case: MakeCase, references: References, h100: Sku
) -> None:
    """A calibration gives a metric two floors, one that warns and a lower one that fails."""
    (floor, *_) = [each for each in h100.limits if each.metric == "memory_bandwidth" and each.key == "floor"]
    warns = floor.model_copy(update={"breach": "warn"})
    fails = floor.model_copy(update={"value": 0.95 * float(floor.value)})
    sku = h100.model_copy(update={"limits": (*(each for each in h100.limits if each is not floor), warns, fails)})
    made, again = case("performance"), case("performance")
    for taken, share in ((made, 0.98), (again, 0.90)):
        for row in taken.rows("memory_bandwidth", "gpu5"):
            if dict(row["labels"]) == dict(floor.labels):
                row["value"] = share * float(floor.value)
    first = dataclasses.replace(made, sku=sku)
    judgement = judged(first, references, sku, alone(again, "memory_bandwidth"))
    critical = {(each.device, each.rule) for each in judgement.findings if each.severity is Severity.CRITICAL}
    assert ("gpu5", "floor") in critical
    assert ("gpu5", "floor") not in {
        (each.device, each.rule)
        for each in judged(first, references, sku).findings
        if each.severity is Severity.CRITICAL
    }


def test_a_probe_that_did_not_end_in_the_repeat_says_nothing(case: MakeCase, h100: Sku) -> None:
    cut = case("performance")
    for end in cut.raw["probes"]:
        if end["probe"] == "memory_bandwidth":
            end |= {"status": "crashed", "reason": "it crashed"}
    assert repeated_rows(alone(cut, "memory_bandwidth"), h100) == []


@pytest.mark.parametrize(
    ("level", "stages"),
    [
        ("short", {"burn_in": {"gpu_burn"}, "thermal": {"thermal_soak"}}),
        ("standard", {"burn_in": set(), "thermal": {"thermal_soak"}}),
        ("long", {"burn_in": set(), "thermal": set()}),
    ],
)
def test_hours_of_load_are_not_repeated(level: str, stages: Mapping[str, set[str]], h100: Sku) -> None:
    for stage, probes in stages.items():
        assert set(repeatable(h100, stage, level)) == probes
    assert {"gemm_rate", "memory_bandwidth", "transfers"} <= set(repeatable(h100, "performance", level))
