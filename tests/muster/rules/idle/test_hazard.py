"""How what a fleet showed is summed up and learned from."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.rules.idle import hazard
from muster.rules.idle.history import Faults, History, Units
from tests.bench.traces import priors

ROWS = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([-1, 0, 1, 7, 10**9, 2**62]), min_size=width, max_size=width), min_size=1, max_size=30
    )
)


def test_the_prior_is_that_of_the_records() -> None:
    pooled = priors.as_json(priors.pool(json.loads(priors.EVIDENCE.read_text())))
    assert _alike(priors.as_json(hazard.public_prior()), pooled)
    assert hazard.PRIORS.read_text() == priors.by_row(priors.as_json(hazard.public_prior()))


def _alike(one: object, other: object) -> bool:
    """Equal but for rounding, which differs between processors."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == pytest.approx(other, rel=1e-12, abs=0.0))


@given(ROWS)
def test_equal_rows_and_no_others_have_one_key(rows: list[list[int]]) -> None:
    """Also where the digits of all columns do not fit into 64 bits."""
    keys = hazard._keys(np.array(rows, dtype=np.int64)).tolist()
    assert len(set(keys)) == len({tuple(row) for row in rows}) == len(set(zip(keys, map(tuple, rows), strict=True)))


def _steps(at: int, came: float, due: float) -> tuple[np.ndarray, np.ndarray]:
    found = np.full((2, len(hazard.STEPS) + 1), 10.0)
    found[:, at] = came, due
    return found[0], found[1]


def test_what_came_as_predicted_is_predicted_so_again() -> None:
    assert hazard._recalibrated(*_steps(0, 10.0, 10.0)) == pytest.approx((1.0, 0.0))
    nothing = np.zeros(len(hazard.STEPS) + 1)
    assert hazard._recalibrated(nothing, nothing) == pytest.approx((1.0, 0.0))


def test_risks_that_were_predicted_too_far_apart_are_drawn_together() -> None:
    """More where the least was predicted, less where the most was; and the reverse."""
    assert hazard._recalibrated(*_steps(0, 30.0, 10.0))[1] < -0.05
    assert hazard._recalibrated(*_steps(-1, 3.0, 10.0))[1] < -0.05
    assert hazard._recalibrated(*_steps(-1, 30.0, 10.0))[1] > 0.05


def _came_over_predicted(years: int, units: int, count: int) -> float:
    """Faults over those predicted, after the first year, where the risk doubles each year."""
    hours, doubling = years * 8760.0, 8760.0
    at = doubling * np.log2(1.0 + (np.arange(count) + 0.5) / count * (2.0 ** (hours / doubling) - 1.0))
    unit, each = np.arange(count) % units, np.arange(units)
    racks = np.full(units, -1)
    fleet = Units(np.zeros(units), np.full(units, hours), each, each, racks, np.zeros((units, 0), dtype=np.int64))
    faults = Faults(unit, np.full(count, 8), at, at + 24.0, unit, unit, racks[unit])
    cuts = np.append(np.arange(0.0, hours, 30 * 24.0), hours)
    models, pieces = hazard.followed(History(fleet, faults), hazard.public_prior(), cuts)
    late = range(int(8760.0 / (30 * 24.0)), len(cuts) - 1)
    known = [(models[place], pieces.between(cuts[place], cuts[place + 1]).tally()) for place in late]
    expected = sum(float((model.at(now.cells).sum(axis=1) * now.hours).sum()) for model, now in known)
    return sum(float(now.faults.sum()) for _, now in known) / expected


def test_what_remained_of_earlier_predictions_corrects_a_risk_that_rises_for_years(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corrected = _came_over_predicted(4, 400, 2000)
    monkeypatch.setattr(hazard, "REMAINED_STRENGTH", 1e12)
    assert abs(corrected - 1.0) < abs(_came_over_predicted(4, 400, 2000) - 1.0) / 2.0
