"""``python -m tests.bench.traces.priors --data FOLDER --write``: the planner's priors from public fault records.

Each record's own estimate of each factor, with the interval that its count of faults allows (``EVIDENCE``), and the
records pooled, which production reads (``hazard.PRIORS``). The replay of a record leaves that record's estimates out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from muster.rules.idle import hazard
from muster.rules.idle.hazard import BINS, SWAPS, Model, Prior, Tally
from muster.rules.idle.history import GROUPS, NEIGHBOURS_MAX, History, Numbers
from tests.bench.traces.records import Record, read_folder

MADE_BY = "python -m tests.bench.traces.priors --data FOLDER --write"
EVIDENCE = Path(__file__).with_name("evidence.json")
WEAK = 0.5
"""Events for which the fit's own prior (no factor) counts, so that a cell without faults has a value."""
FEWEST = 3
"""A record says nothing of a factor of which it expects fewer faults than this, unless it saw as many."""
SOURCES = {
    "infinitehbd": "InfiniteHBD-Trace (stepfun-ai; SIGCOMM 2025): 400 servers of 8 GPUs, 348 days",
    "titan": "TitanGPULife (Ostrouchov et al., SC '20): K20X GPUs of Titan, 2014 to 2019, half of the machine",
    "lanl": "LANL LA-UR-05-7318, system 18: 1,024 nodes, 2002 to 2005, hardware outages",
}
STRENGTH_MAX = 20.0
"""A prior never counts for more events than these, however narrow its interval: no fleet is those of the records."""
QUARTER_H = 91 * 24.0
BASE_FROM = "infinitehbd"
"""The only record of servers of 8 GPUs: rates by group are its own."""


def fit(record: Record) -> dict[str, dict[str, Any]]:
    """Returns the record's estimates, by table and cell."""
    seen = _by_quarter(record)
    rate = (seen.faults.sum(axis=0) + WEAK) / seen.hours.sum()
    flat = Model(rate, *(np.ones(shape) for shape in (BINS, (len(GROUPS), BINS), SWAPS, NEIGHBOURS_MAX + 1)))
    weak = Model(*(np.full(each.shape, WEAK) for each in (flat.base, flat.since_any, flat.since_same, flat.since_swap,
                                                          flat.neighbours)))  # fmt: skip
    weak.since_any[-1] = weak.since_swap[-1] = weak.neighbours[0] = np.inf
    weak.since_same[:, -1] = np.inf
    model = hazard.learned(Prior(flat, weak), seen)
    expected = model.at(seen.cells) * seen.hours[:, None]
    tables = ("base", "since_any", "since_same", "since_swap", "neighbours")
    found: dict[str, dict[str, Any]] = {name: {} for name in tables}
    for group, name in enumerate(GROUPS):
        faults = float(seen.faults[:, group].sum())
        found["base"][name] = _estimate(faults, float(model.base[group]))
    for table, size in (("since_any", BINS), ("since_swap", SWAPS), ("neighbours", NEIGHBOURS_MAX + 1)):
        factor, of = getattr(model, table), getattr(seen.cells, table)
        for cell in range(size):
            at = of == cell
            faults, usual = float(seen.faults[at].sum()), float(expected[at].sum()) / float(factor[cell])
            found[table][str(cell)] = _ratio(faults, usual)
    found["since_same"] = _same(seen, expected, model)
    return found


def _by_quarter(record: Record) -> Tally:
    """The whole record; the quarter, with the last of the record's labels, is one more label: else a neighbour's fault
    stands for a bad year.
    """
    cuts = np.arange(0.0, record.hours + QUARTER_H, QUARTER_H)
    pieces = hazard.pieces(History(record.units, record.faults), cuts)
    labels = pieces.clocks.labels
    last = labels[:, -1] + 1 if labels.shape[1] else np.zeros(len(labels), dtype=np.int64)
    quarter = (pieces.begin // QUARTER_H).astype(np.int64) * (int(last.max(initial=0)) + 1) + last
    clocks = dataclasses.replace(pieces.clocks, labels=np.column_stack([labels, quarter]))
    return dataclasses.replace(pieces, clocks=clocks).tally()


def _same(seen: Tally, expected: Numbers, model: Model) -> dict[str, Any]:
    found: dict[str, Any] = {name: {} for name in ("all", *GROUPS)}
    for cell in range(BINS):
        faults, usual = np.zeros(len(GROUPS)), np.zeros(len(GROUPS))
        for group in range(len(GROUPS)):
            at = seen.cells.since_same[:, group] == cell
            faults[group] = seen.faults[at, group].sum()
            usual[group] = expected[at, group].sum() / model.since_same[group, cell]
            found[GROUPS[group]][str(cell)] = _ratio(faults[group], usual[group])
        found["all"][str(cell)] = _ratio(faults.sum(), usual.sum())
    return {name: {cell: each for cell, each in cells.items() if each} for name, cells in found.items()}


def _ratio(faults: float, usual: float) -> dict[str, float] | None:
    if max(faults, usual) < FEWEST:
        return None
    return _estimate(faults, (faults + WEAK) / (usual + WEAK))


def _estimate(faults: float, value: float) -> dict[str, float]:
    """``value`` with its 95 % interval, from so many faults (normal on the logarithm; 0.5 more for none)."""
    spread = float(np.exp(1.96 / np.sqrt(faults + WEAK)))
    each = {"value": value, "low": value / spread, "high": value * spread}
    return {name: float(f"{number:.3g}") for name, number in each.items()} | {"events": int(faults)}


def estimates(folder: Path) -> dict[str, Any]:
    """Returns what ``EVIDENCE`` has: by table and cell, each record's estimate."""
    fits: dict[str, dict[str, Any]] = {}
    for record in read_folder(folder):
        fits.setdefault(record.family, fit(record))
    made: dict[str, Any] = {
        "made_by": MADE_BY,
        "sources": {family: SOURCES.get(family, family) for family in fits},
        "days": list(hazard.EDGES_D),
        "base": {name: fits[BASE_FROM]["base"][name] | {"source": BASE_FROM} for name in GROUPS},
    }
    for table in ("since_any", "since_swap", "neighbours"):
        cells = sorted({cell for each in fits.values() for cell in each[table]}, key=int)
        made[table] = {cell: {family: each[table][cell] for family, each in fits.items() if each[table].get(cell)}
                       for cell in cells}  # fmt: skip
    made["since_same"] = {
        name: {
            str(cell): {family: each["since_same"][name][str(cell)] for family, each in fits.items()
                        if str(cell) in each["since_same"][name]}
            for cell in range(BINS - 1)
        }
        for name in ("all", *GROUPS)
    }  # fmt: skip
    return made


def pool(written: dict[str, Any], without: str = "") -> Prior:
    """Returns the prior of these estimates: of each factor the records' mean by precision, on the scale of logarithms.

    ``without``: the record that is left out, to be tested on it. A record's estimate is {"value", "low", "high",
    "events"}, with a 95 % interval. Where records differ by more than their intervals allow, the spread between them
    counts too (DerSimonian and Laird, 1986): a fleet may differ as they do.
    """

    def pooled(estimates: dict[str, Any], fallback: tuple[float, float]) -> tuple[float, float]:
        known = [each for record, each in estimates.items() if record != without and each["value"] > 0]
        if not known:
            return fallback
        log = np.log([each["value"] for each in known])
        variance = np.array([(np.log(each["high"] / each["low"]) / 3.92) ** 2 for each in known])
        between = 0.0
        if len(known) > 1:
            weight = 1.0 / variance
            mean = (weight * log).sum() / weight.sum()
            excess = (weight * (log - mean) ** 2).sum() - (len(known) - 1)
            between = max(0.0, excess / (weight.sum() - (weight**2).sum() / weight.sum()))
        weight = 1.0 / (variance + between)
        mean, spread = (weight * log).sum() / weight.sum(), between + 1.0 / weight.sum()
        return float(np.exp(mean)), float(min(STRENGTH_MAX, max(0.5, 1.0 / spread)))

    def table(name: str, size: int, reference: int) -> tuple[Numbers, Numbers]:
        values, strengths = np.ones(size), np.full(size, np.inf)
        for place in range(size):
            if place != reference:
                values[place], strengths[place] = pooled(written[name][str(place)], (1.0, 1.0))
        return values, strengths

    any_, any_strength = table("since_any", BINS, BINS - 1)
    swap, swap_strength = table("since_swap", SWAPS, SWAPS - 1)
    neighbours, neighbours_strength = table("neighbours", NEIGHBOURS_MAX + 1, 0)
    same, same_strength = np.ones((len(GROUPS), BINS)), np.full((len(GROUPS), BINS), np.inf)
    for place in range(BINS - 1):
        usual = pooled(written["since_same"]["all"][str(place)], (1.0, 1.0))
        for number, group in enumerate(GROUPS):
            own = written["since_same"].get(group, {}).get(str(place), {})
            same[number, place], same_strength[number, place] = pooled(own, usual)
    base = np.array([written["base"][group]["value"] for group in GROUPS])
    return Prior(
        Model(base, any_, same, swap, neighbours),
        Model(np.ones(len(GROUPS)), any_strength, same_strength, swap_strength, neighbours_strength),
    )


def as_json(prior: Prior) -> dict[str, Any]:
    """Returns the prior's tables as ``hazard.public_prior`` reads them, to the last bit; infinite strengths as such."""
    tables = ("base", "since_any", "since_same", "since_swap", "neighbours")
    parts = {"model": prior.model, "strength": prior.strength}
    return {each: {name: getattr(part, name).tolist() for name in tables} for each, part in parts.items()}


def by_row(pooled: dict[str, Any]) -> str:
    """Returns the prior as JSON, a table a line."""
    parts = (
        f' "{part}": {{\n' + ",\n".join(f'  "{name}": {json.dumps(table)}' for name, table in tables.items()) + "\n }"
        for part, tables in pooled.items()
    )
    return "{\n" + ",\n".join((f' "made_by": {json.dumps(MADE_BY)}', *parts)) + "\n}\n"


def main() -> int:
    """Print the estimates, and write them if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traces.priors", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"renew {EVIDENCE.name} and {hazard.PRIORS.name}")
    given = parser.parse_args()
    made = estimates(given.data)
    if given.write:
        EVIDENCE.write_text(json.dumps(made, indent=1) + "\n")
        hazard.PRIORS.write_text(by_row(as_json(pool(made))))
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
