"""``python -m tests.bench.traces --data FOLDER --seed S``: the planner against simple rules on public fault records.

Reads every file of the folder whose name begins with infinitehbd-, titan- or lanl-. When a fault arose and whether a
test finds it are simulated; ``replay`` says how. Priors are those of the other records: no record is held against
factors that were fitted to itself. The simple rules make whole tests: the longest untested first, at random, the last
fault first. Ratios are of hidden defect-hours, below 1 where the planner is better; ``oracle`` is the share that one
would catch who knows the defects.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.traces.records import BadRecord, Record, read_folder
from tests.bench.traces.replay import Outcome, calibration, follow, replay

RULES = {"stalest": "ratio_to_stalest", "random": "ratio_to_random", "last_fault_first": "ratio_to_last_fault_first"}
SEEDS = 20
LEAST, MOST = 0.8, 1.25
"""The bar of observed over expected faults, for each tenth of what was expected."""


def main() -> int:
    """Print a table and the figures; returns 1 if a bar is missed, 2 if the folder holds no record."""
    from muster.settings import Settings

    share = float(Settings.model_fields["revalidation_share"].default)
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traces", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many drawings of hidden times")
    parser.add_argument("--share", type=float, default=share, help="of the units that may be under test at a time")
    given = parser.parse_args()
    records: dict[str, Any] = {}
    missed = False
    try:
        for record in read_folder(given.data):
            name = record.family if record.family not in records else record.name
            records[name] = figures = _figures(record, given)
            missed |= any(figures[key][2] >= 1.0 for key in RULES.values())
            missed |= not figures["calibration"]["within_bar"]
            _show(record, figures)
    except BadRecord as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"share": given.share, "seeds": given.seeds, "records": records}))
    return int(missed)


def _figures(record: Record, given: argparse.Namespace) -> dict[str, Any]:
    known = follow(record)
    outcomes = replay(known, [given.seed * 1000 + each for each in range(given.seeds)], given.share)
    found = {
        key: _interval([each.hours["planner"] / each.hours[rule] for each in outcomes]) for rule, key in RULES.items()
    }
    harm = {f"harm_{key}": _interval([each.harm["planner"] / each.harm[rule] for each in outcomes])
            for rule, key in RULES.items()}  # fmt: skip
    measured = calibration(known, given.seed)
    ratios = measured.ratios()
    return {
        "name": record.name, "units": len(record.units), "faults": len(record.faults), **found, **harm,
        "caught": _interval([each.caught["planner"] for each in outcomes]),
        "oracle": _interval([each.caught["oracle"] for each in outcomes]),
        "caught_by_rules": {rule: _interval([each.caught[rule] for each in outcomes]) for rule in RULES},
        "minutes_ratio": {rule: _interval([each.minutes["planner"] / each.minutes[rule] for each in outcomes])
                          for rule in RULES},
        "score_decided": _interval([_decided(each) for each in outcomes]),
        "calibration": {
            "observed_over_expected": np.round(ratios, 3).tolist(),
            "low": np.round(measured.low, 3).tolist(), "high": np.round(measured.high, 3).tolist(),
            "faults": measured.observed.astype(int).tolist(),
            "within_bar": bool(((ratios >= LEAST) & (ratios <= MOST)).all()),
            "tenths_whose_interval_misses_bar": int(((measured.high < LEAST) | (measured.low > MOST)).sum()),
        },
    }  # fmt: skip


def _decided(outcome: Outcome) -> float:
    return outcome.scored / max(outcome.minutes["planner"], 1e-9)


def _interval(values: list[float]) -> list[float]:
    """[2.5 %, middle, 97.5 %] over the seeds."""
    return [round(float(each), 3) for each in np.quantile(values, (0.025, 0.5, 0.975))]


def _show(record: Record, figures: dict[str, Any]) -> None:
    print(f"{record.name}: {figures['units']} units, {figures['faults']} faults\n")
    print("| | low | middle | high |\n|---|--:|--:|--:|")
    for key in (*RULES.values(), "caught", "oracle", "score_decided"):
        print(f"| {key} | " + " | ".join(f"{each:.2f}" for each in figures[key]) + " |")
    of = figures["calibration"]
    print("\nobserved/expected by tenth of risk, lowest first: ", end="")
    rows = zip(of["observed_over_expected"], of["low"], of["high"], strict=True)
    print(", ".join(f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in rows) + "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
