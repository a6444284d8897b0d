"""What holds for any result: the judge never raises, never passes on incomplete data, and a worse value never helps.

Rules are evaluated directly; test_suite shows that Great Expectations finds the same. The slow suite draws more.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.devices import kind_of
from muster_criteria.kinds.kind import Times
from muster_criteria.measured import BadResult
from muster_criteria.model import FaultClass, Judgement, Lack, Verdict
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.skus import list_skus
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge, judge_all
from muster_criteria.stages import STAGES
from tests.muster_criteria.nodes import Case, MakeCase, healthy_raw, shipped
from tests.muster_criteria.violations import violations
from tests.support.examples import examples

GRAVITY = [Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL, Verdict.INCONCLUSIVE, Verdict.FAIL]
WHERE = st.tuples(st.sampled_from(STAGES), st.sampled_from(["cpu-generic", "h100-sxm-8"]))
SEEDS = st.integers(0, 2**32)
ODD = st.sampled_from(
    [
        None,
        float("nan"),
        float("inf"),
        float("-inf"),
        -1.0,
        0.0,
        1e18,
        -1e18,
        1e308,
        5e-324,
        True,
        "",
        "0",
        "x" * 2000,
        [],
        {},
    ]
)

EXAMPLES = 10

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def verdict_of(altered: Case) -> Judgement:
    """As the controller does it: a result that cannot be read is no result."""
    try:
        result = altered.result()
    except BadResult as error:
        return judge(JudgeCase(altered.sku, altered.raw["stage"], altered.raw["level"], why_missing=str(error)))
    return judge(JudgeCase(altered.sku, altered.raw["stage"], altered.raw["level"], result), evaluate=violations)


def required_rows(altered: Case) -> list[dict[str, Any]]:
    """All rows of a healthy case but what the inventory adds outside of intake; every one of them is required."""
    return [
        row for row in altered.raw["measurements"] if row["probe"] != "inventory" or altered.raw["stage"] == "intake"
    ]


def limits_on(altered: Case, row: dict[str, Any]) -> list[Limit]:
    """The limits that judge a row in this stage, those about plausibility left out."""
    kind, stage = kind_of(row["device"]), altered.raw["stage"]
    return [
        limit
        for limit in altered.sku.all_limits
        if limit.applies_to(row["metric"], kind, row["labels"])
        and limit.breach != "invalid"
        and (not limit.stages or stage in limit.stages)
        and limit.key != "spread_at_most"
    ]


def worse(altered: Case, row: dict[str, Any]) -> float:
    """+1 where a higher value is worse, −1 where a lower one is, 0 where nothing simple says."""
    limits = limits_on(altered, row)
    if row["value"] is None or any(isinstance(limit.value, Times) for limit in limits):
        return 0.0
    upwards = {limit.key in ("ceiling", "at_most", "siblings_at_most") or limit.number == 0.0 for limit in limits}
    return (1.0 if upwards.pop() else -1.0) if len(upwards) == 1 else 0.0


def spoil(altered: Case, dice: random.Random, but: str = "") -> None:
    """Make some measurements somewhat worse or better, but none of the metric ``but``."""
    for row in altered.raw["measurements"]:
        if row["metric"] != but and row["value"] is not None and dice.random() < 0.05:
            row["value"] = row["value"] * dice.choice([0.5, 0.85, 0.97, 1.05, 2.0]) + dice.choice([0.0, 0.0, 1.0])


@examples(EXAMPLES)
@given(where=WHERE, odd=ODD, seed=SEEDS)
def test_anything_odd_anywhere_never_raises(case: MakeCase, where: tuple[str, str], odd: Any, seed: int) -> None:
    altered, dice = case(*where), random.Random(seed)
    for row in dice.sample(altered.raw["measurements"], 3):
        row[dice.choice(sorted(row))] = odd
    altered.raw["probes"][0][dice.choice(["status", "probe", "duration_s"])] = dice.choice([odd, "crashed", 1.0])

    judgement = verdict_of(altered)

    assert judgement.reason.endswith(".")
    assert Lack.JUDGE_FAILED not in {gap.code for gap in judgement.coverage.missing}


@examples(EXAMPLES)
@given(
    where=WHERE, seed=SEEDS, nothing=st.sampled_from([None, float("nan"), float("inf"), float("-inf"), [], "12", True])
)
def test_a_required_figure_that_is_none_never_passes(
    case: MakeCase, where: tuple[str, str], seed: int, nothing: Any
) -> None:
    altered = case(*where)
    row = random.Random(seed).choice([row for row in required_rows(altered) if row["value"] is not None])
    row["value"] = nothing

    assert verdict_of(altered).verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS, key=st.sampled_from(["device", "metric", "probe"]))
def test_a_required_figure_under_another_name_never_passes(
    case: MakeCase, where: tuple[str, str], seed: int, key: str
) -> None:
    altered = case(*where)
    row = random.Random(seed).choice(required_rows(altered))
    row[key] = {"device": "pump0", "metric": "other", "probe": "other"}[key]

    assert verdict_of(altered).verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS)
def test_an_absurd_figure_in_the_bad_direction_never_passes(case: MakeCase, where: tuple[str, str], seed: int) -> None:
    altered = case(*where)
    directed = [row for row in required_rows(altered) if worse(altered, row)]
    if not directed:
        return
    row = random.Random(seed).choice(directed)
    row["value"] = worse(altered, row) * 1e18

    assert verdict_of(altered).verdict is not Verdict.PASS


def too_good(altered: Case) -> list[tuple[list[dict[str, Any]], float]]:
    """The rows of each metric that the programme compares, by labels, and the better direction."""
    found: dict[Any, tuple[list[dict[str, Any]], float]] = {}
    for each in altered.sku.programme.compare:
        rows = [row for row in altered.rows(each.metric) if kind_of(row["device"]) == each.device]
        compared = [row for row in rows if each.judged and row["unit"] == each.unit]
        for row in compared:
            key = (each.metric, *sorted(row["labels"].items()))
            found.setdefault(key, ([], 1.0 if each.worse == "lower" else -1.0))[0].append(row)
    return list(found.values())


@examples(EXAMPLES)
@given(stage=st.sampled_from(STAGES), seed=SEEDS, absurd=st.sampled_from([2.01, 100.0, 1e12]))
def test_an_absurdly_good_figure_never_passes(case: MakeCase, stage: str, seed: int, absurd: float) -> None:
    """Of one device, whatever is known of its model: its siblings know better."""
    altered, dice = case(stage), random.Random(seed)
    if stage != "thermal":  # which has it of all
        altered.add("thermal_soak", "thermal_resistance", "gpu0", 0.06, "°C/W")
    measured = too_good(altered)
    rows, better = dice.choice(measured)
    row = dice.choice(rows)
    row["value"] = row["value"] * absurd if better > 0 else dice.choice([0.0, -absurd])

    judgement = verdict_of(altered)

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(
        (each.device, each.metric) == (row["device"], row["metric"]) and each.fault_class is FaultClass.SOFTWARE
        for each in judgement.findings
    )


@examples(EXAMPLES)
@given(seed=SEEDS, name=st.sampled_from([name for name in list_skus() if name != "cpu-generic"]))
def test_beyond_its_peak_nothing_passes_though_all_siblings_agree(seed: int, name: str) -> None:
    altered = Case(shipped(name), healthy_raw(shipped(name), "performance"))
    ceilings = [limit for limit in altered.sku.all_limits if limit.breach == "invalid" and limit.key == "ceiling"]
    limit = random.Random(seed).choice(
        [limit for limit in ceilings if list(altered.rows(limit.metric, **limit.labels))]
    )
    altered.set(limit.metric, value=1e17, **limit.labels)

    judgement = verdict_of(altered)

    assert judgement.verdict is not Verdict.PASS
    assert sum(each.metric == limit.metric and each.rule == "ceiling" for each in judgement.findings) >= 4


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS, how_many=st.integers(1, 5))
def test_removing_what_is_required_never_passes_and_never_clears(
    case: MakeCase, where: tuple[str, str], seed: int, how_many: int
) -> None:
    altered, dice = case(*where), random.Random(seed)
    gone = {id(row) for row in dice.sample(required_rows(altered), min(how_many, len(required_rows(altered))))}
    altered.raw["measurements"] = [row for row in altered.raw["measurements"] if id(row) not in gone]
    assert verdict_of(altered).verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)

    exact = [row for row in altered.raw["measurements"] if any(x.key == "exactly" for x in limits_on(altered, row))]
    failing = [row for row in exact if all(limit.breach == "fail" for limit in limits_on(altered, row))]
    if failing:
        dice.choice(failing)["value"] = 1.0
        assert verdict_of(altered).verdict is Verdict.FAIL


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS, factor=st.floats(1.0001, 1e6))
def test_worsening_a_figure_never_improves_the_verdict(
    case: MakeCase, where: tuple[str, str], seed: int, factor: float
) -> None:
    """References frozen: the other devices of that metric stay as they are, and one of eight does not move a median."""
    altered, dice = case(*where), random.Random(seed)
    directed = [row for row in required_rows(altered) if worse(altered, row)]
    if not directed:
        return
    row = dice.choice(directed)
    spoil(altered, dice, but=row["metric"])
    first = verdict_of(altered).verdict
    for _ in range(3):
        step = abs(row["value"]) * (factor - 1.0) + dice.random()
        row["value"] = max(-1e17, min(1e17, row["value"] + worse(altered, row) * step))
        then = verdict_of(altered).verdict
        assert GRAVITY.index(then) >= GRAVITY.index(first)
        first = then


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS)
def test_the_order_of_rows_changes_nothing(case: MakeCase, where: tuple[str, str], seed: int) -> None:
    altered, dice = case(*where), random.Random(seed)
    spoil(altered, dice)
    straight = verdict_of(altered)
    dice.shuffle(altered.raw["measurements"])
    dice.shuffle(altered.raw["probes"])

    assert verdict_of(altered) == straight


def test_cases_that_are_judged_together_are_judged_as_each_alone(case: MakeCase) -> None:
    healthy, ill = case("thermal"), case("thermal").set("temperature_max", "gpu3", value=99.0)
    cases = [
        JudgeCase(healthy.sku, "thermal", "demo", why_missing="it could not be reached"),
        JudgeCase(healthy.sku, "burn_in", "demo", healthy.result()),
        *(JudgeCase(each.sku, "thermal", "demo", each.result()) for each in (healthy, ill)),
    ]
    assert judge_all(cases, evaluate=violations) == [judge(each, evaluate=violations) for each in cases]


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS)
def test_saying_it_twice_changes_nothing(case: MakeCase, where: tuple[str, str], seed: int) -> None:
    altered, dice = case(*where), random.Random(seed)
    row = dice.choice(required_rows(altered))
    other = dict(row, **({"text": "other"} if row["value"] is None else {"value": row["value"] + 1.0}))
    altered.raw["measurements"].insert(dice.randrange(len(altered.raw["measurements"])), other)

    assert verdict_of(altered).verdict in (Verdict.INCONCLUSIVE, Verdict.FAIL)


@examples(EXAMPLES)
@given(where=WHERE, seed=SEEDS, status=st.sampled_from(["skipped", "crashed", "timed_out"]))
def test_a_probe_that_did_not_complete_never_passes(
    case: MakeCase, where: tuple[str, str], seed: int, status: str
) -> None:
    altered = case(*where)
    needed = sorted({row["probe"] for row in required_rows(altered)})
    probe = random.Random(seed).choice(needed)

    assert verdict_of(altered.end(probe, status, "why")).verdict is Verdict.INCONCLUSIVE
