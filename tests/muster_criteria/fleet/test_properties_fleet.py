"""What must hold with references frozen, for any result of a SKU: worse is never better, less is never well, order is
nothing, units are checked, and nonsense neither raises nor passes.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.readings import DAY_S
from muster_criteria.measured import BadResult, parse_result
from muster_criteria.model import Judgement, Lack, Severity, Verdict
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge
from tests.muster_criteria.conftest import DAY
from tests.muster_criteria.nodes import Case, MakeCase
from tests.muster_criteria.violations import violations
from tests.support.examples import examples

SEEDS = st.integers(0, 2**32)
GRAVITY = [None, Severity.WARNING, Severity.CRITICAL]
NOT_WELL = (Verdict.INCONCLUSIVE, Verdict.FAIL)
NONSENSE = [None, float("nan"), float("inf"), float("-inf"), -1.0, 1e18, -1e18, 5e-324, True, "12", [], {}]
NOTHING = [None, float("nan"), float("inf"), float("-inf"), "12", [], {}]
HOURS = st.floats(0.0, 24.0 * 365.0)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def judged(spoilt: Case, references: References) -> Judgement:
    """As the controller does it: a result that cannot be read is no result."""
    stage, level = spoilt.raw["stage"], spoilt.raw["level"]
    try:
        result = parse_result(json.dumps(spoilt.raw).encode())
    except BadResult as error:
        return judge(JudgeCase(spoilt.sku, stage, level, why_missing=str(error)))
    return judge(JudgeCase(spoilt.sku, stage, level, result, references=references), evaluate=violations)


def compared(spoilt: Case) -> list[dict[str, Any]]:
    """The measurements of GPUs that the fleet judges and that have a size: zero times anything is zero."""
    metrics = {(each.metric, each.unit) for each in spoilt.sku.programme.compare if each.judged}
    gpus = [row for row in spoilt.raw["measurements"] if row["device"].startswith("gpu") and row["value"]]
    return [row for row in gpus if (row["metric"], row["unit"]) in metrics]


def noisy(spoilt: Case, dice: random.Random, spread: float = 0.01) -> Case:
    """Every figure that the fleet judges a little off, as on a real node."""
    for row in compared(spoilt):
        row["value"] *= 1.0 + dice.gauss(0.0, spread)
    return spoilt


def gravest(judgement: Judgement, device: str) -> int:
    found = [each.severity for each in judgement.findings if each.device == device]
    return max((GRAVITY.index(each) for each in found), default=0)


@examples(8)
@given(seed=SEEDS, steps=st.lists(st.floats(0.0, 0.2), min_size=2, max_size=4))
def test_worsening_a_devices_own_metric_never_improves_its_verdict(
    case: MakeCase, references: References, seed: int, steps: list[float]
) -> None:
    dice = random.Random(seed)
    spoilt = noisy(case("performance"), dice)
    row = dice.choice(compared(spoilt))
    worse = next(each.worse for each in spoilt.sku.programme.compare if each.metric == row["metric"])
    before = gravest(judged(spoilt, references), row["device"])
    for step in steps:
        row["value"] *= 1.0 + step if worse == "higher" else 1.0 - step
        after = gravest(judged(spoilt, references), row["device"])
        assert after >= before
        before = after


@examples(8)
@given(seed=SEEDS, how_many=st.integers(1, 3))
def test_removing_measurements_never_does_well_and_never_deletes_a_fail(
    case: MakeCase, references: References, seed: int, how_many: int
) -> None:
    dice = random.Random(seed)
    spoilt = noisy(case("performance"), dice, 0.002)
    bad = dice.choice(compared(spoilt))
    worse = next(each.worse for each in spoilt.sku.programme.compare if each.metric == bad["metric"])
    bad["value"] *= 1.4 if worse == "higher" else 0.6
    assert judged(spoilt, references).verdict is Verdict.FAIL

    others = [row for row in compared(spoilt) if row is not bad]
    gone = {id(row) for row in dice.sample(others, how_many)}
    spoilt.raw["measurements"] = [row for row in spoilt.raw["measurements"] if id(row) not in gone]
    assert judged(spoilt, references).verdict is Verdict.FAIL

    spoilt.raw["measurements"] = [row for row in spoilt.raw["measurements"] if row is not bad]
    assert judged(spoilt, references).verdict in NOT_WELL


@examples(5)
@given(seed=SEEDS, hours=HOURS)
def test_delaying_a_result_makes_nothing_of_it_better(
    case: MakeCase, references: References, seed: int, hours: float
) -> None:
    """It is judged by what was measured: an older time neither clears nor fails it."""
    dice = random.Random(seed)
    spoilt = noisy(case("performance"), dice, dice.choice([0.002, 0.03]))
    for moment in ("started_at", "ended_at"):
        spoilt.raw[moment] = DAY * DAY_S
    late = copy.deepcopy(spoilt)
    late.raw["started_at"] -= 3600.0 * hours
    for end in late.raw["probes"]:
        end["started_at"] = max(0.0, late.raw["started_at"])

    assert judged(late, references) == judged(spoilt, references)


@examples(5)
@given(seed=SEEDS)
def test_the_order_of_measurements_changes_nothing(case: MakeCase, references: References, seed: int) -> None:
    dice = random.Random(seed)
    spoilt = noisy(case("performance"), dice, 0.03)
    straight = judged(spoilt, references)
    dice.shuffle(spoilt.raw["measurements"])
    dice.shuffle(spoilt.raw["probes"])

    assert judged(spoilt, references) == straight


@examples(8)
@given(seed=SEEDS, unit=st.sampled_from(["GFLOPS", "MB/s", "GiB/s", "%", "count", "W", "1"]))
def test_a_figure_in_another_unit_never_passes(case: MakeCase, references: References, seed: int, unit: str) -> None:
    """Neither as it is nor converted: a unit that is not the judge's own is a measurement that was not taken."""
    dice = random.Random(seed)
    spoilt = case("performance")
    limits = {(limit.metric, limit.device): limit.unit for limit in spoilt.sku.all_limits}
    row = dice.choice([each for each in compared(spoilt) if limits.get((each["metric"], "gpu"), unit) != unit])
    row["unit"] = unit

    assert judged(spoilt, references).verdict not in (Verdict.PASS, Verdict.WARN)


@examples(15)
@given(seed=SEEDS, odd=st.sampled_from(NONSENSE), how_many=st.integers(1, 6))
def test_nonsense_anywhere_never_raises(
    case: MakeCase, references: References, seed: int, odd: Any, how_many: int
) -> None:
    dice = random.Random(seed)
    spoilt = case("performance")
    for row in dice.sample(spoilt.raw["measurements"], how_many):
        row[dice.choice(sorted(row))] = odd

    judgement = judged(spoilt, references)

    assert judgement.reason.endswith(".")
    assert Lack.JUDGE_FAILED not in {gap.code for gap in judgement.coverage.missing}


@examples(10)
@given(seed=SEEDS, nothing=st.sampled_from(NOTHING), how=st.sampled_from(["nothing", "twice", "gone", "absurd"]))
def test_a_required_figure_that_says_nothing_never_passes(
    case: MakeCase, references: References, seed: int, nothing: Any, how: str
) -> None:
    dice = random.Random(seed)
    spoilt = case("performance")
    row = dice.choice(compared(spoilt))
    if how == "nothing":
        row["value"] = nothing
    elif how == "twice":
        spoilt.raw["measurements"].append(dict(row, value=row["value"] * 1.001))
    elif how == "gone":
        spoilt.raw["measurements"].remove(row)
    else:
        row["value"] = dice.choice([-1e18, 1e18])

    assert judged(spoilt, references).verdict in NOT_WELL
