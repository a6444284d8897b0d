"""Small fabrics with planted faults for tests of the decoder: what each pair measures, exactly or with noise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.parts import Diagnosis, Part, PartKind, Symptom
from muster_criteria.cluster.fabric.judging.covered import count_rails
from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.observed import PROBE, Place, Port
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import Round, RoundResult
from muster_criteria.cluster.fabric.topology import Topology, from_groups, unknown
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.measured import Measured
from muster_criteria.model import Lack, Severity
from muster_criteria.stage.coverage import Tally


def fabric(leaves: int, nodes_each: int, rails: int = 4, leaves_a_pod: int = 100) -> Topology:
    leaf = {f"n{leaf:02d}-{at:02d}": f"leaf{leaf:02d}" for leaf in range(leaves) for at in range(nodes_each)}
    pod = {f"leaf{leaf:02d}": f"pod{leaf // leaves_a_pod}" for leaf in range(leaves)}
    return from_groups(leaf, [f"r{rail}" for rail in range(rails)], dict(pod))


def flat(nodes: int, rails: int = 4) -> Topology:
    return unknown([f"n{node}" for node in range(nodes)], [f"r{rail}" for rail in range(rails)])


class Small:
    """``faults``: part → share of the usual rate; a part whose symptom is CORRUPTS keeps its rate."""

    def __init__(
        self, topology: Topology, faults: Mapping[Part, float], corrupt: frozenset[Part] = frozenset()
    ) -> None:
        self.topology, self.faults, self.corrupt = topology, faults, corrupt
        self.silent: dict[int, set[int]] = {}
        self.behind: tuple[frozenset[int], float, bool] = (frozenset(), 1.0, False)
        """Nodes behind a switch that the topology does not know and that carries all rails, what it leaves to them,
        and whether also among themselves."""
        self.spared: frozenset[int] = frozenset()
        """Nodes whose pairs show no fault of the fabric."""
        self.together: Mapping[int, float] = {}
        self.together_on: Mapping[tuple[int, int], float] = {}
        """What is left to (node, rail) with all rails at once."""

    def _on(self, part: Part, a: int, b: int, rail: int) -> bool:
        one, other = sorted((self.topology.leaf_of[a], self.topology.leaf_of[b]))
        if part.kind is PartKind.NODE:
            return part.a in (a, b)
        if part.rail != rail or self.spared & {a, b}:
            return False
        if part.kind in (PartKind.NIC, PartKind.GPU):
            return part.a in (a, b)
        if part.kind is PartKind.PATH:
            return (part.a, part.b) == ((a, b) if part.between_nodes else (one, other))
        return part.a in (one, other) and (part.kind is PartKind.LEAF or one != other)

    def measure(self, plan: Round) -> RoundResult:
        rails = len(self.topology.rails)
        alone = np.full((len(plan.pairs), rails, plan.variants), 100.0)
        wrong = np.zeros((len(plan.pairs), rails), dtype=bool)
        together, crossed = np.full(wrong.shape, 100.0), np.full(wrong.shape, 100.0)
        silent = self.silent.get(plan.number, set())
        for at, (a, b) in enumerate(plan.pairs):
            for rail in range(rails):
                for part, share in self.faults.items():
                    if self._on(part, a, b, rail):
                        alone[at, rail] = np.minimum(alone[at, rail], 100.0 * share)
                        wrong[at, rail] |= part in self.corrupt
                    # The GPU of this rail over the next rail's NIC.
                    at_gpu, at_nic = (part.kind is kind and part.a in (a, b) for kind in (PartKind.GPU, PartKind.NIC))
                    if (at_gpu and part.rail == rail) or (at_nic and part.rail == (rail + 1) % rails):
                        crossed[at, rail] = np.minimum(crossed[at, rail], 100.0 * share)
            among, share, within = self.behind
            if (a in among) != (b in among) or (within and a in among):
                alone[at] *= share
            together[at] *= min(self.together.get(a, 1.0), self.together.get(b, 1.0))
            together[at] *= [
                min(self.together_on.get((node, rail), 1.0) for node in (a, b)) for rail in range(rails)
            ]  # fmt: skip
            if {a, b} & silent:
                alone[at] = together[at] = crossed[at] = np.nan
        return RoundResult(
            plan, alone, wrong, together, crossed, frozenset({*silent} & {n for p in plan.pairs for n in p})
        )

    def isolate(self, seed: int = 0, rounds_max: int = 7) -> tuple[list[RoundResult], Diagnosis]:
        results: list[RoundResult] = []
        while (plan := next_round(self.topology, results, seed, rounds_max)) is not None:
            results.append(self.measure(plan))
        return results, decode(self.topology, results)

    def recovered(self) -> list[RoundResult]:
        """The rounds, of which only the first shows the faults."""
        results: list[RoundResult] = []
        while (plan := next_round(self.topology, results, 0)) is not None:
            results.append((Small(self.topology, {}) if results else self).measure(plan))
        return results


def named(diagnosis: Diagnosis) -> dict[Part, Symptom]:
    return {each.part: each.symptom for each in diagnosis.named}


def places(topology: Topology) -> dict[str, Place]:
    ports = tuple(Port("10.0.0.1", f"eth{at}", f"mlx5_{at}", 7 - at) for at in range(len(topology.rails)))
    return dict.fromkeys(topology.nodes, Place("10.0.0.1", ports))


def without_perftest(topology: Topology, plan: Round, lacks: int) -> dict[str, list[Measured]]:
    """Both nodes of its pairs use TCP, as pair_rails makes them."""
    returned = {}
    for pair in plan.pairs:
        backend, rate = ("tcp", 20.0) if lacks in pair else ("ib_write_bw", 390.0)
        for node in pair:
            returned[topology.nodes[node]] = [
                Measured(probe=PROBE, metric="pair_backend", device="node", unit="text", text=backend),
                *(
                    Measured(
                        probe=PROBE, metric="pair_bandwidth", device=rail, unit="Gb/s", value=rate,
                        labels={"rail": rail, "mode": "alone", "variant": str(variant)},
                    )
                    for rail in topology.rails for variant in range(plan.variants)
                ),
            ]  # fmt: skip
    return returned


def unjudged(rounds: Rounds, found: FabricJudgement, *, simulated: bool = False) -> dict[str, list[Lack]]:
    counted = {name: Tally() for name in rounds.topology.nodes}
    for name, tally in counted.items():
        count_rails(rounds, name, tally, found, simulated=simulated)
    return {name: [gap.code for gap in tally.unjudged] for name, tally in counted.items() if tally.unjudged}


def judged(world: Small) -> tuple[FabricJudgement, BlockFindings, Rounds]:
    results, _ = world.isolate()
    rounds, block = Rounds(world.topology, places(world.topology), tuple(results)), BlockFindings()
    return judge_fabric(rounds, block), block, rounds


def failed(block: BlockFindings) -> set[str]:
    return {name for name, found in block.findings.items() if any(each.severity is Severity.CRITICAL for each in found)}
