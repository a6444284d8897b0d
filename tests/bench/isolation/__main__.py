"""How many rounds name every bad part of a simulated fabric, beside other ways to isolate.

Run as ``python -m tests.bench.isolation --nodes 1024 --rails 8 --bad 10 --nics 10 --links 3 --leaves 3 --seed 0``:
nodes, (node, rail), paths between two leaves and leaves' uplinks at fault, all at once. 32 nodes share a leaf, 8 leaves
a pod. Everything is simulated (tests/bench/isolation/world.py); ``plan_seconds`` is the CPU time of planning and
decoding the costliest round. Only what the rounds covered can be missed: of a large fabric, paths between leaves that
no pair went over are counted as not covered.

Besides, ``--blocks`` seeds of each kind of small block (tests/bench/isolation/verdicts.py) are judged as production
judges them: ``bad_passed`` of ``bad`` nodes would be admitted, ``healthy_failed`` of ``healthy`` ones failed. Of the
``clear`` ones, in blocks without a fault whose leaves are known or whose links are whole, ``clear_passed`` pass: a bar.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.parts import Diagnosis, Part, PartKind
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from tests.bench import bars
from tests.bench.isolation import others
from tests.bench.isolation.verdicts import CLEAR, Tally, tallies, total
from tests.bench.isolation.world import HOT, NOISE, Counts, World, fabric

ROUNDS_BAR, HEALTHY_BAR, SECONDS_BAR = 7, 4, 2.0
BLOCKS = 8
"""Seeds of each kind of small block, which take about two minutes."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the rounds of one world came to."""

    rounds: int
    tests: int
    named: frozenset[Part]
    covered: frozenset[tuple[int, int]]
    plan_seconds: float
    diagnosis: Diagnosis


def isolate(world: World, seed: int) -> Outcome:
    """Rounds until the planner has no more."""
    results: list[RoundResult] = []
    costliest = 0.0
    while True:
        begun = time.process_time()
        plan = next_round(world.topology, results, seed)
        costliest = max(costliest, time.process_time() - begun)
        if plan is None:
            break
        results.append(world.measure(plan))
    found = decode(world.topology, results)
    leaf = world.topology.leaf_of
    pairs = [pair for result in results for pair in result.round.pairs]
    covered = frozenset((min(leaf[a], leaf[b]), max(leaf[a], leaf[b])) for a, b in pairs)
    return Outcome(len(results), len(pairs), frozenset(e.part for e in found.named), covered, costliest, found)


def score(world: World, named: frozenset[Part], covered: frozenset[tuple[int, int]] | None = None) -> dict[str, int]:
    """Planted parts, those named as what they are, missed, and named without being at fault."""
    planted = set(world.planted)
    if covered is not None:
        planted -= {part for part in planted if part.kind is PartKind.PATH and (part.a, part.b) not in covered}
    # A method that knows only nodes names the one that has the NIC: neither right nor wrong.
    holders = {Part(PartKind.NODE, part.a) for part in planted if part.kind is PartKind.NIC}
    return {
        "planted": len(planted),
        "named": len(named & planted),
        "missed": len(planted - named),
        "wrongly_named": len(named - planted - holders),
    }


def compared(world: World, seed: int) -> dict[str, dict[str, Any]]:
    """The other ways, with what they found."""
    ways = {
        "circle schedule": others.circle(world),
        "halving": others.halving(world),
        "pairs with known good": others.known_good(world, seed),
    }
    return {
        name: {"rounds": found.rounds, "tests": found.tests}
        | (score(world, found.named) if found.simulated else {"planted": len(world.planted)})
        for name, found in ways.items()
    }


def blocks(seeds: int) -> dict[str, Any]:
    """Prints the verdicts in small blocks, and returns them; nothing for no seeds."""
    if not seeds:
        return {}
    found = tallies(seeds)
    columns = [field.name for field in dataclasses.fields(Tally)]
    print("\n| block, or what is at fault | " + " | ".join(columns) + " |\n|---|" + "--:|" * len(columns))
    for name, each in found.rows.items():
        print(f"| {name} | " + " | ".join(f"{getattr(each, column):,}" for column in columns) + " |")
    clear = found.sound[CLEAR]
    return dataclasses.asdict(total(found.by_fault.values())) | {
        "clear_passed": clear.healthy_passed,
        "clear": clear.healthy,
        "verdicts": {name: dataclasses.asdict(each) for name, each in found.rows.items()},
    }


def main() -> int:
    """The table, and one JSON object on the last line; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 1024), ("rails", 8), ("bad", 10), ("nics", 10), ("links", 3), ("leaves", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    given = parser.parse_args()
    topology = fabric(given.nodes, given.rails)
    world = World(topology, Counts(given.bad, given.nics, given.links, given.leaves), given.seed)
    outcome = isolate(world, given.seed)
    found = score(world, outcome.named, outcome.covered)
    healthy = isolate(World(topology, Counts(), given.seed), given.seed)
    ways = {"rounds of pairs": {"rounds": outcome.rounds, "tests": outcome.tests, **found}}
    calm = World(topology, Counts(given.bad, given.nics, given.links, given.leaves), given.seed, hot=0.0)
    ways |= compared(world, given.seed)
    ways |= {f"{name}, no hot spots": way for name, way in compared(calm, given.seed).items()}
    print(f"SIMULATED: {given.nodes} nodes x {given.rails} rails, {len(topology.leaves)} leaves, noise {NOISE:.0%}, "
          f"{HOT:.0%} of the cells in a hot spot, seed {given.seed}\n")  # fmt: skip
    columns = ("rounds", "tests", "planted", "named", "missed", "wrongly_named")
    print("| way | " + " | ".join(columns) + " |\n|---|" + "--:|" * len(columns))
    for name, way in ways.items():
        print(f"| {name} | " + " | ".join(f"{way[key]:,}" if key in way else "–" for key in columns) + " |")
    uncovered = len(world.planted) - found["planted"]
    print(f"\nNothing at fault: {healthy.rounds} rounds, {len(healthy.named)} named. Costliest round: "
          f"{outcome.plan_seconds:.2f} s of CPU. Planted paths that no pair went over: {uncovered}.")  # fmt: skip
    of_blocks = blocks(given.blocks)
    answer = {
        "rounds": outcome.rounds, **found, "plan_seconds": round(outcome.plan_seconds, 3),
        "healthy_rounds": healthy.rounds, "healthy_named": len(healthy.named), "uncovered": uncovered, "others": ways,
        **of_blocks,
    }  # fmt: skip
    print(json.dumps(answer))
    return int(
        found["missed"] + found["wrongly_named"] + len(healthy.named) + of_blocks.get("healthy_failed", 0) > 0
        or (of_blocks and not bars.CLEAR_PASSED.holds(of_blocks["clear_passed"] / of_blocks["clear"]))
        or outcome.rounds > ROUNDS_BAR
        or healthy.rounds > HEALTHY_BAR
        or max(outcome.plan_seconds, healthy.plan_seconds) > SECONDS_BAR
    )


if __name__ == "__main__":
    sys.exit(main())
