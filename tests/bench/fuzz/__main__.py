"""``python -m tests.bench.fuzz --edge NAME --inputs N --seed S``: mutated real inputs at one edge, or at all of them.

Prints a table, the first examples of each defect, and one JSON object as the last line: of the edge, or with ``all``
the sums and each edge's own under ``edges``. Ends with status 1 if there is a defect.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import pkgutil
import sys
import time
from collections.abc import Sequence

from tests.bench.fuzz import edges
from tests.bench.fuzz.edge import DEFECTS, Edge, run

ALL = "all"


def names() -> list[str]:
    """The edges that there are."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(edges.__path__))


def load(name: str) -> Edge:
    """The edge of that name."""
    module = importlib.import_module(f"{edges.__name__}.{name.replace('-', '_')}")
    found = module.EDGE
    assert isinstance(found, Edge)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; returns 1 if there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fuzz", description=__doc__)
    parser.add_argument("--edge", choices=[ALL, *names()], default=ALL)
    parser.add_argument("--inputs", type=int, default=1_000, help="inputs of each edge")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # the judge logs its own errors; here they are counted
    found: dict[str, dict[str, int]] = {}
    print(f"| edge | inputs | {' | '.join(DEFECTS)} | s |\n|---|--:|{'--:|' * (len(DEFECTS) + 1)}")
    for name in names() if given.edge == ALL else [given.edge]:
        began = time.perf_counter()
        tally = run(load(name), given.inputs, given.seed)
        found[name] = {"inputs": given.inputs, **{kind: tally.counts[kind] for kind in DEFECTS}}
        cells = " | ".join(str(count) for count in found[name].values())
        print(f"| {name} | {cells} | {time.perf_counter() - began:.0f} |")
        for example in tally.examples:
            print(f"  {example}")
        sys.stdout.flush()
    total = {key: sum(each[key] for each in found.values()) for key in ("inputs", *DEFECTS)}
    more = {"edges": found} if given.edge == ALL else {}
    print(json.dumps({"edge": given.edge, "seed": given.seed, **total, **more}))
    return int(any(total[kind] for kind in DEFECTS))


if __name__ == "__main__":
    sys.exit(main())
