"""Snapshots of peers: what is left out of them, which version they are, and that they come back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.readings import as_readings
from tests.muster_criteria.fleet_readings import DAY, scaled
from tests.muster_criteria.frozen_fleet import FLEET, NODE, Frozen, at


def test_nodes_under_suspicion_are_left_out_of_the_snapshot(frozen: Frozen) -> None:
    poisoned = scaled(frozen.earlier, 0.5, node=NODE)
    without = build_snapshot(poisoned, at(DAY - 1), FLEET.comparisons, exclude={NODE})
    clean = build_snapshot(
        frozen.earlier[frozen.earlier["node"] != NODE], at(DAY - 1), FLEET.comparisons, exclude=frozenset()
    )

    assert without.version == clean.version
    assert without.nodes == FLEET.nodes - 1
    assert without.version != build_snapshot(poisoned, at(DAY - 1), FLEET.comparisons).version


@pytest.mark.parametrize("column", ["labels", "device"])
def test_one_node_with_many_figures_weighs_no_more_than_another(frozen: Frozen, column: str) -> None:
    """Labels and devices that nothing requires: its thousands of wild figures change no scale, tail or budget."""
    own = frozen.earlier[(frozen.earlier["node"] == NODE) & (frozen.earlier["metric"] == "work_0")]
    rng = np.random.default_rng(3)
    wild = [
        own.astype({column: str}).assign(
            value=own["value"] * rng.standard_t(2, len(own)),
            **{column: f"x={at}" if column == "labels" else [f"gpu{8 + 8 * at + slot}" for slot in own["slot"]]},
        )
        for at in range(100)
    ]
    flooded = as_readings(pd.concat([frozen.earlier.astype({column: str}), *wild]).drop(columns=["kind", "slot"]))

    assert build_snapshot(flooded, at(DAY - 1), FLEET.comparisons).version == frozen.snapshot.version


def test_the_same_readings_make_the_same_version_whatever_their_order(frozen: Frozen) -> None:
    mixed = frozen.earlier.sample(frac=1.0, random_state=5)

    assert build_snapshot(mixed, at(DAY - 1), FLEET.comparisons).version == frozen.snapshot.version
    assert build_snapshot(frozen.earlier, at(DAY), FLEET.comparisons).version != frozen.snapshot.version


def test_a_snapshot_without_some_metrics_is_the_same_version_and_knows_the_others(frozen: Frozen) -> None:
    metrics = set(frozen.snapshot.cells["metric"])
    without = frozen.snapshot.without({"work_0"})

    assert set(without.cells["metric"]) == metrics - {"work_0"}
    assert without.version == frozen.snapshot.version
    assert frozen.snapshot.without({"unheard of"}) is frozen.snapshot


def test_other_work_of_the_probes_is_another_version(frozen: Frozen) -> None:
    other = build_snapshot(frozen.earlier, at(DAY - 1), FLEET.comparisons, work={"thermal/soak": "ab"})

    assert other.version != frozen.snapshot.version
    assert Snapshot.from_bytes(other.to_bytes()).work == {"thermal/soak": "ab"}


def test_a_snapshot_comes_back_as_it_was(frozen: Frozen) -> None:
    raw = frozen.snapshot.to_bytes()
    back = Snapshot.from_bytes(raw)
    assert (back.version, back.to_bytes()) == (frozen.snapshot.version, raw)
    for odd in (b"", b"nonsense", raw[:-20]):
        with pytest.raises(ValueError):
            Snapshot.from_bytes(odd)
