"""What the judge has to reach, and what of it was missed.

Thermal faults fall under the bar for later visits only: the spread of thermal resistance between healthy parts is wider
than the clock variation's, and no bar is set for it at the first visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.bench.accuracy.counting import Count, limits_over
from tests.bench.accuracy.evaluation import MUSTER, Row

RECALL = 0.99
FALSE_FAILS = 1e-3
LOCALISATION = 0.99
TRIALS, HEALTHY = 1000, 20_000
LOW_SPREAD, HISTORY, FIRST_VISIT = 0.05, 0.05, 0.12
TUNED = ("share of mean", "share of figure", "own history")


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures that the run ends with; a minimum over no row at all is None."""
    healthy = [row for row in rows if row.cell.fault is None]
    faulty = [row for row in rows if row.cell.fault is not None]
    worst = max(healthy, key=lambda row: row.found.rate)
    return {
        "recall_low_spread_5pct": _least(row.found.rate for row in faulty if _is(row, "low spread", LOW_SPREAD)),
        "recall_history_5pct": _least(
            row.found.rate
            for row in faulty
            if row.visit == "later" and _is(row, ("low spread", "varied", "thermal"), HISTORY)
        ),
        "recall_first_visit_12pct": _least(
            row.found.rate for row in faulty if row.visit == "first" and _is(row, "varied", FIRST_VISIT)
        ),
        "recall_discrete": _least(row.shown.rate for row in faulty if _is(row, "discrete") and row.shown.of),
        "false_fail_rate": worst.found.rate,
        "false_fail_upper95": limits_over(worst.by_fleet[MUSTER])[1],
        "localisation_min": _least(located.rate for located in _located(faulty) if located.of),
        "worse_than_baseline": [_named(row, than) for row in faulty if (than := worse_than(row))],
        "worse_in_these_fleets": [_named(row, than) for row in faulty if (than := worse_in_these_fleets(row))],
        "trials_per_cell_min": min(row.found.of for row in faulty),
        "healthy_judgements": sum(row.found.of for row in healthy),
    }


def worse_than(row: Row) -> str | None:
    """The best of the tuned baselines, where its 95 % interval lies wholly above Muster's; else None.

    Intervals over the fleets, since those over all trials alone would take the fleets' luck for skill.
    """
    best = best_rival(row)
    return best if limits_over(row.by_fleet[MUSTER])[1] < limits_over(row.by_fleet[best])[0] else None


def worse_in_these_fleets(row: Row) -> str | None:
    """The same of these very fleets, whose luck with their tails counts for or against Muster. No bar."""
    best = best_rival(row)
    return best if row.found.high < row.others[best].low else None


def best_rival(row: Row) -> str:
    """The tuned baseline that finds most of this row's nodes."""
    return max(TUNED, key=lambda name: row.others[name].rate)


def missed(found: dict[str, Any]) -> list[str]:
    """A sentence for each bar that was missed; a figure that is None counts as missed."""
    bars: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("recall_low_spread_5pct", lambda x: x is not None and x >= RECALL, f"at least {RECALL:g}"),
        ("recall_history_5pct", lambda x: x is not None and x >= RECALL, f"at least {RECALL:g}"),
        ("recall_first_visit_12pct", lambda x: x is not None and x >= RECALL, f"at least {RECALL:g}"),
        ("recall_discrete", lambda x: x is not None and x >= RECALL, f"at least {RECALL:g}"),
        ("false_fail_rate", lambda x: x <= FALSE_FAILS, f"at most {FALSE_FAILS:g}"),
        ("localisation_min", lambda x: x is not None and x >= LOCALISATION, f"at least {LOCALISATION:g}"),
        ("worse_than_baseline", lambda x: not x, "empty"),
        ("trials_per_cell_min", lambda x: x >= TRIALS, f"at least {TRIALS:,}"),
        ("healthy_judgements", lambda x: x >= HEALTHY, f"at least {HEALTHY:,}"),
    )
    return [f"{key} is {found[key]}, but should be {demand}." for key, holds, demand in bars if not holds(found[key])]


def _located(faulty: Iterable[Row]) -> Iterable[Count]:
    """Of each class at each kind of visit, all severities together: of hardly any node failed, chance would decide."""
    classes: dict[tuple[str, str], Count] = {}
    for row in faulty:
        key = (row.cell.fault.name if row.cell.fault else "", row.visit)
        classes[key] = classes.get(key, Count()) + row.located
    return classes.values()


def _is(row: Row, group: str | tuple[str, ...], effect: float = 0.0) -> bool:
    fault, severity = row.cell.fault, row.cell.severity
    if fault is None or severity is None or fault.group not in ((group,) if isinstance(group, str) else group):
        return False
    return severity.effect is None or severity.effect >= effect


def _least(rates: Iterable[float]) -> float | None:
    return min(rates, default=None)


def _named(row: Row, than: str) -> str:
    name, label = (row.cell.fault.name, row.cell.severity.label) if row.cell.fault and row.cell.severity else ("", "")
    cell = f"{name} {label}".strip()
    return f"{cell}, {row.visit} visit: {row.found.rate:.3f} against {than}, {row.others[than].rate:.3f}"
