"""Silent data corruption: which findings make a suspect, what reruns say of them, and memory that was not tested."""

from __future__ import annotations

import dataclasses

import pytest

from muster_criteria.context.suspicion import confirmed, makes_suspect
from muster_criteria.model import Action, Finding, Severity, Variant, Verdict
from tests.muster_criteria.nodes import Case, MakeCase

LABELS = {"dtype": "bf16"}


def corrupted(case: MakeCase, **on: tuple[int, int]) -> Case:
    """gpu5 was wrong four times; ``on``: wrong reruns and all reruns, by device."""
    made = case("integrity").set("gemm_mismatches", "gpu5", value=4.0, **LABELS)
    for device, (wrong, runs) in on.items():
        labels = {**LABELS, "on": device}
        made.add("exact_gemm", "gemm_rerun", "gpu5", float(wrong), "count", labels=labels, samples=runs)
    return made


def finding(made: Case) -> Finding:
    judgement = made.judge()
    assert judgement.verdict is Verdict.FAIL, "one wrong bit fails the stage, confirmed or not"
    (only,) = judgement.findings
    return only


@pytest.mark.parametrize(
    ("on", "variant", "action"),
    [
        ({"gpu5": (10, 10), "gpu6": (0, 2), "gpu7": (0, 2)}, Variant.CONFIRMED, Action.RMA),
        ({"gpu5": (0, 10), "gpu6": (0, 2), "gpu7": (0, 2)}, Variant.UNCONFIRMED, Action.RETEST),
        ({"gpu5": (10, 10), "gpu6": (0, 2)}, Variant.UNCONFIRMED, Action.RETEST),
        ({"gpu5": (10, 10), "gpu6": (2, 2), "gpu7": (0, 2)}, Variant.UNCONFIRMED, Action.RETEST),
    ],
    ids=["confirmed", "intermittent", "too few siblings", "siblings wrong too"],
)
def test_a_finding_says_whether_it_is_confirmed_and_by_whom(
    case: MakeCase, on: dict[str, tuple[int, int]], variant: Variant, action: Action
) -> None:
    found = finding(corrupted(case, **on))
    assert (found.variant, found.action) == (variant, action)
    assert makes_suspect(found)


def test_memory_behind_the_host_has_no_siblings_and_is_confirmed_by_itself(case: MakeCase) -> None:
    made = case("integrity", "cpu-generic").set("memory_mismatches", "memory", value=1.0, pattern="random")
    labels = {"pattern": "random", "on": "cpu1"}
    made.add("memory_pattern", "memory_rerun", "memory", 3.0, "count", labels=labels, samples=3)
    assert finding(made).variant is Variant.CONFIRMED


def test_reruns_of_another_format_say_nothing(case: MakeCase) -> None:
    made = corrupted(case, gpu5=(10, 10), gpu6=(0, 2), gpu7=(0, 2))
    for row in made.rows("gemm_rerun"):
        row["labels"]["dtype"] = "fp64"
    assert finding(made).variant is Variant.UNCONFIRMED


def test_a_rerun_that_does_not_say_where_it_ran_says_nothing(case: MakeCase) -> None:
    made = corrupted(case, gpu5=(10, 10), gpu6=(0, 2), gpu7=(0, 2))
    del next(made.rows("gemm_rerun"))["labels"]["on"]
    assert finding(made).variant is Variant.UNCONFIRMED


@pytest.mark.parametrize(
    ("sku", "stage", "metric", "device"),
    [
        ("h100-sxm-8", "integrity", "gemm_mismatches", "gpu5"),
        ("h100-sxm-8", "integrity", "memory_mismatches", "gpu5"),
        ("h100-sxm-8", "integrity", "transfer_mismatches", "gpu5"),
        ("h100-sxm-8", "burn_in", "memory_burn_mismatches", "memory"),
        ("h100-sxm-8", "performance", "disk_mismatches", "disk:scratch"),
        ("cpu-generic", "integrity", "round_trip_mismatches", "cpu1"),
    ],
)
def test_no_part_is_replaced_for_what_no_rerun_confirms(
    case: MakeCase, sku: str, stage: str, metric: str, device: str
) -> None:
    made = case(stage, sku).set(metric, device, value=1.0)
    findings = [each for each in made.judge().findings if each.metric == metric]
    assert findings
    assert {(each.variant, each.action) for each in findings} == {(Variant.UNCONFIRMED, Action.RETEST)}


def test_a_copy_that_is_wrong_again_at_either_end_names_neither(case: MakeCase) -> None:
    made = case("integrity")
    for gpu in ("gpu1", "gpu2"):
        made.set("transfer_mismatches", gpu, value=1.0, direction="peer")
        for on, wrong in (("gpu1", 3.0), ("gpu2", 3.0), ("gpu3", 0.0), ("gpu4", 0.0)):
            labels = {"direction": "peer", "on": on}
            made.add("transfers", "transfer_rerun", gpu, wrong, "count", labels=labels, samples=3)
    assert {(each.device, each.variant, each.action) for each in made.judge().findings} == {
        (gpu, Variant.UNCONFIRMED, Action.RETEST) for gpu in ("gpu1", "gpu2")
    }


def test_only_corruption_that_fails_a_part_makes_a_suspect(case: MakeCase) -> None:
    found = finding(corrupted(case, gpu5=(1, 10)))
    for harmless in (
        {"severity": Severity.WARNING},
        {"metric": "gemm_rate"},
        {"device": "node"},
        {"action": Action.FIX_SOFTWARE},
        {"rule": "common_cause"},
    ):
        assert not makes_suspect(dataclasses.replace(found, **harmless)), harmless


def test_a_warning_of_corruption_is_left_as_it_is(case: MakeCase) -> None:
    warned = dataclasses.replace(finding(corrupted(case)), severity=Severity.WARNING, variant=Variant.PLAIN)
    assert confirmed([warned], []) == [warned]


@pytest.mark.parametrize(
    ("metric", "value"),
    [("memory_coverage", 80.0), ("memory_tested", 2.0)],
    ids=["of what was free", "of all, most of which something else holds"],
)
def test_untested_memory_passes_no_gpu(case: MakeCase, metric: str, value: float) -> None:
    judgement = case("integrity").set(metric, "gpu2", value=value).judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert [(each.code, each.metric, each.device) for each in judgement.findings] == [("floor", metric, "gpu2")]


def test_without_the_size_of_the_memory_none_of_it_counts_as_tested(case: MakeCase) -> None:
    judgement = case("integrity").drop("hbm_total", "gpu2").judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert [(gap.what, gap.device) for gap in judgement.coverage.missing] == [("hbm_total", "gpu2")]


def test_a_pass_on_rounded_products_says_so(case: MakeCase) -> None:
    made = case("integrity")
    for row in made.rows("gemm_accumulator", dtype="bf16"):
        row |= {"text": None, "note": "rounded to bfloat16"}
    judgement = made.judge()
    assert judgement.verdict is Verdict.PASS
    (note,) = judgement.notes
    assert "rounded to bfloat16" in note


def test_a_wrong_bit_in_the_tested_rest_fails_the_gpu(case: MakeCase) -> None:
    made = case("integrity").set("memory_coverage", "gpu2", value=80.0)
    judgement = made.set("memory_mismatches", "gpu2", value=1.0, pattern="random").judge()
    assert judgement.verdict is Verdict.FAIL
