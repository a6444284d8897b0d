"""``python -m tests.bench.accuracy.ablation --seed S``: what each statistical element of the judge contributes.

Judges the same simulated fleets once as the product does and once without each element, and prints a table in Markdown
and, as its last line, the figures as JSON. The defaults are an eighth of the accuracy bench's size.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from muster_criteria.fleet import budget, thresholds, verdicts
from muster_criteria.fleet.peers import explained, outliers, shapes, tails
from muster_criteria.fleet.series import keyed
from tests.bench.accuracy.bars import figures
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.evaluation import Row, Size, evaluate
from tests.bench.accuracy.fleet import CELLS, FLEET_NODES, draw_fleet, draw_trials
from tests.bench.accuracy.muster_judge import MusterJudge

WHOLE = "nothing"
SCREENING = Size(trials=250, healthy=5_000, tuning=20_000, fleets=2)


@dataclasses.dataclass(frozen=True)
class Element:
    """One element: how to judge without it, and the code that exists for it alone."""

    without: Callable[[], AbstractContextManager[Any]]
    code: Sequence[Any] = ()

    @property
    def lines(self) -> int:
        """Lines of source that would go with it."""
        return sum(len(inspect.getsource(each).splitlines()) for each in self.code)


def _likeliest_tail() -> AbstractContextManager[Any]:
    """The tail of highest likelihood (Pickands' maximum-likelihood fit on the same grid) replaces the average."""
    averaged = tails._Fits.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[tails._Fits], *given: Any, **named: Any) -> tails._Fits:
        fits = averaged(cls, *given, **named)
        return dataclasses.replace(fits, likely=(np.arange(len(fits.likely)) == fits.likely.argmax()).astype(float))

    # Priors are estimated from whole likelihoods, so they stay out: one fit has none.
    return _all(mock.patch.object(tails._Fits, "of", classmethod(of)), _no_priors())


def _no_priors() -> AbstractContextManager[Any]:
    return mock.patch.object(tails, "_priors", lambda ordered: [None] * len(ordered))


def _no_slopes() -> AbstractContextManager[Any]:
    """Indices are judged as they are: with no slope there is no explained index, so the plain one has its weight."""
    return _all(
        mock.patch.object(outliers, "estimated_slopes", return_value=pd.DataFrame(columns=list(explained.COLUMNS))),
        mock.patch.multiple(keyed, GIVEN_WEIGHT=0.0, INDEX_WEIGHT=keyed.INDEX_WEIGHT + keyed.GIVEN_WEIGHT),
    )


def _no_cusum() -> AbstractContextManager[Any]:
    nothing = {"low": (0.0, 0.0), "varied": (0.0, 0.0)}
    return _all(
        mock.patch.dict(budget.SHARES, cusum=nothing),
        mock.patch.dict(budget.SHARES_WITHOUT_PAST, cusum=nothing),
    )


def _equal_weights() -> AbstractContextManager[Any]:
    names = ("LOW_INDEX_WEIGHT", "MEMBER_WEIGHT", "INDEX_WEIGHT", "GIVEN_WEIGHT", "ALONE_WEIGHT")
    return mock.patch.multiple(keyed, **dict.fromkeys(names, 1.0))


def _equal_shares() -> AbstractContextManager[Any]:
    """The same sum, divided equally among rules, spreads, and single and confirmed readings."""
    total = sum(sum(pair) for spreads in budget.SHARES.values() for pair in spreads.values())
    each = total / (4 * len(budget.SHARES))
    equal = {rule: {"low": (each, each), "varied": (each, each)} for rule in budget.SHARES}
    return _all(mock.patch.dict(budget.SHARES, equal), mock.patch.dict(budget.SHARES_WITHOUT_PAST, equal))


def _all(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = contextlib.ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


ELEMENTS = {
    WHOLE: Element(contextlib.nullcontext),
    "averaged tails": Element(_likeliest_tail, [tails._Fits.shapes, shapes]),
    "hierarchical priors": Element(_no_priors, [shapes, tails._priors]),
    "slopes": Element(_no_slopes, [explained]),
    "CUSUM": Element(
        _no_cusum, [budget.cusum_limit, vars(thresholds.Thresholds)["cusum_limits"].func, verdicts._cusum]
    ),
    "series weights": Element(_equal_weights, [vars(keyed.Series)["weight"].fget]),
    "rule shares": Element(_equal_shares),
}
COLUMNS = {
    "false_fail_rate": "healthy failed, in 1,000",
    "recall_low_spread_5pct": "5 %, low spread",
    "recall_history_5pct": "5 %, three visits",
    "recall_first_visit_12pct": "12 %, first visit",
    "recall_discrete": "discrete",
    "localisation_min": "right GPU",
    "mean_first": "mean of all cells, first visit",
    "mean_later": "mean of all cells, later",
    "mean_growing": "mean of faults that grew over eight visits",
}


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The accuracy bars, and the mean recall over all cells of faults, by kind of visit."""
    bars = figures(rows)
    kinds = {visit: [row.found.rate for row in rows if row.cell.fault and row.visit == visit] for visit in _VISITS}
    means = {f"mean_{visit}": float(np.mean(rates)) for visit, rates in kinds.items()}
    return {name: value for name, value in (bars | means).items() if name in COLUMNS}


_VISITS = ("first", "later")
EARLIER, GROWING, GROWING_TRIALS = 11, 8, 50


def growing(seed: int, fleets: int, nodes: int) -> float:
    """Share of slowly growing faults that fail the node at the visit at which they reach their severity.

    Each grew evenly over the last ``GROWING`` of ``EARLIER`` earlier visits. Discrete faults and faults that are there
    or not are left out.
    """
    cells = [
        cell for cell in CELLS if cell.fault and cell.fault.group != "discrete" and cell.fault.how in ("times", "add")
    ]
    rates = []
    for number in range(fleets):
        rng = np.random.default_rng([seed, number, GROWING])
        hall = Hall.draw(rng, nodes)
        judge = MusterJudge(draw_fleet(rng, hall, nodes))
        trials = draw_trials(rng, hall, [(cell, GROWING_TRIALS) for cell in cells], EARLIER, growing=GROWING)
        rates.append(judge(trials).failed.mean())
    return float(np.mean(rates))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ablation and print it; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accuracy.ablation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(ELEMENTS), default=list(ELEMENTS), help="these elements")
    parser.add_argument("--fleets", type=int, default=SCREENING.fleets)
    parser.add_argument("--fleet-nodes", type=int, default=FLEET_NODES, help="nodes of each fleet")
    given = parser.parse_args(arguments)
    size = dataclasses.replace(SCREENING, fleets=given.fleets, fleet_nodes=given.fleet_nodes)
    found: dict[str, dict[str, float]] = {}
    print(f"Simulated, seed {given.seed}, {given.fleets} fleets of {given.fleet_nodes} nodes.\n")
    print(f"| without | lines | {' | '.join(COLUMNS.values())} |")
    print(f"|---|{'--:|' * (len(COLUMNS) + 1)}", flush=True)
    for name in given.only:
        with ELEMENTS[name].without():
            found[name] = summary(evaluate(given.seed, size, MusterJudge))
            found[name]["mean_growing"] = growing(given.seed, given.fleets, given.fleet_nodes)
        cells = [f"{found[name][key] * (1000 if key == 'false_fail_rate' else 100):.2f}" for key in COLUMNS]
        print(f"| {name} | {ELEMENTS[name].lines} | {' | '.join(cells)} |", flush=True)
    print(json.dumps({"seed": given.seed, "without": found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
