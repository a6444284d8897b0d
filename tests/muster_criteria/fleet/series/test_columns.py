"""What works on whole columns gives what a loop over rows would give."""

from __future__ import annotations

import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_criteria.fleet.peers.history import OWNER, VISIT_COLUMNS, History
from muster_criteria.fleet.series.keyed import Places, by_group, medians, others_medians
from muster_criteria.fleet.series.timeline import VISITS_MAX, row_medians

NUMBER = st.floats(-1e6, 1e6, width=32) | st.just(float("nan"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(NUMBER, min_size=VISITS_MAX, max_size=VISITS_MAX), max_size=12))
def test_the_median_of_a_row_is_that_of_its_known_values(rows: list[list[float]]) -> None:
    values = np.array(rows, dtype=np.float32).reshape(-1, VISITS_MAX)
    expected = [np.median(known) if (known := [x for x in row if x == x]) else np.nan for row in rows]
    assert row_medians(values) == pytest.approx(expected, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), NUMBER), max_size=30))
def test_the_median_of_a_group_is_that_of_its_known_values(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    found, counts = medians(np.array([value for _, value in pairs], dtype=np.float64), groups, 7)
    for group in range(7):
        known = [value for of, value in pairs if of == group and value == value]
        assert counts[group] == len(known)
        assert found[group] == pytest.approx(np.median(known) if known else np.nan, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(NUMBER, st.sampled_from([1.0, 2.0]))), max_size=30))
def test_a_value_is_compared_with_the_middle_of_the_others_that_is_nearer(pairs: list[tuple[int, float]]) -> None:
    groups = np.array([group for group, _ in pairs], dtype=np.int64)
    found, counts = others_medians(np.array([value for _, value in pairs], dtype=np.float64), groups, 4)
    for at, (group, own) in enumerate(pairs):
        others = [value for n, (of, value) in enumerate(pairs) if of == group and value == value and n != at]
        assert counts[at] == len(others) + (own == own)
        if others and own == own:
            nearer = min(max(own, statistics.median_low(others)), statistics.median_high(others))
            assert found[at] == nearer


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([41, 10_000_000]))
def test_a_key_is_found_where_it_first_stands(keys: list[int], size: int) -> None:
    wanted = np.arange(-1, 41)
    found = Places.of(np.array(keys, dtype=np.int64), size).find(wanted).tolist()
    assert found == [keys.index(key) if key in keys else -1 for key in wanted.tolist()]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.sampled_from([7, 255, 256, 70_000]))
def test_positions_by_group_keep_their_order(groups: list[int], size: int) -> None:
    order, starts = by_group(np.array(groups, dtype=np.int16), size)
    for group in range(7):
        assert order[starts[group] : starts[group + 1]].tolist() == [at for at, of in enumerate(groups) if of == group]
    assert len(starts) == size + 1
    assert starts[-1] == len(groups)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abcd"), max_size=20), st.lists(st.sampled_from("abcdx"), max_size=4))
def test_the_history_of_some_nodes_is_that_of_each(nodes: list[str], wanted: list[str]) -> None:
    frame = pd.DataFrame(dict.fromkeys(OWNER, nodes), dtype="str").astype("category")
    history = History(frame.assign(**{name: np.arange(len(nodes), dtype=np.float32) for name in VISIT_COLUMNS}))
    some = history.of_nodes(wanted)
    assert some.series["node"].cat.categories.tolist() == sorted({*nodes} & {*wanted})
    for name in "abcdx":
        own = history.of(name) if name in wanted else History(frame[:0])
        assert some.of(name).series["node"].tolist() == own.series["node"].tolist()
        assert name not in wanted or some.of(name).values.tolist() == own.values.tolist()


def test_medians_of_nothing() -> None:
    found, counts = medians(np.empty(0), np.empty(0, dtype=np.int64), 0)
    assert (len(found), len(counts)) == (0, 0)
    assert pd.isna(medians(np.array([np.nan]), np.array([0]), 1)[0]).all()
