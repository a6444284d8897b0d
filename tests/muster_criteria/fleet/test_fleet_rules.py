"""The rules of the fleet: each just inside and just outside, masking, common causes, and repeats."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.budget import EFFECT_MIN, MAD_FLOOR, RETEST_MIN, RETEST_Z
from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.keyed import keyed
from muster_criteria.fleet.series.readings import as_readings, group_of, together
from muster_criteria.fleet.thresholds import Thresholds
from muster_criteria.fleet.verdicts import judge_readings
from muster_criteria.model import Severity
from tests.muster_criteria.fleet_readings import DAY, Fleet, scaled
from tests.muster_criteria.frozen_fleet import (
    EARLIER,
    FLEET,
    NODE,
    SKU,
    Frozen,
    at,
    breach,
    judged,
    level,
    of_sku,
    rules_and_levels,
    word,
)

UNCERTAIN = float(np.sqrt(1.0 + np.pi / 2.0 / FLEET.nodes))
"""What the peers' median being of so many widens their thresholds by."""


def threshold(frozen: Frozen, rule: str, metric: str, repeats: int = 1, *, has_past: bool = True) -> float:
    catalogue = keyed(frozen.today, FLEET.comparisons).catalogue
    limits = Thresholds(frozen.snapshot, [SKU], catalogue).critical(rule, repeats, has_past=has_past)
    limit = float(limits[0, [each.key[1] for each in catalogue].index(metric)])
    return max(EFFECT_MIN, limit * (UNCERTAIN if rule == "peers" else 1.0))


def test_the_snapshot_that_was_judged_by_is_freed(frozen: Frozen) -> None:
    snapshot = dataclasses.replace(frozen.snapshot)
    judge_readings(frozen.of_node(), FLEET.comparisons, snapshot, None)
    kept = weakref.ref(snapshot)
    del snapshot
    gc.collect()

    assert kept() is None


def test_a_healthy_fleet_is_not_failed(frozen: Frozen) -> None:
    words = list(frozen.judge(frozen.today, frozen.history).words.values())

    assert len(words) == FLEET.nodes
    assert "FAIL" not in words
    assert words.count("PASS") > 0.8 * len(words)


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("metric", ["work_0", "clock_0"])
def test_peers_fail_just_beyond_the_threshold_and_not_just_within(frozen: Frozen, metric: str, has_past: bool) -> None:
    share = threshold(frozen, "peers", metric, has_past=has_past)
    assert 0.03 <= share < 0.5
    outlier = "retest" if metric == "work_0" else "warn"  # part-to-part variation is the same in a second reading
    for factor, level_of in ((share * 1.001, "fail"), (share * 0.999, outlier)):
        one = scaled(level(frozen), 1.0 - factor, metric=metric, device="gpu3")
        found = frozen.judge(one, frozen.history if has_past else None)

        assert ("peers", level_of) in rules_and_levels(found, device="gpu3", metric=metric)


def test_without_a_past_varied_series_are_judged_more_strictly(frozen: Frozen) -> None:
    """What the rules about a device's own past would cost is spent there, and nowhere else."""
    stricter = {
        metric: threshold(frozen, "peers", metric, has_past=False) < threshold(frozen, "peers", metric)
        for metric in ("work_0", "clock_0")
    }
    assert stricter == {"work_0": False, "clock_0": True}


def test_a_distance_below_three_percent_fails_none_however_odd_it_is(frozen: Frozen) -> None:
    """Low-spread parts differ by 0.4 %, so 2.9 % is seven of their standard deviations: still no effect."""
    odd = max(RETEST_MIN, 3.5 * 1.4826 * MAD_FLOOR * UNCERTAIN)
    for share, breaches in ((odd * 0.99, set()), (odd * 1.01, {"retest"}), (0.03 * 0.999, {"retest"})):
        one = scaled(level(frozen), 1.0 - share, metric="work_0", device="gpu3")

        assert {breach for _, breach in rules_and_levels(frozen.judge(one))} == breaches


def test_varied_series_have_outliers_only_where_they_are_rare(frozen: Frozen) -> None:
    """A robust z of 3.5 alone, which one healthy node in ten shows somewhere, is not enough."""
    catalogue = keyed(frozen.today, FLEET.comparisons).catalogue
    series = [each.key[1] for each in catalogue].index("clock_0")
    limits = Thresholds(frozen.snapshot, [SKU], catalogue)
    odd, scale = limits.outlier("siblings")[0, series], limits.scale("siblings")[0, series]
    assert odd > 1.1 * RETEST_Z * scale
    for share, reported in ((odd * 0.98, False), (odd * 1.02, True)):
        one = scaled(level(frozen), 1.0 - share, metric="clock_0", device="gpu3")
        rules = {rule for rule, _ in rules_and_levels(frozen.judge(one), device="gpu3", metric="clock_0")}
        assert ("siblings" in rules) is reported


def test_a_scale_estimated_from_few_is_believed_the_less(frozen: Frozen) -> None:
    """Without a tail a Gaussian variation is taken for granted, and its scale for as uncertain as it is."""
    catalogue = keyed(frozen.today, FLEET.comparisons).catalogue
    series = [each.key[1] for each in catalogue].index("clock_0")

    def odd(size: int) -> float:
        few = dataclasses.replace(
            frozen.snapshot, tails=frozen.snapshot.tails.iloc[:0], scales=frozen.snapshot.scales.assign(size=size)
        )
        limits = Thresholds(few, [SKU], catalogue)
        return float(limits.outlier("peers")[0, series] / limits.scale("peers")[0, series])

    assert odd(8) > 2.0 * odd(64)
    assert odd(64) > 1.02 * odd(100_000)
    assert odd(100_000) == pytest.approx(max(3.5, odd(10_000_000)), rel=1e-3)


def test_two_readings_fail_of_which_one_comes_to_three_percent(frozen: Frozen) -> None:
    """Both must be rarer among healthy parts than the budget allows; the effect that counts was measured once.

    Where one reading strays further than two, that is: of this quiet fleet one alone of three percent is too much.
    """
    frozen = frozen.straying(2.0)
    rare = float(
        Thresholds(frozen.snapshot, [SKU], keyed(frozen.today, FLEET.comparisons).catalogue).critical("peers", 2)[0, 0]
    )
    assert rare < 0.029, "the test is about an effect that chance cannot explain"

    def breaches(*shares: float) -> set[str]:
        runs = [
            scaled(level(frozen), 1.0 - share, metric="work_0", device="gpu3").assign(run=f"run-{number}")
            for number, share in enumerate(shares)
        ]
        found = frozen.judge(together([as_readings(run) for run in runs]))
        return {breach for _, breach in rules_and_levels(found, device="gpu3", metric="work_0")}

    assert "fail" in breaches(0.0291, 0.0301)
    assert "fail" in breaches(0.0301, 0.0291)
    assert "fail" not in breaches(0.0291, 0.0299)
    assert "fail" not in breaches(0.0301, rare * 0.99)
    assert "fail" in breaches(0.0, 0.0291, 0.0301), "a third reading excuses nothing"


def test_better_than_its_peers_is_no_fault(frozen: Frozen) -> None:
    assert rules_and_levels(frozen.judge(scaled(level(frozen), 1.2, metric="work_0", device="gpu3"))) <= {
        ("siblings", "retest")
    }


def test_siblings_fail_where_no_peers_of_its_slot_are_known(frozen: Frozen) -> None:
    one = scaled(level(frozen), 0.88, metric="work_0", device="gpu3")

    assert ("siblings", "fail") in rules_and_levels(frozen.judge(one), device="gpu3", metric="work_0")


def test_a_device_fails_by_its_own_past_though_it_passes_among_its_peers(frozen: Frozen) -> None:
    """A fall from a good draw in the variation may end within what peers show."""
    mean = frozen.earlier.groupby(["node", "device"], observed=True)["value"].mean()
    node, device = mean.idxmax()
    fall = 1.2 * threshold(frozen, "drift", "clock_0")
    slower = scaled(frozen.today, 1.0 - fall, node=node, device=device, metric="clock_0")
    found = frozen.judge(slower, frozen.history)

    assert ("drift", "fail") in rules_and_levels(found, node=node, device=device, metric="clock_0")
    assert ("peers", "fail") not in rules_and_levels(found, node=node, device=device, metric="clock_0")


def test_without_three_visits_there_is_no_drift(frozen: Frozen) -> None:
    for visits, rules in ((2, set()), (3, {"drift"})):
        some = frozen.earlier[frozen.earlier["at"] >= DAY - 10 * visits].reset_index(drop=True)
        history = build_history(some, frozen.snapshot, FLEET.comparisons)
        found = frozen.judge(scaled(frozen.today, 0.9, node=NODE, device="gpu3", metric="work_0"), history)

        assert {rule for rule, _ in rules_and_levels(found, node=NODE, device="gpu3", metric="work_0")} & {
            "drift"
        } == rules


@pytest.mark.parametrize("bad", [2, 3, 4])
def test_bad_siblings_do_not_mask_each_other(frozen: Frozen, bad: int) -> None:
    today = level(frozen)
    for slot in range(bad):
        today = scaled(today, 0.94, device=f"gpu{slot}", metric="work_0")
    found = frozen.judge(today)

    assert found.words[NODE] == "FAIL"
    assert not found.shared()
    failed = {
        each.device for each in found.judgements[NODE].findings if each.rule == "peers" and breach(each) == "fail"
    }
    assert {f"gpu{slot}" for slot in range(bad)} <= failed


def test_all_devices_alike_are_a_common_cause_and_failure_waits(frozen: Frozen) -> None:
    found = frozen.judge(scaled(level(frozen), 0.9, metric="work_0"))

    assert found.words[NODE] == "FAIL"
    assert "work_0" in found.shared()


@pytest.mark.parametrize("without_past", ["gpu0", "gpu5"])
def test_a_new_part_does_not_take_the_node_its_own_past(frozen: Frozen, without_past: str) -> None:
    assert frozen.history is not None
    series = frozen.history.series
    left = History(series[(series["node"] != NODE) | (series["device"] != without_past)].reset_index(drop=True))
    fall = 1.2 * threshold(frozen, "node_drift", "work_0")
    found = frozen.judge(scaled(level(frozen), 1.0 - fall, metric="work_0"), left)
    assert ("node_drift", "fail") in rules_and_levels(found)


def test_two_readings_fail_where_one_asks_for_a_retest() -> None:
    """Heavy tails: a single reading 10 % low is not rare enough, two are."""
    fleet = Fleet(nodes=150, metrics=4, seed=3, tails=4.0)
    readings = of_sku(fleet.visits(*EARLIER, DAY))
    earlier = readings[readings["at"] < DAY].reset_index(drop=True)
    snapshot = build_snapshot(earlier, at(DAY - 1), fleet.comparisons)
    cells = snapshot.cells.set_index(["metric", "group", "slot"])["median"]
    one = readings[(readings["at"] == DAY) & (readings["node"] == NODE)].reset_index(drop=True)
    usual = [
        cells[metric, group_of(SKU, {}, "0"), slot] for metric, slot in zip(one["metric"], one["slot"], strict=True)
    ]
    one = scaled(one.assign(value=usual), 0.9, device="gpu3", metric="work_0")
    again = one.assign(run=pd.Categorical(["retest"] * len(one)))
    better = scaled(again, 1.0 / 0.9, device="gpu3", metric="work_0")

    for today, verdict in ((one, "RETEST"), (together([one, again]), "FAIL"), (together([one, better]), "WARN")):
        assert word(judged(today, snapshot, None, fleet.comparisons)[NODE]) == verdict


def test_a_fail_is_not_undone_by_repeating_until_it_passes(frozen: Frozen) -> None:
    bad = scaled(level(frozen), 0.8, metric="work_0", device="gpu3")
    good = [level(frozen).assign(run=pd.Categorical([f"again-{n}"] * len(bad))) for n in range(5)]

    assert frozen.judge(together([bad, *good])).words[NODE] == "FAIL"


def test_with_too_few_devices_a_fleet_fails_none_but_asks_again() -> None:
    small = Fleet(nodes=10, metrics=2)
    readings = of_sku(small.visits(DAY - 1, DAY))
    snapshot = build_snapshot(readings[readings["at"] < DAY], at(DAY - 1), small.comparisons)
    today = scaled(readings[readings["at"] == DAY], 0.7, node="node-00003", device="gpu3", metric="work_0")
    found = judged(today, snapshot, None, small.comparisons)["node-00003"]

    assert word(found) == "RETEST"
    assert Severity.CRITICAL not in {each.severity for each in found.findings}


def test_seven_peers_judge_none() -> None:
    for nodes, verdict in ((7, "NONE"), (8, "PASS")):
        few = Fleet(nodes=nodes, metrics=2)
        readings = of_sku(few.visits(DAY))
        readings = readings[readings["device"] == "gpu0"].reset_index(drop=True)
        snapshot = build_snapshot(readings, at(DAY), few.comparisons)
        assert set(map(word, judged(readings, snapshot, None, few.comparisons).values())) == {verdict}
