"""What holds of the fleet's rules whatever they are given: order, company, worse numbers, absurd ones, and none."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.fleet.series.readings import as_readings
from tests.muster_criteria.fleet_readings import scaled
from tests.muster_criteria.frozen_fleet import NODE, Frozen, level
from tests.support.examples import examples

GRAVITY = ["PASS", "WARN", "RETEST", "FAIL"]


def test_another_unit_is_not_compared(frozen: Frozen) -> None:
    today = level(frozen).assign(unit=pd.Categorical(["GFLOPS"] * len(level(frozen))))

    assert set(frozen.judge(today).words.values()) == {"NONE"}


def test_one_node_alone_gets_the_judgement_that_it_gets_in_the_fleet(frozen: Frozen) -> None:
    today = scaled(frozen.today, 0.93, node=NODE, device="gpu3")
    whole, alone = (
        frozen.judge(today, frozen.history),
        frozen.judge(today[today["node"] == NODE].reset_index(drop=True), frozen.history.of(NODE)),
    )

    assert whole.judgements[NODE] == alone.judgements[NODE]


@examples(6)
@given(seed=st.integers(0, 2**32), factor=st.floats(0.01, 0.999))
def test_worsening_a_device_never_improves_its_verdict(frozen: Frozen, seed: int, factor: float) -> None:
    """References frozen: siblings of that metric included, whose median one of eight can move a little."""
    dice = random.Random(seed)
    where = {"device": f"gpu{dice.randrange(8)}", "metric": dice.choice(["work_0", "clock_1"])}
    before = scaled(frozen.of_node(), dice.uniform(0.85, 1.1), **where)
    worse = scaled(before, factor, **where)
    verdicts = [frozen.judge(today, frozen.history.of(NODE)).words[NODE] for today in (before, worse)]

    assert GRAVITY.index(verdicts[1]) >= GRAVITY.index(verdicts[0])


@examples(3)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_rows_changes_nothing(frozen: Frozen, seed: int) -> None:
    today = scaled(frozen.of_node(), 0.9, device="gpu3", metric="work_0")
    straight = frozen.judge(today, frozen.history)
    mixed = frozen.judge(today.sample(frac=1.0, random_state=seed % 2**31), frozen.history)

    assert straight == mixed


ODD = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, -1e300, 5e-324])


@examples(6)
@pytest.mark.filterwarnings("error::RuntimeWarning")
@given(odd=ODD, seed=st.integers(0, 2**32), how_many=st.integers(1, 48))
def test_absurd_numbers_never_raise_and_spare_none(frozen: Frozen, odd: float, seed: int, how_many: int) -> None:
    today = scaled(frozen.of_node(), 0.7, device="gpu3", metric="work_0")
    others = np.flatnonzero(~((today["device"] == "gpu3") & (today["metric"] == "work_0")).to_numpy())
    chosen = np.random.default_rng(seed).choice(others, min(how_many, len(others)), replace=False)
    value = today["value"].to_numpy().copy()
    value[chosen] = odd
    found = frozen.judge(today.assign(value=value), frozen.history)

    assert found.words[NODE] == "FAIL"


def test_nothing_measured_is_nothing_judged(frozen: Frozen) -> None:
    nothing = as_readings(frozen.today.iloc[:0].astype({"node": str}))

    assert not frozen.judge(nothing, frozen.history).judgements
    empty = frozen.of_node().assign(value=np.nan)
    assert list(frozen.judge(empty, frozen.history).words.values()) == ["NONE"]
