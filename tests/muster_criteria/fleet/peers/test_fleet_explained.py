"""What one metric explains of another: a part that is slow because it is hot, and one that is slow all the same."""

from __future__ import annotations

import dataclasses
import datetime

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.peers.cells import Cells
from muster_criteria.fleet.peers.distances import Distances, distances, family_indices
from muster_criteria.fleet.peers.explained import slopes_of
from muster_criteria.fleet.peers.history import build_history
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import keyed
from muster_criteria.fleet.series.readings import DAY_S, as_readings, together
from muster_criteria.fleet.thresholds import Thresholds
from muster_criteria.fleet.verdicts import judge_readings

NODES, GPUS, DAY = 300, 8, 20_000.0
SLOPE = -0.15
CLOCKS = ("clock_0", "clock_1")
GIVEN = "clock_given_heat"
COMPARISONS = (
    *(Comparison(metric=name, device="gpu", unit="MHz", worse="lower", spread="varied", family="clock", given="heat")
      for name in CLOCKS),
    Comparison(metric="heat", device="gpu", unit="°C", worse="higher", judged=False),
)  # fmt: skip


def measured(rng: np.random.Generator, nodes: int = NODES, run: str = "r") -> pd.DataFrame:
    """Healthy nodes whose clocks fall with their temperature, which differs from node to node by a twentieth."""
    heat = 60.0 * (1.0 + 0.05 * rng.standard_normal((nodes, 1)) + 0.01 * rng.standard_normal((nodes, GPUS)))
    variation = 1.0 + 0.005 * rng.standard_normal((nodes, GPUS)) + SLOPE * (heat / 60.0 - 1.0)
    values = {"heat": heat, **{name: 1600.0 * (variation + 0.002 * rng.standard_normal(heat.shape)) for name in CLOCKS}}
    node, gpu = (axis.ravel() for axis in np.indices(heat.shape))
    parts = [
        pd.DataFrame({"metric": name, "unit": "°C" if name == "heat" else "MHz", "value": value.ravel()})
        .assign(node=[f"n{number:04d}" for number in node], device=[f"gpu{number}" for number in gpu])
        for name, value in values.items()
    ]  # fmt: skip
    return as_readings(pd.concat(parts).assign(group="sku|", sku="sku", labels="", at=DAY, run=run))


@pytest.fixture(scope="module")
def readings() -> pd.DataFrame:
    return measured(np.random.default_rng(5))


@pytest.fixture(scope="module")
def snapshot(readings: pd.DataFrame) -> Snapshot:
    return build_snapshot(readings, datetime.datetime.fromtimestamp((DAY + 1) * DAY_S, datetime.UTC), COMPARISONS)


def compared(snapshot: Snapshot, readings: pd.DataFrame) -> Distances:
    keys = keyed(readings, COMPARISONS)
    return distances(keys, Cells(snapshot.cells), slopes_of(snapshot.slopes))


def adverse(found: Distances, metric: str) -> np.ndarray:
    number = [each.key[1] for each in found.readings.catalogue].index(metric)
    return found.peers[found.readings.series == number]


def spoilt(readings: pd.DataFrame, **times: float) -> pd.DataFrame:
    """One node's readings, with some of gpu3's multiplied."""
    one = readings[readings["node"] == "n0007"].reset_index(drop=True)
    factor = np.where(one["device"] == "gpu3", one["metric"].astype(str).map(times).fillna(1.0), 1.0)
    return one.assign(value=one["value"] * factor)


def test_the_fleet_shows_the_slope_and_healthy_parts_differ_less_without_it(
    snapshot: Snapshot, readings: pd.DataFrame
) -> None:
    (row,) = snapshot.slopes.itertuples(index=False)
    found = compared(snapshot, readings)

    assert (row.sku, row.kind, row.metric) == ("sku", "gpu", GIVEN)
    assert row.slope == pytest.approx(SLOPE, abs=0.01)
    assert adverse(found, GIVEN).std() < 0.7 * adverse(found, "clock_index").std()


def test_slow_and_hot_is_less_odd_than_slow_and_cool(snapshot: Snapshot, readings: pd.DataFrame) -> None:
    plain = compared(snapshot, spoilt(readings))
    slow = compared(snapshot, spoilt(readings, clock_0=0.97, clock_1=0.97))
    hot = compared(snapshot, spoilt(readings, clock_0=0.97, clock_1=0.97, heat=1.2))

    more = adverse(slow, GIVEN) - adverse(plain, GIVEN)
    assert more[3] == pytest.approx(0.03, abs=0.002)
    assert adverse(hot, GIVEN)[3] == pytest.approx(adverse(plain, GIVEN)[3], abs=0.005)
    assert adverse(hot, "clock_index")[3] == adverse(slow, "clock_index")[3]


def test_what_only_explains_is_itself_not_judged(snapshot: Snapshot, readings: pd.DataFrame) -> None:
    history = build_history(readings, snapshot, COMPARISONS)
    measured, results = judge_readings(spoilt(readings, heat=2.0), COMPARISONS, snapshot, history)

    judged = {
        measured.readings.catalogue[at].key[1] for rule in results for at in measured.readings.series[rule.reading]
    }
    assert judged
    assert "heat" not in judged
    assert "heat" not in set(snapshot.scales["metric"]) | set(snapshot.tails["metric"])
    assert "heat" not in set(history.series["metric"])


def test_where_it_was_not_measured_the_plain_index_judges_alone(snapshot: Snapshot, readings: pd.DataFrame) -> None:
    one = spoilt(readings, clock_0=0.85, clock_1=0.85)
    blind = one[one["metric"] != "heat"].reset_index(drop=True)

    assert adverse(compared(snapshot, blind), GIVEN).size == 0
    for given, metrics in ((one, {"clock_index", GIVEN}), (blind, {"clock_index"})):
        measured, (peers, *_) = judge_readings(given, COMPARISONS, snapshot, None)
        of, failed = measured.readings, peers.reading[peers.fail < 0.0]
        assert metrics <= {of.catalogue[at].key[1] for at in of.series[failed]}
        assert {of.devices[at] for at in of.device[failed]} == {"gpu3"}


def test_too_few_devices_show_no_slope() -> None:
    few = measured(np.random.default_rng(6), nodes=20)
    made = build_snapshot(few, datetime.datetime.fromtimestamp((DAY + 1) * DAY_S, datetime.UTC), COMPARISONS)

    assert not len(made.slopes)
    assert adverse(compared(made, few), "clock_index").size == 20 * GPUS


def test_an_index_is_of_one_device_and_run() -> None:
    dice = np.random.default_rng(3)
    keys = keyed(together([measured(dice, 2), measured(dice, 2, "again")]), COMPARISONS)
    ratio = 1.0 + 0.01 * dice.standard_normal(len(keys))
    _, of = np.unique(np.stack([keys.visit, keys.device, keys.run]), axis=1, return_inverse=True)
    parts = [np.flatnonzero(of.ravel() == number) for number in range(2 * 2 * GPUS)]
    alone = np.concatenate([family_indices(keys.take(part), ratio[part]).value for part in parts])
    assert np.sort(family_indices(keys, ratio).value).tolist() == np.sort(alone).tolist()
    assert not len(family_indices(keys.take(parts[0][:0]), ratio[:0]))


def test_what_is_rare_for_two_readings_changes_nothing_for_one(snapshot: Snapshot, readings: pd.DataFrame) -> None:
    keys = keyed(readings, COMPARISONS)
    single = snapshot.tails[snapshot.tails["repeats"] == 1]
    milder = single.assign(repeats=2, **{name: single[name] / 2 for name in single if str(name).startswith("q")})
    known = [dataclasses.replace(snapshot, tails=pd.concat(tails)) for tails in ([single], [single, milder])]
    for rule in ("peers", "siblings"):
        one, two = (Thresholds(each, keys.skus, keys.catalogue).outlier(rule) for each in known)
        np.testing.assert_array_equal(one, two)
