"""Runs of a noisy test: two failures fail, passes clear, every run is listed, and no repeat excuses a wrong bit."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import Action, Extent, Judgement, Lack, Severity, Verdict
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.skus import lint_sku, load_sku
from muster_criteria.stage.retests import arranged, repeated_rows
from muster_criteria.stage.sprt import decide
from tests.muster_criteria.nodes import Case, MakeCase

SKU = "h100-sxm-8"
GOOD, JUST_GOOD, JUST_BAD, BAD = 475.0, 430.0, 429.999, 400.0
"""GB/s, around the floor of 430."""


def busbw(case: MakeCase, value: float) -> Case:
    return case("performance", SKU, "short").add(
        "nccl_tests", "nccl_busbw", "node", value, "GB/s", labels={"op": "all_reduce", "nvls": "on"}
    )


def runs(*values: float, metric: str = "nccl_busbw", unit: str = "GB/s", **labels: str) -> pd.DataFrame:
    """Readings of other runs, in order."""

    def one(number: int, value: float) -> pd.DataFrame:
        measured = Measured(probe="nccl_tests", metric=metric, device="node", unit=unit, value=value,
                        labels=labels or {"op": "all_reduce", "nvls": "on"})  # fmt: skip
        return readings_of(
            [measured], node="node-1", at=float(number) - 1e3, run=f"run-{number}", sku=SKU, environment={}
        )

    return together([one(number, value) for number, value in enumerate(values)])


def judged(case: MakeCase, *values: float, references: References | None = None) -> Judgement:
    """The last value is this result's; those before are other runs."""
    *others, last = values
    return busbw(case, last).judge(repeats=runs(*others) if others else None, references=references)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([JUST_GOOD], Verdict.PASS),
        ([JUST_BAD], Verdict.INCONCLUSIVE),
        ([BAD, JUST_BAD], Verdict.FAIL),
        ([BAD, JUST_GOOD], Verdict.INCONCLUSIVE),
        ([BAD, *[GOOD] * 3, BAD], Verdict.FAIL),
        ([BAD, *[GOOD] * 4, BAD], Verdict.INCONCLUSIVE),
        ([BAD, *[GOOD] * 20], Verdict.INCONCLUSIVE),
        ([BAD, *[GOOD] * 21], Verdict.WARN),
        ([*[GOOD] * 8, BAD], Verdict.INCONCLUSIVE),
        ([*[GOOD] * 3, BAD, BAD], Verdict.FAIL),
        ([*[GOOD] * 4, BAD, BAD], Verdict.INCONCLUSIVE),
        ([*[GOOD] * 9, BAD], Verdict.INCONCLUSIVE),
        ([*[GOOD] * 9, BAD, BAD], Verdict.FAIL),
        ([*[GOOD] * 9, BAD, *[GOOD] * 21], Verdict.WARN),
        ([BAD, *[GOOD] * 25], Verdict.WARN),
        ([BAD, *[GOOD] * 21, BAD], Verdict.INCONCLUSIVE),
        ([BAD, *[GOOD] * 21, BAD, BAD], Verdict.FAIL),
    ],
)
def test_each_boundary_just_inside_and_just_outside(
    case: MakeCase, references: References, values: list[float], verdict: Verdict
) -> None:
    judgement = judged(case, *values, references=references)
    assert judgement.verdict is verdict
    assert judgement.repeat == (("nccl_tests",) if verdict is Verdict.INCONCLUSIVE else ())


@pytest.mark.parametrize(("passes", "decision"), [(3, "fail"), (4, "repeat")])
def test_after_a_clearance_the_test_begins_again_with_nothing_known(passes: int, decision: str) -> None:
    assert decide([*[False] * 9, True, *[False] * passes, True]) == decision
    assert decide([*[False] * 17, True]) == "repeat"
    assert decide([False] * 18) == "clear"


@pytest.mark.parametrize(("value", "codes"), [(475.0, []), (475.1, ["ceiling.retest"])])
def test_a_noisy_figure_above_its_ceiling_is_weighed_too(
    case: MakeCase, make_limit: Callable[..., Limit], value: float, codes: list[str]
) -> None:
    made = busbw(case, value)
    ceiling = make_limit(metric="nccl_busbw", device="node", unit="GB/s", ceiling=475.0)
    made.sku = made.sku.model_copy(update={"limits": (*made.sku.limits, ceiling)})
    assert [each.code for each in made.judge().findings] == codes


def test_an_undecided_test_is_asked_for_again_and_counts_as_not_measured(case: MakeCase) -> None:
    judgement = judged(case, BAD)
    (finding,) = judgement.findings
    assert (finding.severity, finding.action, finding.code) == (Severity.WARNING, Action.RETEST, "floor.retest")
    assert [gap.code for gap in judgement.coverage.missing] == [Lack.UNDECIDED]


@pytest.mark.parametrize("values", [[BAD, 471.0, JUST_BAD], [BAD, *[471.0] * 21]])
def test_every_run_is_listed_whatever_the_decision(case: MakeCase, values: list[float]) -> None:
    (finding,) = judged(case, *values).findings
    listed = finding.observed.split("runs failed: ")[1].split(", ")
    assert len(listed) == len(values)
    assert [each.endswith("(failed)") for each in listed] == [value < JUST_GOOD for value in values]
    assert listed[1].startswith("471 GB/s")


@pytest.mark.parametrize("values", [[BAD, JUST_BAD, GOOD], [GOOD, BAD, JUST_BAD], [BAD, GOOD, JUST_BAD]])
def test_a_waiver_would_cover_the_worst_run_whichever_is_last(case: MakeCase, values: list[float]) -> None:
    (finding,) = [each for each in judged(case, *values).findings if each.severity is Severity.CRITICAL]
    assert finding.extent == Extent(BAD, "GB/s", "lower")


def test_a_cleared_test_stays_a_warning(case: MakeCase) -> None:
    (finding,) = judged(case, BAD, *[GOOD] * 21).findings
    assert (finding.severity, finding.action, finding.code) == (Severity.WARNING, Action.NONE, "floor.cleared")


def test_a_test_that_never_comes_to_an_end_is_left_to_a_person(case: MakeCase) -> None:
    undecided = [BAD, *[GOOD] * 12] * 4
    assert judged(case, *undecided[:44]).repeat == ("nccl_tests",)
    judgement = judged(case, *undecided[:45])
    assert (judgement.verdict, judgement.repeat) == (Verdict.INCONCLUSIVE, ())
    judgement = judged(case, *[BAD, *[GOOD] * 21] * 2, BAD)
    assert (judgement.verdict, judgement.repeat) == (Verdict.INCONCLUSIVE, ())


def test_a_corrupted_bit_fails_at_once_whatever_other_runs_say(case: MakeCase) -> None:
    wrong = busbw(case, GOOD).add("nccl_tests", "nccl_mismatches", "node", 1.0, "count", labels={"op": "all_reduce"})
    judgement = wrong.judge(repeats=runs(*[0.0] * 30, metric="nccl_mismatches", unit="count"))
    assert (judgement.verdict, judgement.repeat) == (Verdict.FAIL, ())


def test_no_repeat_undoes_part_to_part_variation(case: MakeCase) -> None:
    slow = case("performance", SKU, "short").set("gemm_rate", "gpu3", value=500.0, dtype="bf16")
    measured = runs(*[740.0] * 30, metric="gemm_rate", unit="TFLOPS", dtype="bf16")
    measured["device"] = pd.Series(["gpu3"] * 30, dtype="category")
    assert slow.judge(repeats=measured).verdict is Verdict.FAIL


def test_a_programme_may_not_repeat_what_varies_by_part() -> None:
    sku = load_sku(SKU)
    assert lint_sku(SKU) == []
    from muster_criteria.sku_files.lint import problems_of

    stage = sku.programme.stages["performance"]
    use = stage.probes["gemm_rate"].model_copy(update={"sequential": True})
    plan = stage.model_copy(update={"probes": {**stage.probes, "gemm_rate": use}})
    programme = sku.programme.model_copy(update={"stages": {**sku.programme.stages, "performance": plan}})
    found = problems_of(sku.model_copy(update={"programme": programme}))
    assert {each.code for each in found} == {"sequential-varied"}


def test_a_run_in_another_unit_or_of_another_device_is_no_repeat(case: MakeCase) -> None:
    assert busbw(case, BAD).judge(repeats=runs(BAD, unit="MB/s")).verdict is Verdict.INCONCLUSIVE
    assert busbw(case, BAD).judge(repeats=runs(BAD, op="all_gather")).verdict is Verdict.INCONCLUSIVE


def test_the_order_of_devices_and_rows_of_other_runs_changes_nothing(case: MakeCase) -> None:
    other = runs(*[BAD] * 3, op="all_gather")
    measured = runs(BAD, GOOD)
    assert busbw(case, GOOD).judge(repeats=together([measured, other])) == busbw(case, GOOD).judge(
        repeats=together([other, measured])
    )


def result(case: MakeCase, whole: bool = True) -> StageResult:
    made = busbw(case, GOOD)
    if not whole:
        made.raw["repeat"] = True
    return made.result()


def test_a_stage_is_judged_by_its_last_whole_result_and_the_others_are_repeats(case: MakeCase) -> None:
    first, again, second = result(case), result(case, whole=False), result(case)
    assert arranged([], first) == (first, ())
    base, others = arranged([(Verdict.INCONCLUSIVE, first)], again)
    assert base is first
    assert others == (again,)
    base, others = arranged([(Verdict.INCONCLUSIVE, first), (Verdict.INCONCLUSIVE, again)], second)
    assert base is second
    kept = again.model_copy(update={"repeat": False})
    assert others == (first, kept), "a failure that was seen is not forgotten by measuring all again"
    assert arranged([(Verdict.FAIL, first)], second) == (second, ()), "after a verdict, and a Clear, it begins afresh"
    assert arranged([(Verdict.WARN, first)], again)[1] == (again,), "the fleet asks for a second reading after a WARN"


LINK = {"test": "host_to_device_memcpy_ce"}
"""Of nvbandwidth, whose floor is 45.9 GB/s."""


def link(case: MakeCase, value: float | None) -> Case:
    """A whole result with nvbandwidth's rate of one GPU, or without nvbandwidth."""
    made = case("performance", SKU, "short")
    if value is None:
        return made.end("nvbandwidth", "skipped", "nvbandwidth is not installed")
    return made.add("nvbandwidth", "nvbandwidth_rate", "gpu3", value, "GB/s", labels=LINK)


def after(case: MakeCase, last: float | None, *before: float) -> Judgement:
    """The last whole result, judged with those before it."""
    sku = load_sku(SKU)
    others = [link(case, value).result() for value in before]
    measured = [
        readings_of(repeated_rows(each, sku), node="node-1", at=float(number) - 1e3, run=f"run-{number}",
                    sku=SKU, environment={})
        for number, each in enumerate(others)
    ]  # fmt: skip
    return link(case, last).judge(repeats=together(measured), others=others)


def links(judgement: Judgement) -> list[str]:
    return [each.observed for each in judgement.findings if each.metric == "nvbandwidth_rate"]


def test_a_failure_is_not_forgotten_because_the_next_run_did_not_measure_it(case: MakeCase) -> None:
    judgement = after(case, None, 45.899)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.repeat == ("nvbandwidth",)
    assert links(judgement) == ["45.899 GB/s; 1 of 1 runs failed: 45.9 GB/s (failed)"]


def test_what_only_earlier_runs_measured_and_was_well_is_not_asked_for(case: MakeCase) -> None:
    judgement = after(case, None, 45.9)
    assert not links(judgement)
    assert judgement.repeat == ()


def test_all_runs_are_weighed_and_listed_whichever_result_is_judged(case: MakeCase) -> None:
    (observed,) = links(after(case, None, 30.0, 51.0))
    assert observed.endswith("1 of 2 runs failed: 30 GB/s (failed), 51 GB/s")
    assert after(case, None, 30.0, 51.0).verdict is Verdict.INCONCLUSIVE

    failed = after(case, None, 30.0, 51.0, 31.0)
    assert failed.verdict is Verdict.FAIL
    (observed,) = links(failed)
    assert observed.endswith("2 of 3 runs failed: 30 GB/s (failed), 51 GB/s, 31 GB/s (failed)")

    cleared = after(case, None, 30.0, *[51.0] * 21)
    assert cleared.repeat == ()
    (finding,) = (each for each in cleared.findings if each.metric == "nvbandwidth_rate")
    assert (finding.severity, finding.action) == (Severity.WARNING, Action.NONE)


def test_a_failure_is_not_forgotten_because_the_next_run_reported_it_in_another_unit(case: MakeCase) -> None:
    others = [link(case, 30.0).result()]
    measured = readings_of(repeated_rows(others[0], load_sku(SKU)), node="node-1", at=0.0, run="run", sku=SKU,
                       environment={})  # fmt: skip
    again = case("performance", SKU, "short").add("nvbandwidth", "nvbandwidth_rate", "gpu3", 51e3, "MB/s", labels=LINK)
    judgement = again.judge(repeats=measured, others=others)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.repeat == ("nvbandwidth",)
