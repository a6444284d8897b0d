"""Bars: what a bench's status and the page call missed; and the true chances of the simulated faults."""

from __future__ import annotations

import numpy as np
import pytest

from muster.rules.idle import worth
from muster.rules.idle.history import GROUPS, Faults, Units
from tests.bench import bars
from tests.bench.revalidation import barred, true_chances
from tests.bench.traces.records import Record
from tests.bench.traces.replay import _Hidden, _Seed

JUDGED = {"seconds": 6.0, "peak_mb": 1000.0, "one_node_seconds": 0.5, "times_data_diagnosis": 5.0}


@pytest.mark.parametrize(("changed", "missed"), [
    ({}, []),
    ({"times_data_diagnosis": 4.99}, ["times_data_diagnosis"]),
    ({"seconds": 6.01, "peak_mb": 1001.0}, ["seconds", "peak_mb"]),
    ({"seconds": float("nan")}, ["seconds"]),
    ({"seconds": None}, ["seconds"]),
])  # fmt: skip
def test_a_figure_beyond_its_bar_makes_the_status_1(changed: dict[str, float | None], missed: list[str]) -> None:
    figures = JUDGED | changed
    assert bars.missed(figures, bars.JUDGE) == missed
    assert bars.status(figures, bars.JUDGE) == bool(missed)


@pytest.mark.parametrize(("ratios", "share", "missed"), [
    ({0.01: 0.9, 0.004: 0.5}, 0.01, []),
    ({0.01: 0.9, 0.004: 0.6}, 0.01, ["at 0.004"]),  # as --shares 0.004 measures it
    ({0.004: 0.6}, 0.004, ["at 0.004"]),
    ({0.01: 1.1, 0.05: 1.2}, 0.01, ["at 0.01"]),
])  # fmt: skip
def test_the_thrifty_share_has_its_bar_however_it_was_asked_for(
    ratios: dict[float, float], share: float, missed: list[str]
) -> None:
    by_share = {
        each: {"hidden_defect_hours_ratio": {"to_stalest": 0.1, "to_random": ratio}} for each, ratio in ratios.items()
    }
    assert bars.missed(*barred({"plan_seconds": 2.0, "learn_seconds": 2.0}, by_share, share)) == missed


def test_true_chances_differ_from_the_planners_but_for_what_no_stage_can_find() -> None:
    known, true = worth.chances(), true_chances(np.random.default_rng(1))
    assert (true[known == 0.0] == 0.0).all()
    assert (true[(known > 0.0) & (known < 0.9)] != known[(known > 0.0) & (known < 0.9)]).all()
    assert ((true >= 0.0) & (true <= 1.0)).all()


@pytest.mark.parametrize("finds", [False, True])
def test_a_replayed_test_finds_a_fault_with_the_true_chance(finds: bool) -> None:
    one, whole = np.array([0.0]), np.array([0])
    units = Units(one, one + 1000.0, whole, whole, whole, whole[:, None])
    faults = Faults(whole, whole + GROUPS.index("compute"), one + 500.0, one + 501.0, whole, whole, whole)
    run = _Seed(Record("r", "r", units, faults, 1000.0), faults, one, seed=1)
    assert (run.chances != worth.chances()).any()
    run.chances = np.full_like(run.chances, float(finds))
    fate = _Hidden(np.zeros((1, len(worth.STAGES))), np.array([np.inf]))
    assert run._test(499.9, whole, whole, whole, 1000.0, fate) == 1
    assert np.isfinite(fate.caught_at).tolist() == [finds]
