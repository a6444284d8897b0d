"""What of a block's fabric was covered: the rails counted for each member, and notes on what was not covered."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from muster_criteria.cluster.fabric.decoding.levels import NOISE_MAX, OTHERS_MIN
from muster_criteria.cluster.fabric.decoding.parts import Diagnosis
from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.fabric.judging.made import Rounds, unmade
from muster_criteria.cluster.fabric.observed import PROBE
from muster_criteria.model import Gap, Lack
from muster_criteria.stage.coverage import Tally
from muster_criteria.words import listed

NODES_MIN = 2 * (OTHERS_MIN + 1)
"""Fewest nodes of a block for which each pair has enough other pairs in its round to compare with."""


def count_rails(
    rounds: Rounds, member: str, counted: Tally, found: FabricJudgement, *, simulated: bool = False
) -> None:
    """Counts one required measurement for each rail of a member: measured with one partner at least, and judged.

    Rates of ``simulated`` members are a host's and need no judgement.
    """
    node = rounds.topology.index.get(member)
    for each in unmade(rounds, member):
        counted.miss(Gap(Lack.NOT_REPORTED, each.why, f"round {each.number} of {PROBE}"))
    for at, rail in enumerate(rounds.topology.rails):
        seen = any(
            node in pair and not np.isnan(result.alone[row, at]).all()
            for result in rounds.results
            for row, pair in enumerate(result.round.pairs)
        )
        if seen:
            counted.required += 1
            what = f"pair_bandwidth[rail={rail}] of {PROBE}"
            if not simulated and (member, rail) in found.without_rdma:
                counted.unjudged.append(Gap(Lack.NO_RDMA, _no_rdma(rounds, node), what))
            elif not simulated and (member, rail) not in found.judged:
                counted.unjudged.append(Gap(Lack.NOT_COMPARED, _not_compared(rounds, found.noisy), what))
        else:
            why = _replaced(rounds, node) or rounds.why_unmet.get(member, "no pair of it was measured")
            counted.miss(Gap(Lack.NOT_REPORTED, why, f"pair_bandwidth[rail={rail}] of {PROBE}"))


def _not_compared(rounds: Rounds, noisy: str) -> str:
    """Why a rate was compared with nothing."""
    nodes = len(rounds.topology.nodes)
    too_small = f"{nodes} nodes, needs {NODES_MIN}" if nodes < NODES_MIN else ""
    why = noisy or too_small or f"fewer than {OTHERS_MIN} other pairs of its kind a round, or none was good"
    return f"not compared: {why}, and the SKU file has no floor (block_limits) for what the pairs were measured with"


def _no_rdma(rounds: Rounds, node: int | None) -> str:
    """Which backend measured a node's rails in place of the required RDMA, and why."""
    used, topology = listed(_backends(rounds)) or "a backend that no node names", rounds.topology
    ports = [
        (name, rail) for name in topology.nodes
        for rail, port in zip(topology.rails, rounds.places[name].ports, strict=False) if not port.device
    ]  # fmt: skip
    said = next((why for each in rounds.results for at, why in each.fallbacks.items() if at == node), "")
    why = f"label rails of {ports[0][0]} names no RDMA device for rail {ports[0][1]}" if ports else said
    return f"measured with {used}, not by RDMA: {why or 'the programme asks for nothing else'}"


def _backends(rounds: Rounds) -> list[str]:
    return sorted({each.backend for each in rounds.results} - {""})


def too_noisy(diagnosis: Diagnosis) -> str:
    """Why the rounds cannot show that any rail is good, "" if they can: a median of slow cells clears slow ones too."""
    if diagnosis.noise <= NOISE_MAX:
        return ""
    return (
        f"rates differed by {diagnosis.noise:.0%} among healthy pairs of a round (standard deviation), or most nodes "
        f"are slow: above {NOISE_MAX:.0%} what is slow cannot be distinguished"
    )


def _replaced(rounds: Rounds, node: int | None) -> str:
    """Which other backend than the usual one measured the pairs of a node, "" if none."""
    names = {result.replaced[node] for result in rounds.results if node is not None and node in result.replaced}
    if not names:
        return ""
    return (
        f"its pairs were measured with {listed(sorted(names))} and most others were not, so the rates cannot be "
        "compared: install on this node what the others measure with"
    )


def notes(rounds: Rounds, diagnosis: Diagnosis, by_sockets: Collection[tuple[str, str]]) -> list[str]:
    """What was not covered, or could not be judged. ``by_sockets``: as ``without_rdma`` of ``FabricJudgement``."""
    topology = rounds.topology
    found = [f"The rails were measured with {listed(used)}."] if (used := _backends(rounds)) else []
    if by_sockets:
        nodes = [name for name in topology.nodes if any(name == each for each, _ in by_sockets)]
        why = _no_rdma(rounds, topology.index[nodes[0]])
        found.append(f"RDMA was not tested on {listed(nodes, most=6)}: {why}.")
    if diagnosis.unjudged:
        found.append(
            f"Cells that are not judged: {diagnosis.unjudged}. A cell is compared with {OTHERS_MIN} others of its "
            f"round and rail or more, which takes a block of {NODES_MIN} nodes."
        )
    if noisy := too_noisy(diagnosis):
        found.append(f"{noisy[0].upper()}{noisy[1:]}. Test again on idle nodes.")
    if diagnosis.not_together:
        nodes = [topology.nodes[node] for node in sorted({node for node, _ in diagnosis.not_together})]
        found.append(
            f"Rates with all rails at once are not judged for {listed(nodes, most=6)}: they scatter too much, or too "
            "few of them can be compared."
        )
    if diagnosis.uncovered:
        some = [
            f"{topology.leaves[a]} – {topology.leaves[b]} on {topology.rails[r]}" for a, b, r in diagnosis.uncovered
        ]
        rest = f" and {len(some) - 5} more" if len(some) > 5 else ""
        found.append(f"Not covered, since another fault lies on the way: {', '.join(some[:5])}{rest}.")
    if diagnosis.once:
        found.append(f"{diagnosis.once} cells were low and no part explains them: passing hot spots.")
    if not topology.known and len(topology.nodes) > 2:
        found.append("Nothing is known of leaves: leaf switches and uplinks cannot be distinguished from paths.")
    return found
