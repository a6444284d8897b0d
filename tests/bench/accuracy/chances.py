"""``python -m tests.bench.accuracy.chances --write``: how likely each stage finds which defects.

Makes the table by which idle nodes are chosen (``muster.rules.idle.hazard``): simulated faults of the accuracy bench,
each severity alike, at a later visit, judged stage by stage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np

from muster.rules.idle.history import GROUPS
from muster.rules.idle.worth import CHANCES
from muster_criteria.model import Judgement, Verdict
from muster_criteria.stages import STAGES
from tests.bench.accuracy.devices import Hall
from tests.bench.accuracy.fleet import CELLS, FLEET_NODES, draw_fleet, draw_trials
from tests.bench.accuracy.metrics import PROBES
from tests.bench.accuracy.muster_judge import MusterJudge
from tests.bench.accuracy.verdicts import Flags, Verdicts

EARLIER = 6
GROUP_OF = {
    "matrix units lost": "compute", "one format slow": "compute", "slow clock": "compute", "leakage": "compute",
    "clock left locked": "compute", "GPU missing": "compute",
    "HBM slow": "memory", "uncorrectable ECC": "memory", "memory loses bits": "memory", "row remap pending": "memory",
    "PCIe replays": "links", "PCIe speed down": "links", "PCIe width": "links", "NVLink replays": "links",
    "NVLink down": "links",
    "paste dried": "cooling", "overheats": "cooling", "air blocked": "fans",
    "power not delivered": "power", "power brake": "power",
    "wrong products": "corruption",
}  # fmt: skip


class ByStage(MusterJudge):
    """Notes which stages fail each node: ``stages`` is nodes × stages."""

    stages: Flags

    def _note(self, found: Verdicts, node: int, judgement: Judgement, again: Sequence[str]) -> None:
        super()._note(found, node, judgement, again)
        self.stages[node, STAGES.index(judgement.stage)] |= judgement.verdict is Verdict.FAIL


Table = dict[str, dict[str, float]]
"""By group and stage."""


def chances(seed: int, trials: int) -> tuple[Table, Table]:
    """The share of a group's faults that a stage finds, each class alike; and of those that it missed once, the share
    that it finds the next time, each severity alike.

    Raises AssertionError if no stage finds any fault of a group that is simulated.
    """
    rng = np.random.default_rng(seed)
    hall = Hall.draw(rng, FLEET_NODES)
    fleet = draw_fleet(rng, hall)
    judge = ByStage.__new__(ByStage)
    judge.stages = np.zeros((FLEET_NODES, len(STAGES)), dtype=np.bool_)
    judge.__init__(fleet)  # type: ignore[misc]
    cells = [cell for cell in CELLS if cell.fault]
    drawn = draw_trials(rng, hall, [(cell, trials) for cell in cells], EARLIER)
    judge.stages = np.zeros((len(drawn), len(STAGES)), dtype=np.bool_)
    judge(drawn)
    by_class: dict[str, list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = {}
    for number, cell in enumerate(cells):
        assert cell.fault is not None
        by_class.setdefault(cell.fault.name, []).append(judge.stages[drawn.cell == number].mean(axis=0))
    table: Table = {}
    again: Table = {}
    for group in GROUPS:
        cells_of = [rates for name, rates in by_class.items() if GROUP_OF[name] == group]
        classes = [np.mean(rates, axis=0) for rates in cells_of]
        assert not classes or np.any(classes), f"no stage finds a fault of {group}"
        means = np.mean(classes, axis=0) if classes else np.zeros(len(STAGES))  # of some groups no fault is simulated
        table[group] = dict(zip(STAGES, means.round(3).tolist(), strict=True))
        every = np.concatenate([np.array(rates) for rates in cells_of]) if cells_of else np.zeros((1, len(STAGES)))
        # Two of the drawn nodes of a severity, one missed and one found: p (1 - p), without bias.
        twice = (every * (1.0 - every)).sum(axis=0) * trials / max(trials - 1, 1)
        missed = (1.0 - every).sum(axis=0)
        found = np.divide(twice, missed, out=np.zeros_like(twice), where=missed > 0.0)
        again[group] = dict(zip(STAGES, found.round(3).tolist(), strict=True))
    return table, again


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write it if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accuracy.chances", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=100, help="of each class and severity")
    parser.add_argument("--write", action="store_true", help=f"renew {CHANCES.name}")
    given = parser.parse_args(arguments)
    minutes = {stage: sum(probe.seconds for probe in PROBES if probe.stage == stage) / 60.0 for stage in STAGES}
    found, again = chances(given.seed, given.trials)
    made = {
        "made_by": f"python -m tests.bench.accuracy.chances --seed {given.seed} --trials {given.trials} --write",
        "minutes": {stage: round(time, 1) for stage, time in minutes.items()},
        "chances": found,
    }
    text = json.dumps(made, indent=1)
    print(text)
    if given.write:
        CHANCES.write_text(text + "\n")
    print(json.dumps(made | {"after_a_miss": again}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
