"""The rounds of pairs of a block: what the block knows of its fabric, the next round, and who is still in it.

Each is a plain function of run ids; the DAG file makes tasks of them. Modules that import numpy are imported inside
functions, since Airflow parses DAG files all the time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import BadSettings, MusterError
from muster.model.names import ADDRESS_LABEL
from muster.model.nodes import Node
from muster.model.rounds import Outcome, PlannedRound, Side
from muster.model.runs import RunKey
from muster.settings import settings
from muster_criteria.cluster.plan import PAIRS
from muster_criteria.measured import Measured
from muster_criteria.model import Evidence, Finding
from muster_criteria.sku_files.model import BlockProgramme, Sku

if TYPE_CHECKING:
    from muster_criteria.cluster.fabric.judging.made import Missed, Rounds
    from muster_criteria.cluster.fabric.observed import Place
    from muster_criteria.cluster.fabric.rounds import Round, RoundResult
    from muster_criteria.cluster.fabric.topology import Topology

log = logging.getLogger(__name__)

HELD_SINCE = "another run has held the node since: clear plan_1 too"
"""Why a round says nothing of a node any more."""

MISSED_MAX = 3
"""Missed rounds after which a node is in no later round: its last partner can then still meet another node."""
SUSPECT_MISSED_MAX = 5
"""The same for a suspected node: two more rounds can identify its faulty part, even if its pairs break."""


def fabric_of(nodes: Sequence[Node], skus: Sequence[Sku]) -> dict[str, Any]:
    """Returns how a block's nodes are known to be connected, as JSON: {topology, places: {node: place}}.

    Raises MusterError with one sentence for labels or a topology file that contradict each other or the SKU.
    """
    from muster_criteria.cluster.fabric.places import Member, places_of, topology_of
    from muster_criteria.cluster.fabric.topology import BadTopology

    members = [
        Member(node.name, address_of(node), node.labels, sku.gpus) for node, sku in zip(nodes, skus, strict=True)
    ]
    try:
        rails, places = places_of(members)
        topology = topology_of(members, rails, places, _topology_files([node.name for node in nodes]))
    except BadTopology as error:
        raise MusterError(str(error)) from error
    return {
        "topology": dataclasses.asdict(topology),
        "places": {name: dataclasses.asdict(place) for name, place in places.items()},
    }


def places_loaded(fabric: Mapping[str, Any], *, simulated: bool) -> tuple[str, ...]:
    """Returns the places in the fabric that only this block may load; () for a block without rounds.

    Also () for ``simulated`` nodes without known leaves, whose network is their host's.
    """
    from muster_criteria.cluster.fabric.topology import from_records

    topology = from_records(fabric["topology"]) if "topology" in fabric else None
    return topology.loaded() if topology is not None and (topology.known or not simulated) else ()


def outdate(key: RunKey) -> dict[str, Any]:
    """Returns what a claim records if the run's earlier rounds have to be made again; {} if not.

    They are deleted only when new ones follow (``next_round``), since a person may have cleared only the training or
    its judgement; until then they cannot make a node pass that another run has held since. If a node was out of service
    since, they are deleted at once, as results from before a repair do not count. Rounds that found nothing are kept,
    so that an interrupted run can continue.
    """
    if not store.rounds.planned(key):
        return {}
    if broken := store.rounds.broken_since(key):
        log.info("the rounds are made again: %s was out of service since", ", ".join(broken))
        store.rounds.forget(key)
        return {}
    held, claimed_so = store.rounds.held_since(key), "outdated" in store.attempts.block_of(key)
    return {"outdated": {"held": held}} if held or claimed_so or store.rounds.parts(key) else {}


def address_of(node: Node) -> str:
    """Where other nodes reach this one."""
    return str(node.labels.get(ADDRESS_LABEL) or node.host)


def _topology_files(names: Sequence[str]) -> dict[str, str]:
    """Returns {file name: content} of the file MUSTER_TOPOLOGY, or of these nodes' files if it is a folder.

    Raises BadSettings if a file cannot be read, or the folder has none of these nodes.
    """
    from muster_criteria.cluster.fabric.places import LLDP

    path = settings().topology
    if path is None:
        return {}
    try:
        files = [path]
        if path.is_dir():
            files = [file for name in names if (file := path / f"{name}{LLDP}").exists()]
        if not files:
            raise BadSettings(
                f"MUSTER_TOPOLOGY={path} is a folder without a file {names[0]}{LLDP}: write one for each node"
            )
        return {file.name: _read(file) for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"MUSTER_TOPOLOGY={path} cannot be read: {error}") from error


def _read(file: Path) -> str:
    from muster_criteria.cluster.fabric.topology_files import BYTES_MAX

    if file.stat().st_size > BYTES_MAX:
        raise BadSettings(f"{file} is larger than {BYTES_MAX // 1_000_000} MB: it is no topology file")
    return file.read_text(encoding="utf-8")


def next_round(key: RunKey, *, first: bool = False) -> list[dict[str, str]]:
    """Plan the next round, or the rest of one that was interrupted. Returns the operator's arguments for each side.

    Empty when nothing is left to find out: the block has no rounds, all suspects are decided, or too few nodes are
    left. Partners are next to each other, so that they start at about the same time. ``first``: all rounds follow, so
    outdated ones are deleted.
    """
    from muster_criteria.cluster.fabric.decoding.decode import decode
    from muster_criteria.cluster.fabric.decoding.parts import OF_THE_NODE
    from muster_criteria.cluster.fabric.judging.made import unmade
    from muster_criteria.cluster.fabric.planner import next_round as planner

    block = store.attempts.block_of(key)
    if "topology" not in block:
        return []
    if first and block.pop("outdated", None):
        log.info("the rounds of before the claim are made again")
        store.rounds.forget(key)
        store.attempts.keep_block(key, block)
    planned, sides = store.rounds.planned(key), store.rounds.sides(key)
    if planned and (rest := _unfinished(planned[-1], sides.get(planned[-1].number, {}))):
        return _arguments(planned[-1], rest)
    known, gone = rounds_of(key, block), left_out(sides)
    assert known is not None
    topology = known.topology
    suspects = {each.part.a for each in decode(topology, known.results).suspects if each.part.kind in OF_THE_NODE}
    most = {node: SUSPECT_MISSED_MAX if at in suspects else MISSED_MAX for at, node in enumerate(topology.nodes)}
    over = {name for name, missed in known.missed.items() if len(missed) >= most[name]}
    short = {topology.index[name]: unmade(known, name) for name in known.missed}
    plan = planner(
        topology, known.results, block["seed"], variants=int(block["pairs"].get("variants", 1)),
        gone=[node for node, name in enumerate(topology.nodes) if name in gone or name in over],
        short=[node for node, missed in short.items() if missed],
        across=[node for node, missed in short.items() if any(each.across for each in missed)],
    )  # fmt: skip
    if plan is None:
        return []
    chosen = _by_names(topology, plan)
    store.rounds.plan(key, chosen)
    log.info("round %d (%s): %d pairs", chosen.number, chosen.kind, len(chosen.pairs))
    return _arguments(chosen, chosen.pairs)


def _unfinished(planned: PlannedRound, sides: Mapping[str, Side]) -> list[tuple[str, str]]:
    """Pairs without a recorded side: their tasks were killed or cleared. A pair with one recorded side is over."""
    return [pair for pair in planned.pairs if not any(node in sides for node in pair)]


def _arguments(planned: PlannedRound, pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [
        {"member": node, "pair": f"round {planned.number}: {a}–{b}, on {node}"} for a, b in pairs for node in (a, b)
    ]


def _by_names(topology: Topology, plan: Round) -> PlannedRound:
    pairs = tuple((topology.nodes[a], topology.nodes[b]) for a, b in plan.pairs)
    return PlannedRound(plan.number, str(plan.kind), pairs, plan.variants, plan.references)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """{node: why} of those that are in no later round. ``prevented``: their scheduler took them, or the controller
    could not do its part; ``lost``: they returned nothing in two rounds running."""

    prevented: dict[str, str]
    lost: dict[str, str]

    def __contains__(self, node: str) -> bool:
        return node in self.prevented or node in self.lost


def left_out(sides: Mapping[int, Mapping[str, Side]]) -> LeftOut:
    """Returns the nodes that are in no round after these."""
    gone, silent = LeftOut({}, {}), set[str]()
    for number in sorted(sides):
        for node, side in sides[number].items():
            if side.outcome is Outcome.UNMEASURED:
                gone.prevented[node] = f"left out after round {number}: {side.why}"
            elif side.outcome is Outcome.SILENT and node in silent:
                gone.lost[node] = f"it returned nothing in two rounds, the last time in round {number}: {side.why}"
            (silent.add if side.outcome is Outcome.SILENT else silent.discard)(node)
    return gone


def rounds_of(key: RunKey, block: Mapping[str, Any]) -> Rounds | None:
    """What the rounds of a run measured; None for a block without rounds."""
    from muster_criteria.cluster.fabric.judging.made import Rounds
    from muster_criteria.cluster.fabric.topology import from_records

    if "topology" not in block:
        return None
    topology, sides = from_records(block["topology"]), store.rounds.sides(key)
    results = [_result(topology, each, sides.get(each.number, {})) for each in store.rounds.planned(key)]
    why = {name: said for number in sorted(sides) for name, side in sides[number].items() if (said := _why_unmet(side))}
    held = block.get("outdated", {}).get("held", ())
    return Rounds(topology, places_in(block), tuple(results), why, _missed(key, topology, sides, held))


def _why_unmet(side: Side) -> str:
    """Why a node could not measure all of its rails, as it says itself; "" if it does not."""
    missed = (row.note for row in side.figures if row.metric == "pair_bandwidth" and row.value is None and row.note)
    return side.why or next(missed, "")


def _missed(
    key: RunKey, topology: Topology, sides: Mapping[int, Mapping[str, Side]], held: Collection[str]
) -> dict[str, list[Missed]]:
    """{node: its rounds that show less than was planned}: the pair was prevented, or broke, or a side is unknown, or
    a rail could not be tried, or another run has ``held`` the node since.
    """
    from muster_criteria.cluster.fabric.judging.made import Missed

    leaves = dict(zip(topology.nodes, topology.leaf_of, strict=True))
    found: dict[str, list[Missed]] = {}
    for planned in store.rounds.planned(key):
        known = sides.get(planned.number, {})
        for pair in planned.pairs:
            across = leaves[pair[0]] != leaves[pair[1]]
            what = _is_short(known, pair)
            for name in pair:
                if name in held:
                    found.setdefault(name, []).append(Missed(planned.number, HELD_SINCE, across))
                elif what:
                    why = f"the pair {' – '.join(pair)} {what}"
                    found.setdefault(name, []).append(Missed(planned.number, why, across))
    return found


def _is_short(sides: Mapping[str, Side], pair: tuple[str, str]) -> str:
    """Returns a clause that says what of a pair was not measured as planned; "" if all of it was."""
    from muster_criteria.cluster.fabric.observed import untried

    known = [name for name in pair if name in sides]
    if not _is_whole(sides, pair):
        said = "; ".join(f"{name}: {sides[name].why}" for name in known if sides[name].why)
        return f"was not measured to its end ({said or 'its task ended before it began'})"
    left = {each: why for name in known for each, why in untried(sides[name].figures).items()}
    said = "; ".join(f"rail {rail} {mode}{why and f': {why}'}" for (rail, mode), why in sorted(left.items()))
    return said and f"was not measured over all rails ({said})"


def _is_whole(sides: Mapping[str, Side], pair: tuple[str, str]) -> bool:
    """Whether a pair was measured to its end, so that it shows all that it was planned for."""
    known = [sides[node] for node in pair if node in sides]
    return len(known) == 2 and all(side.outcome is Outcome.MEASURED and not side.why for side in known)


def _counts(sides: Mapping[str, Side], pair: tuple[str, str]) -> bool:
    """Whether a pair's outcome counts: not if a side was prevented or is unknown. A broken pair measured some rails."""
    return all(node in sides and sides[node].outcome is not Outcome.UNMEASURED for node in pair)


def evidence_of(key: RunKey) -> dict[str, list[Finding]]:
    """{node: findings} of what the controller itself established in the rounds, such as a reboot."""
    from muster_criteria.stage.findings import evidence_finding

    found: dict[str, list[Finding]] = {}
    for by_node in store.rounds.sides(key).values():
        for name, side in by_node.items():
            found.setdefault(name, []).extend(
                evidence_finding(Evidence(kind, sentence, incident=job)) for kind, sentence, job in side.evidence
            )
    return found


def ports_of(key: RunKey) -> dict[str, tuple[Measured, ...]]:
    """{node: what its ports gained and lost in the rounds}."""
    found: dict[str, tuple[Measured, ...]] = {}
    for by_node in store.rounds.sides(key).values():
        for name, side in by_node.items():
            rows = tuple(row for row in side.figures if row.metric.startswith("port_"))
            found[name] = (*found.get(name, ()), *rows)
    return found


def _result(topology: Topology, planned: PlannedRound, sides: Mapping[str, Side]) -> RoundResult:
    """The cells of a round, without pairs that the controller or a scheduler prevented."""
    from muster_criteria.cluster.fabric.observed import round_result
    from muster_criteria.cluster.fabric.rounds import Kind, Round

    kept = [_counts(sides, pair) for pair in planned.pairs]
    references = sum(kept[len(kept) - planned.references :]) if planned.references else 0
    at = topology.index
    pairs = tuple((at[a], at[b]) for (a, b), stays in zip(planned.pairs, kept, strict=True) if stays)
    returned = {name: side.figures if side.outcome is Outcome.MEASURED else None for name, side in sides.items()}
    return round_result(
        topology, Round(planned.number, Kind(planned.kind), pairs, planned.variants, references), returned
    )


def members_left(key: RunKey) -> list[str]:
    """Returns who runs the collectives and the training, by rank: all but those left out. Records their rendezvous.

    The first one is the master, which all others have to reach: the first member with the fewest broken pairs.
    Raises AirflowFailException if fewer than two are left.
    """
    block, members, sides = store.attempts.block_of(key), members_of(key), store.rounds.sides(key)
    gone = left_out(sides)
    left = [name for name in members if name not in gone]
    reasons = [f"{name}: {why}" for name, why in (*gone.prevented.items(), *gone.lost.items())]
    for reason in reasons:
        log.warning("%s", reason)
    untested = dict(gone.prevented)
    if len(left) < 2:
        untested |= dict.fromkeys(left, f"no member of the block was left to train with ({'; '.join(reasons)})")
        store.attempts.keep_block(key, {**block, "untested": untested})
        raise AirflowFailException(f"fewer than two members are left: {'; '.join(reasons)}")
    broken = [
        name
        for planned in store.rounds.planned(key)
        for pair in planned.pairs
        if _counts(known := sides.get(planned.number, {}), pair) and not _is_whole(known, pair)
        for name in pair
    ]
    left.insert(0, left.pop(left.index(min(left, key=broken.count))))
    master = address_of(store.nodes.get(left[0]))
    store.attempts.keep_block(key, {**block, "members": left, "master_addr": master, "untested": untested})
    return left


def members_of(key: RunKey) -> list[str]:
    """All members by rank."""
    return [run.node for run in reversed(store.runs.find(run=key))]


def pair_settings(block: BlockProgramme, level: str, skus: Sequence[Sku], fabric: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of all pairs. RDMA needs a device for each rail, and NCCL GPUs; else TCP takes their place."""
    given = {name: value for name, value in block.probes[PAIRS].params_at(level).items() if value is not None}
    devices = all(port["device"] for place in fabric["places"].values() for port in place["ports"])
    if not devices or (given.get("backend") == "nccl" and not all(sku.devices.get("gpu") for sku in skus)):
        given["backend"] = "tcp"
    return given


def params_of(key: RunKey, block: Mapping[str, Any], member: str) -> dict[str, Any]:
    """The parameters of one side of a pair in the latest round."""
    from muster_criteria.cluster.fabric.observed import pair_params
    from muster_criteria.cluster.fabric.rounds import Kind, Round
    from muster_criteria.cluster.fabric.topology import from_records

    topology, planned = from_records(block["topology"]), store.rounds.planned(key)[-1]
    pairs = tuple((topology.index[a], topology.index[b]) for a, b in planned.pairs)
    plan = Round(planned.number, Kind(planned.kind), pairs, planned.variants, planned.references)
    return pair_params(
        topology,
        plan,
        places_in(block),
        ports=[port + 1 for port in block["ports"]],
        session=block["session"],
        settings=block["pairs"],
    )[member]


def places_in(block: Mapping[str, Any]) -> dict[str, Place]:
    """The places of a block's records."""
    from muster_criteria.cluster.fabric.observed import Place, Port

    return {
        name: Place(place["address"], tuple(Port(**port) for port in place["ports"]))
        for name, place in block["places"].items()
    }
