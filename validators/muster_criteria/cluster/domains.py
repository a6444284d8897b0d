"""NVLink domains that span a rack (GB200, GB300 NVL72): is each node in the one domain, and whose fault is it if not.

ClusterUUID and clique must not be zero and must be equal within the rack, each GPU must have joined, and IMEX must be
up (azhpc-images issue #506: a domain that ended in "Insufficient Resources" passed tests of single nodes). Where NVLink
ends at the machine (HGX) a zero identity is right, so only SKUs that name ``domain_nodes`` are judged. What most nodes
of a rack show is the rack's: no node is charged with it, none passes, and one person decides. One or two nodes of a
rack decide neither.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.cluster.model import COLLECTIVES, BlockFindings, Measurements, MemberResult
from muster_criteria.cluster.rack import RackState, Trouble
from muster_criteria.model import Action, FaultClass, Finding, Lack, Severity
from muster_criteria.words import listed

ZERO_UUID = "00000000-0000-0000-0000-000000000000"
IMEX_UP = ("READY", "service active")
OTHERS_MIN = 3
"""Fewest nodes of a rack that tell a node from its rack."""
SOURCE = "docs/science.md#nvlink-domains"


_FAULT = {Trouble.IMEX: FaultClass.SOFTWARE}
_WORDS = {
    Trouble.NOT_JOINED: "not all GPUs have joined the NVSwitch fabric",
    Trouble.UNHEALTHY: "the fabric manager reports NVLinks that are not healthy",
    Trouble.IDENTITY: "the ClusterUUID or the clique is zero",
    Trouble.SPLIT: "the NVLink domain is another one than that of most nodes of the rack",
    Trouble.IMEX: "IMEX is not up",
}


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What one node says. ``identities``: of its GPUs that have joined. ``troubles``: what is wrong, in its words."""

    identities: frozenset[str]
    troubles: Mapping[Trouble, str]


def judge_domains(
    members: Sequence[MemberResult], measured: Mapping[str, Measurements], block: BlockFindings
) -> tuple[RackState, ...]:
    """Adds findings on nodes that differ from their rack, and returns each rack with what is its own."""
    racks: dict[str, list[MemberResult]] = collections.defaultdict(list)
    for member in members:
        if member.domain_nodes and member.result is not None:
            racks[member.rack].append(member)
    return tuple(_rack(rack, found, measured, block) for rack, found in sorted(racks.items()))


def _rack(
    rack: str, members: Sequence[MemberResult], measured: Mapping[str, Measurements], block: BlockFindings
) -> RackState:
    readings: dict[str, _Reading] = {}
    for member in members:
        if (reading := _reading(measured[member.name])) is not None:
            readings[member.name] = reading
        else:
            why = "the node did not say which NVLink domain it is in"
            block.suspect([member.name], Lack.NOT_REPORTED, why)
    troubles: list[tuple[Trouble, str]] = []
    few = len(readings) < OTHERS_MIN
    for trouble, ill in _by_trouble(readings).items():
        if few:
            _undecided(ill, f"{_WORDS[trouble]} on {len(ill)} of {len(readings)} nodes", rack, block)
        elif 2 * len(ill) < len(readings):
            for name, observed in ill.items():
                block.add(name, _finding(trouble, observed, rack))
        else:
            found = f"{_WORDS[trouble]} on {len(ill)} of {len(readings)} nodes ({listed(sorted(ill))})"
            troubles.append((trouble, found))
    if gain := _no_gain(measured[name] for name in readings):
        if few:
            _undecided(readings, gain, rack, block)
        else:
            troubles.append((Trouble.NO_GAIN, gain))
    whole = len(readings) >= (members[0].domain_nodes or 0)
    state = RackState(rack, tuple(sorted(member.name for member in members)), tuple(troubles), whole)
    if troubles:
        block.suspect(state.nodes, Lack.RACK, state.sentence)
        block.note(f"{state.sentence[0].upper()}{state.sentence[1:]}.")
    elif not whole:
        block.note(
            f"Rack {rack or 'without a name'}: {len(readings)} of {members[0].domain_nodes} nodes were in the "
            "block, so its NVLink domain was not tested as a whole."
        )
    return state


def _undecided(nodes: Iterable[str], what: str, rack: str, block: BlockFindings) -> None:
    """So few nodes tell neither node nor rack, whose other nodes are not held for them."""
    why = (
        f"{what} of rack {rack or 'without a name'}; {OTHERS_MIN} nodes of it tell whether it is theirs or the rack's: "
        "test it with more"
    )
    block.suspect(nodes, Lack.UNDECIDED, why)


def _reading(rows: Measurements) -> _Reading | None:
    """None for a node that reports nothing of its domain."""
    domains = rows.rows(COLLECTIVES, Trouble.IDENTITY)
    if not domains:
        return None
    troubles: dict[Trouble, str] = {}
    states = {row.device: row.text or row.note for row in rows.rows(COLLECTIVES, Trouble.NOT_JOINED)}
    apart = {device: state for device, state in states.items() if state != "completed"}
    if apart or not states:
        troubles[Trouble.NOT_JOINED] = _named(apart) or "no GPU reports its state"
    ill = {row.device: row.note or "not healthy" for row in rows.rows(COLLECTIVES, Trouble.UNHEALTHY) if row.value == 0}
    if ill:
        troubles[Trouble.UNHEALTHY] = _named(ill)
    nowhere = {row.device: row.text for row in domains if row.text and _is_nowhere(row.text)}
    if nowhere:
        troubles[Trouble.IDENTITY] = _named(nowhere)
    imex = rows.text(COLLECTIVES, Trouble.IMEX)
    if imex not in IMEX_UP:
        troubles[Trouble.IMEX] = imex or "not known"
    known = frozenset(row.text for row in domains if row.text and not _is_nowhere(row.text))
    return _Reading(known, troubles)


def _is_nowhere(identity: str) -> bool:
    cluster, _, clique = identity.rpartition(".")
    return cluster == ZERO_UUID or clique == "0"


def _named(by_device: Mapping[str, str]) -> str:
    return ", ".join(f"{device}: {text}" for device, text in sorted(by_device.items()))


def _by_trouble(readings: Mapping[str, _Reading]) -> dict[Trouble, dict[str, str]]:
    """{trouble: {node: what it shows}}."""
    found: dict[Trouble, dict[str, str]] = collections.defaultdict(dict)
    counts = collections.Counter(identity for each in readings.values() for identity in each.identities)
    # Without a majority all are elsewhere than most, which makes it the rack's.
    usual, count = counts.most_common(1)[0] if counts else ("", 0)
    majority = 2 * count > sum(bool(each.identities) for each in readings.values())
    for name, reading in readings.items():
        for trouble, observed in reading.troubles.items():
            found[trouble][name] = observed
        if reading.identities and (reading.identities != {usual} or not majority):
            found[Trouble.SPLIT][name] = " and ".join(sorted(reading.identities))
    return found


def _no_gain(measured: Iterable[Measurements]) -> str:
    """Why MNNVL gives nothing at the largest size that ran both ways, "" if it does or was not tried.

    Over NVLink an all_reduce has many times the bandwidth of NICs; that it is no faster at all is chosen here as proof.
    """
    rates: dict[tuple[int, str], list[float]] = collections.defaultdict(list)
    for rows in measured:
        for row in rows.rows(COLLECTIVES, Trouble.NO_GAIN):
            size, way = row.labels.get("ranks", ""), row.labels.get("mnnvl", "")
            if row.value is not None and way and size.isdigit():
                rates[int(size), way].append(row.value)
    both = [ranks for ranks, way in rates if way == "on" and (ranks, "off") in rates]
    if not both:
        return ""
    most = max(both)
    on, off = (min(rates[most, way]) for way in ("on", "off"))
    if on > off:
        return ""
    return f"with {most} ranks an all_reduce is no faster over NVLink ({on:.3g} GB/s) than without ({off:.3g} GB/s)"


def _finding(trouble: Trouble, observed: str, rack: str) -> Finding:
    return Finding(
        rule="domain",
        metric=trouble.value.removesuffix("_split"),
        device="node",
        severity=Severity.CRITICAL,
        fault_class=_FAULT.get(trouble, FaultClass.NVLINK),
        action=Action.FIX_SOFTWARE if trouble is Trouble.IMEX else Action.RESET,
        observed=observed,
        expected="as most nodes of its rack",
        source=SOURCE,
        summary=f"{_WORDS[trouble][0].upper()}{_WORDS[trouble][1:]} on this node of rack {rack}: {observed}.",
        labels=(("rack", rack),) if rack else (),
    )
