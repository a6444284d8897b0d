"""The sweep: each rule just inside and just outside, masking, common causes, repeats, and what must never happen."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_criteria.fleet.budget import STANDARD
from muster_criteria.fleet.history import History, build_history
from muster_criteria.fleet.keyed import keyed
from muster_criteria.fleet.readings import DAY_S, as_readings, labels_of, labels_text, readings_of, together
from muster_criteria.fleet.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.sweep import Sweep, sweep
from muster_criteria.fleet.thresholds import Thresholds
from tests.muster_criteria.fleet_readings import DAY, Fleet, scaled

FLEET = Fleet(nodes=120, metrics=6, seed=7)
EARLIER = tuple(DAY - 10 * visit for visit in range(5, 0, -1))
GRAVITY = ["PASS", "WARN", "RETEST", "FAIL"]
NODE = "node-00007"


def at(day: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(day * DAY_S, datetime.UTC)


class Frozen:
    """A fleet's references, and what it measures today."""

    def __init__(self) -> None:
        readings = FLEET.visits(*EARLIER, DAY)
        self.earlier = readings[readings["at"] < DAY].reset_index(drop=True)
        self.today = readings[readings["at"] == DAY].reset_index(drop=True)
        self.snapshot = build_snapshot(self.earlier, at(DAY - 1), FLEET.comparisons)
        self.history = build_history(self.earlier, self.snapshot, FLEET.comparisons)

    def straying(self, times: float) -> Frozen:
        """The same, of a fleet whose single readings stray so much further."""
        other, tails = copy.copy(self), self.snapshot.tails.copy()
        tails.loc[tails["repeats"] == 1, [name for name in tails if name.startswith("q")]] *= times
        other.snapshot = dataclasses.replace(self.snapshot, tails=tails)
        return other

    def sweep(self, today: pd.DataFrame, history: History | None = None, **more: Any) -> Sweep:
        return sweep(today, self.snapshot, history, FLEET.comparisons, **more)

    def of_node(self, node: str = NODE) -> pd.DataFrame:
        return self.today[self.today["node"] == node].reset_index(drop=True)

    def usual(self, metric: str, slot: int) -> float:
        cells = self.snapshot.cells
        found = cells[(cells["metric"] == metric) & (cells["slot"] == slot) & cells["group"].str.startswith("sku|")]
        return float(found["median"].iloc[0])


@pytest.fixture(scope="module")
def frozen() -> Frozen:
    return Frozen()


def told(found: Sweep, **where: str) -> set[tuple[str, str]]:
    """(rule, breach) of the findings about these."""
    rows = found.findings
    for name, said in where.items():
        rows = rows[rows[name] == said]
    return set(zip(rows["rule"], rows["breach"], strict=True))


def level(frozen: Frozen, node: str = NODE) -> pd.DataFrame:
    """Today's readings of a node, each exactly as usual for its slot."""
    rows = frozen.of_node(node)
    usual = [frozen.usual(metric, slot) for metric, slot in zip(rows["metric"], rows["slot"], strict=True)]
    return rows.assign(value=usual)


UNCERTAIN = float(np.sqrt(1.0 + np.pi / 2.0 / FLEET.nodes))
"""What the peers' median being of so many widens their thresholds by."""


def threshold(frozen: Frozen, rule: str, metric: str, repeats: int = 1, *, has_past: bool = True) -> float:
    catalogue = keyed(frozen.today, FLEET.comparisons).catalogue
    limits = Thresholds(frozen.snapshot, STANDARD, ["sku"], catalogue).critical(rule, repeats, has_past=has_past)
    limit = float(limits[0, [each.key[1] for each in catalogue].index(metric)])
    return max(STANDARD.effect_min, limit * (UNCERTAIN if rule == "peers" else 1.0))


def test_a_healthy_fleet_is_not_failed(frozen: Frozen) -> None:
    verdicts = frozen.sweep(frozen.today, frozen.history).verdicts["verdict"]

    assert len(verdicts) == FLEET.nodes
    assert not (verdicts == "FAIL").any()
    assert (verdicts == "PASS").mean() > 0.8


@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("metric", ["work_0", "clock_0"])
def test_peers_convict_just_beyond_the_threshold_and_not_just_within(
    frozen: Frozen, metric: str, has_past: bool
) -> None:
    share = threshold(frozen, "peers", metric, has_past=has_past)
    assert 0.03 <= share < 0.5
    for factor, breach in ((share * 1.001, "fail"), (share * 0.999, "retest")):
        one = scaled(level(frozen), 1.0 - factor, metric=metric, device="gpu3")
        found = frozen.sweep(one, frozen.history if has_past else None)

        assert ("peers", breach) in told(found, device="gpu3", metric=metric)


def test_without_a_past_what_follows_the_lottery_is_judged_more_strictly(frozen: Frozen) -> None:
    """What the rules about a device's own past would cost is spent there, and nowhere else."""
    stricter = {
        metric: threshold(frozen, "peers", metric, has_past=False) < threshold(frozen, "peers", metric)
        for metric in ("work_0", "clock_0")
    }
    assert stricter == {"work_0": False, "clock_0": True}


def test_a_distance_below_three_percent_convicts_nobody_however_odd_it_is(frozen: Frozen) -> None:
    """Low-spread parts differ by 0.4 %, so 2.9 % is seven of their standard deviations: still no effect."""
    odd = max(STANDARD.retest_min, 3.5 * 1.4826 * STANDARD.mad_floor * UNCERTAIN)
    for share, breaches in ((odd * 0.99, set()), (odd * 1.01, {"retest"}), (0.03 * 0.999, {"retest"})):
        one = scaled(level(frozen), 1.0 - share, metric="work_0", device="gpu3")

        assert {breach for _, breach in told(frozen.sweep(one))} == breaches


def test_two_readings_convict_of_which_one_comes_to_three_percent(frozen: Frozen) -> None:
    """Both must be rarer among healthy parts than the budget allows; the effect that counts was measured once.

    Where one reading strays further than two, that is: of this quiet fleet one alone of three percent is too much.
    """
    frozen = frozen.straying(2.0)
    rare = float(
        Thresholds(frozen.snapshot, STANDARD, ["sku"], keyed(frozen.today, FLEET.comparisons).catalogue).critical(
            "peers", 2
        )[0, 0]
    )
    assert rare < 0.029, "the test is about an effect that chance cannot explain"

    def breaches(*shares: float) -> set[str]:
        runs = [
            scaled(level(frozen), 1.0 - share, metric="work_0", device="gpu3").assign(run=f"run-{number}")
            for number, share in enumerate(shares)
        ]
        found = frozen.sweep(together([as_readings(run) for run in runs]))
        return {breach for _, breach in told(found, device="gpu3", metric="work_0")}

    assert "fail" in breaches(0.0291, 0.0301)
    assert "fail" in breaches(0.0301, 0.0291)
    assert "fail" not in breaches(0.0291, 0.0299)
    assert "fail" not in breaches(0.0301, rare * 0.99)
    assert "fail" in breaches(0.0, 0.0291, 0.0301), "a third reading excuses nothing"


def test_better_than_its_peers_is_no_fault(frozen: Frozen) -> None:
    assert told(frozen.sweep(scaled(level(frozen), 1.2, metric="work_0", device="gpu3"))) <= {("siblings", "retest")}


def test_siblings_convict_where_no_peers_of_its_slot_are_known(frozen: Frozen) -> None:
    one = scaled(level(frozen), 0.88, metric="work_0", device="gpu3")

    assert ("siblings", "fail") in told(frozen.sweep(one), device="gpu3", metric="work_0")


def test_a_device_is_convicted_by_its_own_past_though_it_passes_among_its_peers(frozen: Frozen) -> None:
    """A fall from a good draw in the lottery may end within what peers show."""
    mean = frozen.earlier.groupby(["node", "device"], observed=True)["value"].mean()
    node, device = mean.idxmax()
    fall = 1.2 * threshold(frozen, "drift", "clock_0")
    slower = scaled(frozen.today, 1.0 - fall, node=node, device=device, metric="clock_0")
    found = frozen.sweep(slower, frozen.history)

    assert ("drift", "fail") in told(found, node=node, device=device, metric="clock_0")
    assert ("peers", "fail") not in told(found, node=node, device=device, metric="clock_0")


def test_without_three_visits_there_is_no_drift(frozen: Frozen) -> None:
    for visits, rules in ((2, set()), (3, {"drift"})):
        some = frozen.earlier[frozen.earlier["at"] >= DAY - 10 * visits].reset_index(drop=True)
        history = build_history(some, frozen.snapshot, FLEET.comparisons)
        found = frozen.sweep(scaled(frozen.today, 0.9, node=NODE, device="gpu3", metric="work_0"), history)

        assert {rule for rule, _ in told(found, node=NODE, device="gpu3", metric="work_0")} & {"drift"} == rules


def test_a_slow_slide_is_convicted_by_its_sum_though_no_visit_would(frozen: Frozen) -> None:
    """3.5 % below its first visits, four times running: each is within reach of noise, together they are not."""
    sliding = frozen.earlier
    for day in (DAY - 20, DAY - 10):
        rows = (sliding["node"] == NODE) & (sliding["device"] == "gpu3") & (sliding["at"] == day)
        sliding = sliding.assign(value=np.where(rows, sliding["value"] * 0.962, sliding["value"]))
    more = FLEET.visits(*EARLIER, DAY - 8, DAY - 6, DAY - 4)
    more = more[more["at"] > DAY - 10]
    sliding = together([sliding, scaled(more, 0.962, node=NODE, device="gpu3")])
    history = build_history(sliding, frozen.snapshot, FLEET.comparisons)

    found = frozen.sweep(scaled(frozen.today, 0.962, node=NODE, device="gpu3"), history)

    assert ("cusum", "fail") in told(found, node=NODE, device="gpu3", metric="work_0")
    assert ("cusum", "fail") not in told(frozen.sweep(frozen.today, frozen.history))


@pytest.mark.parametrize("bad", [2, 3, 4])
def test_bad_siblings_do_not_mask_each_other(frozen: Frozen, bad: int) -> None:
    today = level(frozen)
    for slot in range(bad):
        today = scaled(today, 0.94, device=f"gpu{slot}", metric="work_0")
    found = frozen.sweep(today)

    assert found.verdicts.loc[NODE, "verdict"] == "FAIL"
    assert found.verdicts.loc[NODE, "held"] == ""
    failed = found.findings[(found.findings["breach"] == "fail") & (found.findings["rule"] == "peers")]
    assert {f"gpu{slot}" for slot in range(bad)} <= set(failed["device"])


def test_all_devices_alike_are_a_common_cause_and_conviction_waits(frozen: Frozen) -> None:
    found = frozen.sweep(scaled(level(frozen), 0.9, metric="work_0"))

    assert found.verdicts.loc[NODE, "verdict"] == "FAIL"
    assert "fail alike in work_0" in found.verdicts.loc[NODE, "held"]
    assert set(found.causes["fault"]) == {"software"}


def test_a_rack_that_is_slow_together_is_asked_of_the_facility(frozen: Frozen) -> None:
    racks = {f"node-{number:05d}": f"rack-{number // 10}" for number in range(FLEET.nodes)}
    fall = 1.2 * threshold(frozen, "node_drift", "work_0")
    today = frozen.today
    for node in [name for name, rack in racks.items() if rack == "rack-2"]:
        today = scaled(today, 1.0 - fall, node=node, metric="work_0")
    found = frozen.sweep(today, frozen.history, groupings={"rack": racks})

    of_rack = found.causes[(found.causes["by"] == "rack") & (found.causes["metric"] == "work_0")]
    assert of_rack[["name", "devices", "of", "fault"]].to_numpy().tolist() == [["rack-2", 10, 10, "facility"]]
    assert {rule for rule, breach in told(found, node="node-00020") if breach == "fail"} >= {"peers", "node_drift"}


@pytest.mark.parametrize("without_past", ["gpu0", "gpu5"])
def test_a_new_part_does_not_take_the_node_its_own_past(frozen: Frozen, without_past: str) -> None:
    assert frozen.history is not None
    series = frozen.history.series
    left = History(series[(series["node"] != NODE) | (series["device"] != without_past)].reset_index(drop=True))
    fall = 1.2 * threshold(frozen, "node_drift", "work_0")
    found = frozen.sweep(scaled(level(frozen), 1.0 - fall, metric="work_0"), left)
    assert ("node_drift", "fail") in told(found)


def test_two_readings_convict_where_one_asks_for_a_retest() -> None:
    """Heavy tails: a single reading 10 % low is not rare enough, two are."""
    fleet = Fleet(nodes=150, metrics=4, seed=3, tails=4.0)
    readings = fleet.visits(*EARLIER, DAY)
    earlier = readings[readings["at"] < DAY].reset_index(drop=True)
    snapshot = build_snapshot(earlier, at(DAY - 1), fleet.comparisons)
    cells = snapshot.cells.set_index(["metric", "group", "slot"])["median"]
    one = readings[(readings["at"] == DAY) & (readings["node"] == NODE)].reset_index(drop=True)
    usual = [cells[metric, "sku|zone=0", slot] for metric, slot in zip(one["metric"], one["slot"], strict=True)]
    one = scaled(one.assign(value=usual), 0.9, device="gpu3", metric="work_0")
    again = one.assign(run=pd.Categorical(["retest"] * len(one)))
    better = scaled(again, 1.0 / 0.9, device="gpu3", metric="work_0")

    for today, verdict in ((one, "RETEST"), (together([one, again]), "FAIL"), (together([one, better]), "WARN")):
        found = sweep(today, snapshot, None, fleet.comparisons)
        assert found.verdicts.loc[NODE, "verdict"] == verdict
    assert set(found.findings["repeats"]) == {2}


def test_a_fail_is_not_undone_by_repeating_until_it_passes(frozen: Frozen) -> None:
    bad = scaled(level(frozen), 0.8, metric="work_0", device="gpu3")
    good = [level(frozen).assign(run=pd.Categorical([f"again-{n}"] * len(bad))) for n in range(5)]

    assert frozen.sweep(together([bad, *good])).verdicts.loc[NODE, "verdict"] == "FAIL"


def test_with_too_few_devices_a_fleet_convicts_nobody_but_asks_again() -> None:
    small = Fleet(nodes=10, metrics=2)
    readings = small.visits(DAY - 1, DAY)
    snapshot = build_snapshot(readings[readings["at"] < DAY], at(DAY - 1), small.comparisons)
    today = scaled(readings[readings["at"] == DAY], 0.7, node="node-00003", device="gpu3", metric="work_0")
    found = sweep(today, snapshot, None, small.comparisons)

    assert found.verdicts.loc["node-00003", "verdict"] == "RETEST"
    assert set(found.findings["threshold"]) == {np.inf}


def test_seven_peers_judge_nobody() -> None:
    for nodes, said in ((7, "NONE"), (8, "PASS")):
        few = Fleet(nodes=nodes, metrics=2)
        readings = few.visits(DAY)
        readings = readings[readings["device"] == "gpu0"].reset_index(drop=True)
        snapshot = build_snapshot(readings, at(DAY), few.comparisons)
        assert set(sweep(readings, snapshot, None, few.comparisons).verdicts["verdict"]) == {said}


def test_another_unit_is_not_compared(frozen: Frozen) -> None:
    today = level(frozen).assign(unit=pd.Categorical(["GFLOPS"] * len(level(frozen))))

    assert set(frozen.sweep(today).verdicts["verdict"]) == {"NONE"}


def test_nodes_under_suspicion_are_left_out_of_the_snapshot(frozen: Frozen) -> None:
    poisoned = scaled(frozen.earlier, 0.5, node=NODE)
    without = build_snapshot(poisoned, at(DAY - 1), FLEET.comparisons, exclude={NODE})
    clean = build_snapshot(
        frozen.earlier[frozen.earlier["node"] != NODE], at(DAY - 1), FLEET.comparisons, exclude=frozenset()
    )

    assert without.version == clean.version
    assert without.nodes == FLEET.nodes - 1
    assert without.version != build_snapshot(poisoned, at(DAY - 1), FLEET.comparisons).version


def test_the_same_readings_make_the_same_version_whatever_their_order(frozen: Frozen) -> None:
    mixed = frozen.earlier.sample(frac=1.0, random_state=5)

    assert build_snapshot(mixed, at(DAY - 1), FLEET.comparisons).version == frozen.snapshot.version
    assert build_snapshot(frozen.earlier, at(DAY), FLEET.comparisons).version != frozen.snapshot.version


def test_a_snapshot_and_a_history_come_back_as_they_were(frozen: Frozen) -> None:
    raw = frozen.snapshot.to_bytes()
    back = Snapshot.from_bytes(raw)
    assert (back.version, back.to_bytes()) == (frozen.snapshot.version, raw)
    assert History.from_bytes(frozen.history.to_bytes()).series.equals(frozen.history.series)
    for odd in (b"", b"nonsense", raw[:-20]):
        with pytest.raises(ValueError, match="cannot be read"):
            Snapshot.from_bytes(odd)
        with pytest.raises(ValueError, match="cannot be read"):
            History.from_bytes(odd)


def test_one_node_alone_is_told_what_it_is_told_in_the_fleet(frozen: Frozen) -> None:
    today = scaled(frozen.today, 0.93, node=NODE, device="gpu3")
    whole, alone = (
        frozen.sweep(today, frozen.history),
        frozen.sweep(today[today["node"] == NODE].reset_index(drop=True), frozen.history.of(NODE)),
    )

    of_node = whole.findings[whole.findings["node"] == NODE].reset_index(drop=True)
    pd.testing.assert_frame_equal(of_node, alone.findings, check_dtype=False)


def test_readings_of_a_result_know_slot_kind_and_group() -> None:
    class Row:
        def __init__(self, device: str, value: float | None) -> None:
            self.device, self.value, self.metric, self.unit = device, value, "gemm_rate", "TFLOPS"
            self.labels = (("dtype", "bf16"),)

    rows = [Row("gpu3", 700.0), Row("node", 1.0), Row("gpu4", None), Row("gpu5", float("nan"))]
    said = {"driver": "570", "vbios": "96"}
    found = readings_of(rows, node="n", at=DAY * DAY_S, run="r", sku="h100", environment=said, zone="z")

    assert found[["device", "kind", "slot"]].to_numpy().tolist() == [["gpu3", "gpu", 3], ["node", "node", -1]]
    assert set(found["group"]) == {"h100|vbios=96|driver=570|cuda=|torch=|zone=z"}
    assert set(found["at"]) == {DAY}
    assert labels_of(labels_text({"b": "2", "a": "1"})) == (("a", "1"), ("b", "2"))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), factor=st.floats(0.01, 0.999))
def test_worsening_a_device_never_improves_its_verdict(frozen: Frozen, seed: int, factor: float) -> None:
    """References frozen: siblings of that metric included, whose median one of eight can move a little."""
    dice = random.Random(seed)
    where = {"device": f"gpu{dice.randrange(8)}", "metric": dice.choice(["work_0", "clock_1"])}
    before = scaled(frozen.of_node(), dice.uniform(0.85, 1.1), **where)
    worse = scaled(before, factor, **where)
    verdicts = [frozen.sweep(today, frozen.history.of(NODE)).verdicts.loc[NODE, "verdict"] for today in (before, worse)]

    assert GRAVITY.index(verdicts[1]) >= GRAVITY.index(verdicts[0])


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_rows_changes_nothing(frozen: Frozen, seed: int) -> None:
    today = scaled(frozen.of_node(), 0.9, device="gpu3", metric="work_0")
    straight = frozen.sweep(today, frozen.history)
    mixed = frozen.sweep(today.sample(frac=1.0, random_state=seed % 2**31), frozen.history)

    pd.testing.assert_frame_equal(straight.findings, mixed.findings)
    pd.testing.assert_frame_equal(straight.verdicts, mixed.verdicts)


ODD = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, -1e300, 5e-324])


@settings(max_examples=12, deadline=None)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@given(odd=ODD, seed=st.integers(0, 2**32), how_many=st.integers(1, 48))
def test_absurd_numbers_never_raise_and_spare_nobody(frozen: Frozen, odd: float, seed: int, how_many: int) -> None:
    today = scaled(frozen.of_node(), 0.7, device="gpu3", metric="work_0")
    others = np.flatnonzero(~((today["device"] == "gpu3") & (today["metric"] == "work_0")).to_numpy())
    chosen = np.random.default_rng(seed).choice(others, min(how_many, len(others)), replace=False)
    value = today["value"].to_numpy().copy()
    value[chosen] = odd
    found = frozen.sweep(today.assign(value=value), frozen.history)

    assert found.verdicts.loc[NODE, "verdict"] == "FAIL"


def test_nothing_measured_is_nothing_judged(frozen: Frozen) -> None:
    nothing = as_readings(frozen.today.iloc[:0].astype({"node": str}))

    assert len(frozen.sweep(nothing, frozen.history).verdicts) == 0
    empty = frozen.of_node().assign(value=np.nan)
    assert frozen.sweep(empty, frozen.history).verdicts["verdict"].tolist() == ["NONE"]
    assert frozen.sweep(empty, frozen.history, skus={}).verdicts["verdict"].tolist() == ["NONE"]
