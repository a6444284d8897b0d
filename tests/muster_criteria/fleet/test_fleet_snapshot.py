"""Snapshots of peers, and histories: what is left out of them, which version they are, and that they come back."""

from __future__ import annotations

import pytest

from muster_criteria.fleet.history import History
from muster_criteria.fleet.snapshot import Snapshot, build_snapshot
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
