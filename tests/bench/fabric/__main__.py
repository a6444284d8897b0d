"""Faults planted into a real network on this machine, one at a time and in twos, and what the rounds of pairs name.

Run as root: ``python -m tests.bench.fabric --seed 0 [--twos 3] [--kinds nic,uplink+path]``. Twelve namespaces are hosts
with two rails, on four leaves below one spine for each rail; veth and bridges pass the traffic, tbf sets the rates, a
relay spoils frames of one path. Agents run in each namespace and test each other by TCP; planner and decoder are those
of production. A host that starts late is no fault: it must be measured, and nothing be named.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.parts import Diagnosis, Part, PartKind
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_demo import watchdog
from tests.bench.fabric.agents import Agents, Trouble, topology
from tests.bench.fabric.network import HOSTS_A_LEAF, LEAVES, RAILS, SLOW_MBIT, Network

KINDS = ("node", "nic", "cable", "uplink", "path", "late", "dies")
HOSTS = LEAVES * HOSTS_A_LEAF
VARIANTS = 3
"""Flows in a round of confirmation: nothing else runs in this network, so there are few hot spots."""
LATE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Planted:
    """One fault. ``part`` is None for a host that is only late."""

    kind: str
    host: int
    rail: int
    other: int
    part: Part | None

    def plant(self, network: Network) -> None:
        """Puts it into the network."""
        leaf = Network.leaf(self.host)
        if self.kind == "node":
            for rail in range(RAILS):
                network.limit_port(self.host, rail, SLOW_MBIT)
        elif self.kind == "nic":
            network.limit_port(self.host, self.rail, SLOW_MBIT)
        elif self.kind == "cable":
            network.cut(self.host, self.rail)
        elif self.kind == "uplink":
            network.limit_uplink(leaf, self.rail, SLOW_MBIT)
        elif self.kind == "path":
            network.corrupt(leaf, self.other, self.rail)


def drawn(kind: str, draw: random.Random, host: int | None = None, rail: int | None = None) -> Planted:
    """A fault of this kind in a random place."""
    host = draw.randrange(HOSTS) if host is None else host
    rail = draw.randrange(RAILS) if rail is None else rail
    leaf = Network.leaf(host)
    other = draw.choice([at for at in range(LEAVES) if at != leaf])
    parts = {
        "node": Part(PartKind.NODE, host), "dies": Part(PartKind.NODE, host), "late": None,
        "nic": Part(PartKind.NIC, host, rail=rail), "cable": Part(PartKind.NIC, host, rail=rail),
        "uplink": Part(PartKind.UPLINK, leaf, rail=rail),
        "path": Part(PartKind.PATH, min(leaf, other), max(leaf, other), rail),
    }  # fmt: skip
    return Planted(kind, host, rail, other, parts[kind])


def together(draw: random.Random, kinds: Sequence[str] = ()) -> tuple[Planted, ...]:
    """Two faults at once, or those of these kinds, on different leaves, and each on another rail than the one before.

    With so few hosts, more than two cannot be distinguished; a late host is none.
    """
    faults: list[Planted] = []
    for kind in kinds or draw.sample([kind for kind in KINDS if kind != "late"], 2):
        taken = {Network.leaf(fault.host) for fault in faults}
        far = [host for host in range(HOSTS) if Network.leaf(host) not in taken]
        place = (draw.choice(far), (faults[-1].rail + 1) % RAILS) if faults else ()
        faults.append(drawn(kind, draw, *place))
    return tuple(faults)


def run(faults: tuple[Planted, ...], seed: int) -> tuple[list[RoundResult], Diagnosis]:
    """One network with its faults, from the first round to the last."""
    trouble = Trouble(
        {fault.host: LATE_S for fault in faults if fault.kind == "late"},
        {fault.host: 2 for fault in faults if fault.kind == "dies"},
    )
    with tempfile.TemporaryDirectory(prefix="muster-fabric-") as folder, Network() as network:
        for fault in faults:
            fault.plant(network)
        agents, results = Agents(network, Path(folder), trouble), list[RoundResult]()
        while (plan := next_round(topology(), results, seed, variants=VARIANTS)) is not None:
            results.append(agents.measure(plan))
        return results, decode(topology(), results)


def described(part: Part) -> str:
    """A part by its names."""
    fabric = topology()
    if part.kind in (PartKind.NODE, PartKind.NIC, PartKind.GPU, PartKind.CONGESTION) or part.between_nodes:
        where = fabric.nodes[part.a] + (f"-{fabric.nodes[part.b]}" if part.between_nodes else "")
    else:
        where = fabric.leaves[part.a] + (f"-{fabric.leaves[part.b]}" if part.b >= 0 else "")
    return f"{part.kind} {where}" + (f" {fabric.rails[part.rail]}" if part.rail >= 0 else "")


def main() -> int:
    """A table of runs, and one JSON object on the last line; 1 where a fault is missed or something else is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--twos", type=int, default=3, help="runs with two faults at once")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"alone, or several joined by +: {', '.join(KINDS)}")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("Network namespaces need root: run it as root.")
        return 1
    draw, begun = random.Random(given.seed), time.monotonic()
    places = {kind: drawn(kind, draw) for kind in KINDS}  # of all kinds, so that they follow from the seed alone
    groups = [group.split("+") for group in given.kinds.split(",") if group]
    runs = [together(draw, group) if len(group) > 1 else (places[group[0]],) for group in groups]
    runs += [together(draw) for _ in range(given.twos)]
    planted = found = wrong = 0
    print("| planted | named | rounds | noise | seconds |\n|---|---|--:|--:|--:|")
    for faults in runs:
        started = time.monotonic()
        results, diagnosis = run(faults, given.seed)
        expected = {fault.part for fault in faults if fault.part is not None}
        named = {each.part for each in diagnosis.named if each.part.kind is not PartKind.CONGESTION}
        # One that was late is found by being measured in its first round, with nothing held against it.
        late = [fault for fault in faults if fault.kind == "late" and not any(r.silent for r in results)]
        planted, found = planted + len(faults), found + len(expected & named) + len(late)
        wrong += len(named - expected)
        kinds = ", ".join(f"{f.kind} ({described(f.part) if f.part else f'host{f.host}'})" for f in faults)
        says = ", ".join(f"{described(each.part)} {each.symptom}" for each in diagnosis.named) or "nothing"
        took = time.monotonic() - started
        print(f"| {kinds} | {says} | {len(results)} | {diagnosis.noise:.1%} | {took:.0f} |", flush=True)
    answer = {"planted": planted, "found": found, "wrongly_named": wrong, "seconds": round(time.monotonic() - begun)}
    print(json.dumps(answer))
    return int(found < planted or wrong > 0)


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
