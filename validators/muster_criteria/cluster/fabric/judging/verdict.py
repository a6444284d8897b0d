"""What the rounds of a block mean for its members: parts of nodes become findings, parts of the fabric cost no node."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from muster_criteria.cluster.fabric.cabling import judge_cabling
from muster_criteria.cluster.fabric.decoding.decode import decode
from muster_criteria.cluster.fabric.decoding.nodes import NODES_MIN as LEAF_NODES_MIN
from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE, Diagnosis, Evidence, PartKind, Symptom, is_own
from muster_criteria.cluster.fabric.judging.causes import carries_nothing, goes_over, stops
from muster_criteria.cluster.fabric.judging.covered import notes, too_noisy
from muster_criteria.cluster.fabric.judging.floors import judge_floors, without_rdma
from muster_criteria.cluster.fabric.judging.found import FabricJudgement, FaultyPart
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.rounds import RoundResult
from muster_criteria.cluster.fabric.topology import LEAF_LABEL, Topology
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.words import listed

SOURCE = "docs/science.md#isolation-in-the-fabric"

UNEVEN_MAX = 0.30
"""How much less a slow leaf switch may leave to one node of its leaf than to most; a port below that is at fault
itself."""

_NO_LEAVES = (
    "leaves are not known, so that a common switch and several ports look alike: give the nodes the label "
    f"{LEAF_LABEL}, and test again"
)
_UPLINK = (
    "leaves are not known, and an uplink that no other member uses looks the same: look at cable, port and switch, or "
    f"give the nodes the label {LEAF_LABEL}, and test again"
)
_SMALL_LEAF = (
    "all nodes of a small leaf are at fault, so that their switch and a port of each look alike: connect one of them "
    "to another switch, and test again"
)
_ONLY_ONE = (
    "no other node of the leaf is good, so that its uplinks and the node's own port look alike: test the node again in "
    "a block with another one of its leaf"
)
"""Why a part is undecided, and what to do."""

_FAULT = {PartKind.NODE: FaultClass.NODE, PartKind.GPU: FaultClass.GPU, PartKind.NIC: FaultClass.NIC}


def judge_fabric(
    rounds: Rounds, block: BlockFindings, floors: Mapping[str, Sequence[Limit]] | None = None
) -> FabricJudgement:
    """Adds the findings on members to ``block``, and returns all parts. ``floors``: of each member's rails.

    A confirmed part of a node fails the node; a suspected one keeps it from passing, as does a part that is either a
    switch's or several nodes'. Faults of the fabric are charged to no node, but a rail over which only wrong bytes or
    nothing ever arrived keeps its node from passing, and a cell that no part explains keeps both of its nodes from
    passing.
    """
    judge_cabling(rounds.topology, block)
    diagnosis = decode(rounds.topology, rounds.results)
    every = (*diagnosis.named, *diagnosis.suspects)
    parts = [_in_names(rounds.topology, each, diagnosis.least(each)) for each in every]
    for part in parts:
        if part.node:
            _against(part, parts, rounds, block)
        elif _is_undecided(part.kind, part.touches):
            doubt = _SMALL_LEAF if part.kind is PartKind.LEAF else _ONLY_ONE if rounds.topology.known else _NO_LEAVES
            on = _rails_of(part, rounds) if carries_nothing(part) else []
            for name in part.touches:
                answer = _said_of(rounds, rounds.topology.index[name], on)
                block.suspect([name], Lack.UNDECIDED, f"{part.title}: {part.observed}{answer}; {doubt}")
        elif part.symptom is Symptom.TOGETHER and carries_nothing(part):
            # As for a dead part: it is unknown what each node itself carries with all rails at once.
            block.suspect(part.touches, Lack.UNDECIDED, f"{part.title}: {part.observed}")
    carried = _carried(rounds)
    _never_carried(rounds, parts, carried, block)
    _unexplained(rounds, diagnosis.named, carried, block)

    def left(node: int, rail: int, partners: Sequence[int]) -> float:
        return _left(rounds.topology, diagnosis, node, rail, partners)

    by_floor = judge_floors(rounds.topology, rounds.results, floors or {}, left, block)
    names, rails = rounds.topology.nodes, rounds.topology.rails
    noisy = too_noisy(diagnosis)
    compared = set() if noisy else {(names[node], rails[rail]) for node, rail in diagnosis.compared}
    by_sockets = frozenset(without_rdma(rounds.topology, rounds.results, floors or {}))
    said = tuple(notes(rounds, diagnosis, by_sockets))
    return FabricJudgement(tuple(parts), said, frozenset(compared | by_floor), noisy, by_sockets)


def _is_undecided(kind: PartKind, touches: Collection[object]) -> bool:
    """Whether the part is either a switch or parts of the few nodes behind it, which look alike."""
    return kind is PartKind.SHARED or (kind is PartKind.LEAF and len(touches) <= LEAF_NODES_MIN)


def _left(topology: Topology, diagnosis: Diagnosis, node: int, rail: int, partners: Sequence[int]) -> float:
    """``left`` of ``judge_floors``: 0 for a rail with evidence against it or against what it may share; else the share
    that a confirmed part of the fabric leaves, if the node's cells with all partners went over it."""

    def holds(each: Evidence) -> bool:
        of_node = each.part.kind in OF_THE_NODE or _is_undecided(each.part.kind, each.touches)
        return of_node and each.symptom is not Symptom.TOGETHER

    every = (*diagnosis.named, *diagnosis.suspects)
    if any(holds(each) and node in each.touches and each.part.rail in (-1, rail) for each in every):
        return 0.0
    cells = [(node, partner) for partner in partners]
    over = [each for each in diagnosis.named if all(goes_over(topology, each, cell, rail) for cell in cells)]
    return min((each.share for each in over if not holds(each)), default=1.0)


def _in_names(topology: Topology, evidence: Evidence, least: float) -> FaultyPart:
    part = evidence.part
    return FaultyPart(
        kind=part.kind,
        symptom=evidence.symptom,
        where=_where(topology, evidence),
        rail=topology.rails[part.rail] if part.rail >= 0 else "",
        node=topology.nodes[part.a] if part.kind in OF_THE_NODE else "",
        share=evidence.share,
        rounds=evidence.rounds,
        partners=tuple(topology.nodes[node] for node in evidence.partners if node >= 0),
        touches=tuple(topology.nodes[node] for node in evidence.touches),
        confirmed=evidence.is_named,
        least=least,
    )


def _where(topology: Topology, evidence: Evidence) -> str:
    part = evidence.part
    if part.kind is PartKind.RAIL or (part.kind is PartKind.SHARED and not topology.known):
        return f"{len(evidence.touches)} of {len(topology.nodes)} nodes"
    of_node = part.kind in OF_THE_NODE or part.kind is PartKind.CONGESTION or part.between_nodes
    names = topology.nodes if of_node else topology.leaves
    return names[part.a] + (f" – {names[part.b]}" if part.b >= 0 else "")


def _against(part: FaultyPart, parts: Sequence[FaultyPart], rounds: Rounds, block: BlockFindings) -> None:
    """A finding on the member that owns the part. If the part is not confirmed, or something other than the node may
    explain it, the member is a suspect instead. A GPU that is low over two NICs is always the node's."""
    why, doubts = f"{part.title}: {part.observed}", list[str]()
    if carries_nothing(part):
        why += _said_of(rounds, rounds.topology.index[part.node], _rails_of(part, rounds))
    if part.symptom is Symptom.TOGETHER:
        doubts.append("each rail alone is good, so look at what they share first: PCIe switch, NUMA node, PFC, routing")
    if _carries_tcp(part, rounds):
        doubts.append("look at its RDMA first: limits of locked memory, GID, libraries")
    if any(_may_cause(each, part) for each in parts):
        doubts.append("its leaf switch is slow, perhaps unevenly: repair that first, and test again")
    if not rounds.topology.known and not is_own(part.kind, part.symptom) and part.symptom is not Symptom.SILENT:
        doubts.append(_UPLINK)
    why = "; ".join([why, *doubts])
    if part.symptom is Symptom.SILENT:
        block.suspect([part.node], Lack.LOST, why)
    elif not part.confirmed:
        block.suspect([part.node], Lack.UNDECIDED, f"suspected, and not confirmed by two further partners: {why}")
    elif doubts:
        block.suspect([part.node], Lack.UNDECIDED, why)
    critical = part.confirmed and not doubts and part.symptom is not Symptom.SILENT
    wrong = part.symptom is Symptom.CORRUPTS
    block.add(
        part.node,
        Finding(
            rule="rounds",
            metric="pair_wrong_bytes" if wrong else "pair_bandwidth",
            device=_device(part, rounds),
            severity=Severity.CRITICAL if critical else Severity.WARNING,
            fault_class=_FAULT[part.kind],
            action=(Action.RESEAT if part.kind is PartKind.NIC else Action.INSPECT) if critical else Action.RETEST,
            observed=part.observed,
            expected="no wrong byte" if wrong else f"≥ {part.percent[1]} of the other pairs' median",
            source=SOURCE,
            summary=f"{why[0].upper()}{why[1:]}.",
            labels=(("rail", part.rail),) if part.rail else (),
            extent=Extent(part.share, "share", "lower") if not wrong and part.share >= 0 else None,
        ),
    )


def _may_cause(leaf: FaultyPart, part: FaultyPart) -> bool:
    """Whether a node's part is hardly slower than most behind its slow leaf switch, which all its pairs go over."""
    behind = leaf.kind is PartKind.LEAF and leaf.rail == part.rail and part.node in leaf.touches
    return behind and part.symptom is Symptom.SLOW and part.share >= (1.0 - UNEVEN_MAX) * leaf.share


def _carries_tcp(part: FaultyPart, rounds: Rounds) -> bool:
    """Whether plain TCP went over every cell of a node's part over which its backend could send nothing.

    The cable and the port do work then, and what fails may be software of the node.
    """
    node, own = rounds.topology.index[part.node], _rails_of(part, rounds)
    carried: list[bool] = []
    for result in rounds.results:
        rows = [row for row, pair in enumerate(result.round.pairs) if node in pair]
        dead = np.fmax.reduce(result.alone[rows][:, own], axis=2) == 0.0
        if part.symptom is Symptom.DEAD and dead.any():
            carried.append(result.host is not None and bool(result.host[rows][:, own][dead].all()))
    return bool(carried) and all(carried)


def _rails_of(part: FaultyPart, rounds: Rounds) -> list[int]:
    """The rails that a part is on."""
    return [at for at, rail in enumerate(rounds.topology.rails) if part.rail in ("", rail)]


def _device(part: FaultyPart, rounds: Rounds) -> str:
    """The part's device as ``pair_rails`` and the other probes name it."""
    if part.kind is PartKind.NODE:
        return "node"
    rail = rounds.topology.rails.index(part.rail)
    port = rounds.places[part.node].ports[rail]
    if part.kind is PartKind.NIC:
        return f"nic:{port.device or port.interface or part.rail}"
    if port.named:
        return f"gpu{port.gpu}"
    # Where the rail names none, its place is among the GPUs that answered, which the node alone knows.
    used = {gpu for each in rounds.results if (gpu := each.gpus.get((rounds.topology.index[part.node], rail)))}
    return used.pop() if len(used) == 1 else "node"


def _carried(rounds: Rounds) -> set[tuple[int, int]]:
    """(Node, rail) over which a pair of the node sent something once, and nothing wrong arrived."""
    found = set()
    for result in rounds.results:
        good = ~result.wrong & (np.fmax.reduce(result.alone, axis=2) > 0.0)
        found |= {(node, int(at)) for row, at in np.argwhere(good) for node in result.round.pairs[row]}
    return found


def _bad_cells(rounds: Rounds) -> Iterator[tuple[RoundResult, int, int, bool]]:
    """(Result, row, rail, together) of the cells that carried nothing, or wrong bytes; ``together``: cells that were
    right alone and carried nothing with all rails at once."""
    for result in rounds.results:
        bad = (np.fmax.reduce(result.alone, axis=2) == 0.0) | result.wrong
        yield from ((result, int(row), int(at), False) for row, at in np.argwhere(bad))
        if result.together is not None:
            dead = (result.together == 0.0) & ~bad
            yield from ((result, int(row), int(at), True) for row, at in np.argwhere(dead))


def _never_carried(
    rounds: Rounds, parts: Sequence[FaultyPart], carried: Collection[tuple[int, int]], block: BlockFindings
) -> None:
    """Suspects a node for each rail that never carried right bytes with any partner.

    This holds even if a part of the fabric explains it: nothing is known about the node's own part then.
    """
    topology = rounds.topology
    never = {(node, at) for result, row, at, _ in _bad_cells(rounds) for node in result.round.pairs[row]}
    for node, at in sorted(never - set(carried)):
        name, rail = topology.nodes[node], topology.rails[at]
        over = [part for part in parts if name in part.touches and part.rail in (rail, "")]
        if any(part.node == name or _is_undecided(part.kind, part.touches) for part in over):
            continue
        why = listed([part.title for part in over if stops(part.symptom, wrong=False)])
        why = why or "test again, with other partners"
        what = f"no byte, or only wrong bytes, ever arrived over rail {rail}{_said_of(rounds, node, [at])}"
        block.suspect([name], Lack.UNDECIDED, f"{what}: {why}")


def _said_of(rounds: Rounds, node: int, rails: Sequence[int]) -> str:
    """The first message of the node's tool about these dead rails, and whether plain TCP went over them."""
    said = next((each.troubles[node, at] for at in rails for each in rounds.results if (node, at) in each.troubles), "")
    tcp = any(
        each.host is not None and each.host[row, rails].any()
        for each in rounds.results
        for row, pair in enumerate(each.round.pairs)
        if node in pair
    )
    return (f" ({said})" if said else "") + (", but plain TCP did" if tcp else "")


def _unexplained(
    rounds: Rounds, named: Sequence[Evidence], carried: Collection[tuple[int, int]], block: BlockFindings
) -> None:
    """Suspects both nodes of a cell that carried nothing or wrong bytes if both carried something elsewhere and no
    confirmed part on its way can have caused it: either node may be at fault."""
    failed_with: dict[tuple[int, int], set[int]] = defaultdict(set)
    for result, row, at, _ in _bad_cells(rounds):
        for own, other in itertools.permutations(result.round.pairs[row]):
            failed_with[own, at].add(other)
    for result, row, at, together in _bad_cells(rounds):
        nodes, rail, wrong = result.round.pairs[row], rounds.topology.rails[at], bool(result.wrong[row, at])
        over = [each for each in named if goes_over(rounds.topology, each, nodes, at, together=together)]
        # A port that is slow most of the time may also fail: another partner shows that it does.
        failing = (each.part.kind in OF_THE_NODE and len(failed_with[each.part.a, at]) > 1 for each in over)
        if any(failing) or any(stops(each.symptom, wrong) or (together and carries_nothing(each)) for each in over):
            continue
        if all((node, at) in carried for node in nodes):
            names = [rounds.topology.nodes[node] for node in nodes]
            what = "wrong bytes arrived" if wrong else "nothing could be sent"
            what += " with all rails at once" if together else ""
            where = f"between {' and '.join(names)} over rail {rail} in round {result.round.number}"
            block.suspect(names, Lack.UNDECIDED, f"{what} {where}, and no other pair tells whose fault it is")
