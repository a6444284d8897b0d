"""How the accuracy benchmark counts: limits of rates, tuned baselines, bars, and the tables."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.bench.accuracy.bars import FALSE_FAILS, TUNED, figures, missed, worse_in_these_fleets, worse_than
from tests.bench.accuracy.baselines import Baseline, baselines, own_mean
from tests.bench.accuracy.counting import Count, limits_over
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.evaluation import MUSTER, Row, Size, evaluate, rows_of
from tests.bench.accuracy.fleet import CELLS, HEALTHY, Cell, Trials, draw_fleet, draw_trials
from tests.bench.accuracy.report import tables
from tests.bench.accuracy.stored_limits import EFFECT_MIN, Table, generator_medians
from tests.bench.accuracy.verdicts import Verdicts, shows

GOOD: dict[str, Any] = {
    "recall_low_spread_5pct": 0.995,
    "recall_history_5pct": 0.99,
    "recall_first_visit_12pct": 1.0,
    "recall_discrete": 1.0,
    "false_fail_rate": 0.001,
    "false_fail_upper95": 0.0014,
    "localisation_min": 0.99,
    "worse_than_baseline": [],
    "worse_in_these_fleets": [],
    "trials_per_cell_min": 1000,
    "healthy_judgements": 20_000,
}


def _cell(name: str, label: str) -> Cell:
    known = {(cell.fault.name, cell.severity.label): cell for cell in CELLS if cell.fault and cell.severity}
    return known[name, label]


def _row(cell: Cell, visit: str, hits: int, others: int = 0, located: int | None = None) -> Row:
    return Row(
        cell,
        visit,
        shown=Count(hits, 1000),
        located=Count(hits if located is None else located, hits),
        warned=Count(),
        retested=Count(0, 1000),
        minutes=float(hits),
        by_fleet={MUSTER: _parts(hits), **dict.fromkeys((*TUNED, "75 % of figure"), _parts(others))},
    )


def _parts(hits: int) -> tuple[Count, ...]:
    """So many of 1,000, over ten fleets as evenly as can be."""
    return tuple(Count(hits // 10 + (fleet < hits % 10), 100) for fleet in range(10))


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [
        (0, 20_000, 0.0, 1.844e-4),
        (20_000, 20_000, 1 - 1.844e-4, 1.0),
        (5, 10, 0.1871, 0.8129),
        (1, 1000, 2.5e-5, 0.00556),
    ],
)
def test_limits_are_clopper_and_pearsons(hits: int, of: int, low: float, high: float) -> None:
    count = Count(hits, of)
    assert count.low == pytest.approx(low, rel=0.02, abs=1e-7)
    assert count.high == pytest.approx(high, rel=0.02)


def test_counts_add_up_and_none_has_no_rate() -> None:
    assert Count(1, 4) + Count(2, 6) == Count(3, 10)
    assert math.isnan(Count().rate)


@pytest.fixture(scope="module")
def healthy() -> tuple[Trials, Trials]:
    rng = np.random.default_rng(1)
    hall = Hall.draw(rng, 400)
    return draw_fleet(rng, hall, 400), draw_trials(rng, hall, [(HEALTHY, 12_000)], 3)


@pytest.fixture(scope="module")
def rivals(healthy: tuple[Trials, Trials]) -> dict[str, Baseline]:
    """The baselines beside a small fleet, with the stored limits for one healthy node in 1,000."""
    fleet, _ = healthy
    return {each.name: each for each in baselines(fleet.today.readings, Table.load().at(FALSE_FAILS))}


@pytest.mark.parametrize("name", TUNED)
def test_stored_limits_fail_one_healthy_node_in_a_thousand(
    name: str, healthy: tuple[Trials, Trials], rivals: dict[str, Baseline]
) -> None:
    """Of 12,000 nodes 12 are expected, and 26 or more come once in 3,000 times."""
    assert 1 <= np.count_nonzero(rivals[name].judge(healthy[1]).failed) <= 25


def test_stored_limits_are_of_this_generator() -> None:
    """Where it changed, they must be tuned again."""
    assert Table.load().generator == pytest.approx(generator_medians())


def test_untuned_minus_five_percent_fails_most_healthy_nodes_and_75_percent_of_a_figure_none(
    healthy: tuple[Trials, Trials], rivals: dict[str, Baseline]
) -> None:
    assert rivals["−5 % of mean"].judge(healthy[1]).failed.mean() > 0.5
    assert not rivals["75 % of figure"].judge(healthy[1]).failed.any()


def test_limits_between_stored_shares_are_interpolated() -> None:
    table = Table.load()
    low, middle, high = (table.at(share)["share of mean"] for share in (1e-4, 3e-4, 1e-3))
    assert all(low[key] >= middle[key] >= high[key] >= EFFECT_MIN for key in low)
    stored = table.limits["share of mean"]
    assert table.at(table.shares[3])["share of mean"] == pytest.approx({key: of[3] for key, of in stored.items()})


def test_own_history_says_nothing_at_a_first_visit_but_makes_the_discrete_checks() -> None:
    rng = np.random.default_rng(2)
    hall = Hall.draw(rng, 100)
    trials = draw_trials(rng, hall, [(_cell("slow clock", "−20 %"), 50), (_cell("PCIe width", "x8"), 50)], 0)
    own = Baseline("own history", own_mean, {})
    assert (own.judge(trials).failed == (trials.cell == 1)).all()


def test_a_row_counts_the_nodes_of_its_cell_and_the_devices_named() -> None:
    rng = np.random.default_rng(3)
    trials = draw_trials(rng, Hall.draw(rng, 100), [(HEALTHY, 40), (_cell("PCIe width", "x8"), 60)], 0)
    named = shows(trials.today.readings)
    named[0, 0] = True  # a healthy node
    named[99] = True  # a faulty one, of which every GPU is named
    sound, faulty = rows_of(trials, "first", Verdicts.plain(named), {"rival": Verdicts.none(len(trials))})
    assert (sound.found, faulty.found) == (Count(1, 40), Count(60, 60))
    assert faulty.shown == Count(60, 60)
    assert faulty.located == Count(59, 60)
    assert faulty.others == {"rival": Count(0, 60)}


def test_rows_of_different_cells_do_not_add_up() -> None:
    one = _row(_cell("slow clock", "−12 %"), "first", 10)
    assert (one + one).found == Count(20, 2000)
    with pytest.raises(ValueError, match="one cell"):
        one + dataclasses.replace(one, visit="later")


def test_figures_take_the_minimum_over_the_classes_that_a_bar_is_about() -> None:
    rows = [
        _row(HEALTHY, "first", 1),
        _row(HEALTHY, "later", 0),
        _row(_cell("HBM slow", "−3 %"), "first", 100),  # below the bar's 5 %
        _row(_cell("HBM slow", "−5 %"), "first", 990),
        _row(_cell("HBM slow", "−5 %"), "later", 995),
        _row(_cell("slow clock", "−8 %"), "first", 300),  # below the first visit's 12 %
        _row(_cell("slow clock", "−12 %"), "first", 991, located=985),
        _row(_cell("slow clock", "−5 %"), "later", 993),
        _row(_cell("paste dried", "R × 1.1"), "first", 0),  # thermal: later visits only
        _row(_cell("paste dried", "R × 1.1"), "later", 992),
        _row(_cell("GPU missing", ""), "first", 1000),
    ]
    found = figures(rows)
    assert found["recall_low_spread_5pct"] == 0.990
    assert found["recall_history_5pct"] == 0.992
    assert found["recall_first_visit_12pct"] == 0.991
    assert found["recall_discrete"] == 1.0
    assert found["false_fail_rate"] == 0.001
    assert found["false_fail_upper95"] == pytest.approx(limits_over(_parts(1))[1])
    assert found["localisation_min"] == pytest.approx((300 + 985) / (300 + 991)), "of a class, all severities together"
    assert found["healthy_judgements"] == 2000
    assert list(found) == list(GOOD)


def test_no_bar_is_missed_at_its_edge() -> None:
    assert missed(GOOD) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("recall_low_spread_5pct", 0.989), ("recall_history_5pct", None), ("recall_first_visit_12pct", 0.0),
        ("recall_discrete", 0.98), ("false_fail_rate", 0.00101), ("localisation_min", 0.98),
        ("worse_than_baseline", ["HBM slow"]), ("trials_per_cell_min", 999), ("healthy_judgements", 19_999),
    ],
)  # fmt: skip
def test_each_missed_bar_has_its_sentence(key: str, value: object) -> None:
    (sentence,) = missed(GOOD | {key: value})
    assert sentence.startswith(key)


def test_worse_is_what_chance_does_not_explain() -> None:
    cell = _cell("slow clock", "−8 %")
    assert worse_than(_row(cell, "first", 500, others=560)) is None
    assert worse_than(_row(cell, "first", 500, others=580)) == "share of mean"
    assert worse_than(_row(cell, "first", 999, others=1000)) is None
    lucky = tuple(Count(100 if fleet < 5 else 0, 100) for fleet in range(10))
    row = _row(cell, "first", 500, others=700)
    assert worse_than(row) == "share of mean"
    by_luck = dataclasses.replace(row, by_fleet={**row.by_fleet, MUSTER: lucky})
    assert worse_than(by_luck) is None
    assert worse_in_these_fleets(by_luck) == "share of mean"


def test_limits_over_fleets_are_wider_by_what_the_fleets_differ() -> None:
    alike = limits_over(_parts(500))
    assert alike[0] < Count(500, 1000).low
    assert alike[1] > Count(500, 1000).high
    apart = limits_over([Count(40 + 20 * (fleet % 2), 100) for fleet in range(10)])
    assert apart[1] - apart[0] > 1.5 * (alike[1] - alike[0])
    assert limits_over([Count(500, 1000)]) == (Count(500, 1000).low, Count(500, 1000).high)
    assert limits_over([Count(0, 10)] * 3) == (0.0, Count(0, 30).high)


def test_the_table_has_a_line_for_each_class_and_severity_and_one_for_each_judge() -> None:
    def silent(fleet: Trials) -> Any:
        return lambda trials: Verdicts.none(len(trials))

    cells = (_cell("slow clock", "−12 %"), _cell("GPU missing", ""))
    rows = evaluate(5, Size(trials=20, healthy=60, tuning=200, fleets=2, fleet_nodes=100), silent, cells)
    assert len(rows) == 2 * (1 + len(cells))
    assert all(row.found == Count(0, 20) for row in rows if row.cell.fault)
    assert [len(row.by_fleet[MUSTER]) for row in rows] == [2] * len(rows)
    assert {row.found for row in rows if row.cell == HEALTHY} == {Count(0, 60 + 200)}
    text = tables(rows)
    assert "| slow clock | −12 % | 0.000 [0.000, 0.168]" in text
    assert "| −5 % of mean |" in text
