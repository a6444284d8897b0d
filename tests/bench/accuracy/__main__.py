"""``python -m tests.bench.accuracy --seed S``: how good the judge is, against its bars.

Everything is simulated. Prints tables in Markdown and, as its last line, the figures as JSON. Ends with status 1, and a
sentence for each, where bars are missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tests.bench.accuracy.bars import figures, missed
from tests.bench.accuracy.evaluation import NewJudge, Size, evaluate
from tests.bench.accuracy.muster_judge import MusterJudge
from tests.bench.accuracy.report import tables


def main(arguments: Sequence[str] | None = None, judge: NewJudge = MusterJudge) -> int:
    """Run the evaluation and print it; returns 1 if a bar is missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.accuracy", description=__doc__.splitlines()[0])
    standard = Size()
    parser.add_argument("--seed", type=int, default=1, help="any whole number: the trials follow from it")
    parser.add_argument("--trials", type=int, default=standard.trials, help="of each class, severity and kind of visit")
    parser.add_argument("--healthy", type=int, default=standard.healthy, help="healthy nodes, for each kind of visit")
    parser.add_argument("--fleets", type=int, default=standard.fleets, help="independent fleets to share them")
    parser.add_argument("--fleet-nodes", type=int, default=standard.fleet_nodes, help="nodes of each fleet")
    parser.add_argument("--tuning", type=int, default=standard.tuning, help="further healthy nodes for its false fails")
    given = parser.parse_args(arguments)
    size = Size(given.trials, given.healthy, given.tuning, given.fleets, given.fleet_nodes)
    rows = evaluate(given.seed, size, judge)
    found = figures(rows)
    print(_set_up(given.seed, size), tables(rows), sep="\n\n", end="\n\n")
    for sentence in missed(found):
        print(sentence, file=sys.stderr)
    print(json.dumps(found, ensure_ascii=False), flush=True)
    return 1 if missed(found) else 0


def _set_up(seed: int, size: Size) -> str:
    return (
        f"Simulated, seed {seed}: {size.fleets} fleets of {size.fleet_nodes:,} nodes with eight GPUs each. For each "
        f"kind of visit {size.trials:,} trials in each line and {size.healthy:,} healthy nodes, shared by the fleets; "
        f"Muster's false fails are counted on {size.tuning:,} more, and the tuned tests fail as many. Limits in "
        "the table are of all trials together; (worse): a tuned test finds more, beyond the intervals over the fleets. "
        "Smaller fleets know less of their tails and find less."
    )


if __name__ == "__main__":
    sys.exit(main())
