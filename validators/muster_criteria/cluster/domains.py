"""NVLink domains that span a rack (GB200, GB300 NVL72): whether each node is in the one domain, and whose fault it is
if not.

ClusterUUID and clique must not be zero and must be equal within the rack, each GPU must have joined, and IMEX must be
up (azhpc-images issue #506: a domain that ended in "Insufficient Resources" passed tests of single nodes). Where NVLink
ends at the machine (HGX) a zero identity is right, so only SKUs that name ``domain_nodes`` are judged. A rack may be
partitioned on purpose: a clique that two or more nodes share is a domain of its own. Trouble on half of the nodes of a
rack, or of such a domain, is charged to the rack: no node fails for it, no node of that rack or domain passes, and a
person decides. One or two nodes of a rack are too few to decide, as are nodes without a recorded rack; a node alone in
its clique is undecided unless the whole rack is in the block.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster_criteria.cluster.model import COLLECTIVES, BlockFindings, Measurements, MemberResult
from muster_criteria.cluster.plan import domains_grow
from muster_criteria.cluster.rack import RackState, Trouble
from muster_criteria.model import Action, FaultClass, Finding, Lack, Severity
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.words import figure, listed

ZERO_UUID = "00000000-0000-0000-0000-000000000000"
IMEX_UP = ("READY", "service active")
IMEX_ELSEWHERE = "service masked"
"""What a node with a masked IMEX service reports: if all of the rack do so, something else manages IMEX."""
OTHERS_MIN = 3
"""Fewest nodes of a rack that show whether a fault is a node's or the rack's."""
GAIN = 1.5
"""Least factor by which MNNVL must speed up a large all_reduce. Chosen here: published rates with and without it are
882.51 / 191.40 GB/s on GB200 and 923.32 / 376.01 on GB300 (NVCRE), factors of 4.6 and 2.5; without effect, only noise
differs."""
LARGE_BYTES = 500_000_000
"""Least size of a large all_reduce: 512 MiB, divided evenly over the ranks. Chosen here: a smaller one is bound by
latency and no factor is published for it, so MNNVL only has to make it faster."""
NICS_MOST = 500.0
"""GB/s of an all_reduce beyond what a tray's NICs carry (four of 800 Gb/s: 400 GB/s), so it went over NVLink. Published
for a GB200 whose switch had no effect: 838.07 with MNNVL and 837.76 without (NVCRE)."""
SOURCE = "docs/science.md#nvlink-domains"


_FAULT = {Trouble.IMEX: FaultClass.SOFTWARE}
_WORDS = {
    Trouble.NOT_JOINED: "not all GPUs have joined the NVSwitch fabric",
    Trouble.UNHEALTHY: "the fabric manager reports NVLinks that are not healthy",
    Trouble.IDENTITY: "the ClusterUUID or the clique is zero",
    Trouble.SPLIT: "the NVLink domain is neither that of most nodes of the rack nor a partition of it",
    Trouble.IMEX: "IMEX is not up",
}


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What one node reports. ``identities``: domains that its GPUs joined. ``troubles``: what is wrong, in its
    words."""

    identities: frozenset[str]
    troubles: Mapping[Trouble, str]

    def without(self, trouble: Trouble) -> _Reading:
        return _Reading(self.identities, {code: why for code, why in self.troubles.items() if code is not trouble})


def judge_domains(
    members: Sequence[MemberResult], programme: BlockProgramme, measured: Mapping[str, Measurements],
    block: BlockFindings,
) -> tuple[RackState, ...]:  # fmt: skip
    """Adds findings on nodes that differ from their rack, and returns the state of each rack."""
    racks: dict[str, list[MemberResult]] = collections.defaultdict(list)
    for member in members:
        if member.domain_nodes and member.result is not None:
            racks[member.rack].append(member)
    wanted = {member.name for member in members if member.domain_nodes and domains_grow(programme, member.level)}
    return tuple(_rack(rack, found, wanted, measured, block) for rack, found in sorted(racks.items()))


def _rack(
    rack: str, members: Sequence[MemberResult], wanted: Collection[str], measured: Mapping[str, Measurements],
    block: BlockFindings,
) -> RackState:  # fmt: skip
    """``wanted``: nodes whose programme has collectives over their domain."""
    readings: dict[str, _Reading] = {}
    for member in members:
        if (reading := _reading(measured[member.name])) is not None:
            readings[member.name] = reading
        else:
            why = "the node did not say which NVLink domain it is in"
            block.suspect([member.name], Lack.NOT_REPORTED, why)
    names = frozenset(member.name for member in members)
    few, whole = not rack or len(readings) < OTHERS_MIN, len(readings) >= (members[0].domain_nodes or 0)
    elsewhere = len(readings) >= OTHERS_MIN and all(
        each.troubles.get(Trouble.IMEX) == IMEX_ELSEWHERE for each in readings.values()
    )
    if elsewhere:
        readings = {name: each.without(Trouble.IMEX) for name, each in readings.items()}
        block.note(
            f"Rack {rack or 'without a name'}: nvidia-imex is masked on all its nodes in the block, so "
            "something else manages IMEX: MNNVL was not tested."
        )
    troubles: list[tuple[Trouble, str]] = []
    held: set[str] = set()
    domains = _domains(readings)
    for trouble, ill in _by_trouble(readings, domains).items():
        if few:
            _undecided(ill, f"{_WORDS[trouble]} on {len(ill)} of {len(readings)} nodes", rack, block)
            continue
        if trouble is Trouble.SPLIT and not whole:
            alone = _alone(ill, domains)
            _one_of_a_partition(alone, rack, block)
            ill = {name: observed for name, observed in ill.items() if name not in alone}
        of_rack, of_domains = _of_the_rack(ill, readings, domains)
        for name in (each for each in ill if each not in of_rack):
            block.add(name, _finding(trouble, ill[name], rack))
        if of_rack:
            found = f"{_WORDS[trouble]} on {len(of_rack)} of {len(readings)} nodes ({listed(sorted(of_rack))})"
            troubles.append((trouble, found))
            # Trouble that belongs to no single domain is the whole rack's.
            held |= of_domains if of_domains and trouble is not Trouble.SPLIT else names
    if gains := {} if elsewhere else _no_gains(readings, measured):
        what = "; ".join(gains)
        if few:
            _undecided(readings, what, rack, block)
        else:
            troubles.append((Trouble.NO_GAIN, what))
            held.update(*gains.values())
    partitions = {identity: names for identity, names in sorted(domains.items()) if len(names) > 1}
    for name in () if elsewhere else sorted(set().union(*partitions.values()).intersection(wanted)):
        if not readings[name].troubles and not _grew(measured[name]):
            block.suspect([name], Lack.NOT_REPORTED, "no collective over its NVLink domain was measured (domain_busbw)")
    if rack and len(partitions) > 1:
        each = listed([f"{identity} with {len(names)} nodes" for identity, names in partitions.items()])
        block.note(f"Rack {rack} has {len(partitions)} NVLink domains, each judged alone: {each}.")
    state = RackState(rack, tuple(sorted(names)), tuple(troubles), tuple(sorted(held)))
    if troubles:
        block.suspect(state.held, Lack.RACK, state.sentence)
        block.note(f"{state.sentence[0].upper()}{state.sentence[1:]}.")
    elif not whole:
        block.note(
            f"Rack {rack or 'without a name'}: {len(readings)} of {members[0].domain_nodes} nodes were in the "
            "block, so its NVLink domain was not tested as a whole."
        )
    return state


def _grew(rows: Measurements) -> bool:
    return any(row.value is not None for row in rows.rows(COLLECTIVES, Trouble.NO_GAIN))


def _undecided(nodes: Iterable[str], what: str, rack: str, block: BlockFindings) -> None:
    """Suspects these nodes alone: too few, or of no known rack, to show whether node or rack is at fault."""
    why = f"{what} of rack {rack}; {OTHERS_MIN} nodes of it tell whether it is theirs or the rack's: test it with more"
    if not rack:
        why = f"{what} without a rack, which may be of several: give each node its rack (`muster node add NODE --rack`)"
    block.suspect(nodes, Lack.UNDECIDED, why)


def _one_of_a_partition(nodes: Iterable[str], rack: str, block: BlockFindings) -> None:
    """Suspects nodes alone in their clique, since nodes of the rack that are not in the block may share it."""
    why = (
        f"no other node in the block shares its clique of rack {rack}, whose other nodes may: test the rack as a whole"
    )
    block.suspect(nodes, Lack.UNDECIDED, why)


def domain_of(rows: Measurements) -> str:
    """The NVLink domain that all GPUs of a node share; "" if they report none or several, or none spans machines."""
    found = {row.text or "" for row in rows.rows(COLLECTIVES, Trouble.IDENTITY)}
    identity = found.pop() if len(found) == 1 else ""
    return "" if _is_nowhere(identity) else identity


def _reading(rows: Measurements) -> _Reading | None:
    """What a node reports of its domain; None if it reports nothing."""
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
    _, _, clique = identity.rpartition(".")
    return _cluster(identity) == ZERO_UUID or clique == "0"


def _cluster(identity: str) -> str:
    cluster, _, _ = identity.rpartition(".")
    return cluster


def _named(by_device: Mapping[str, str]) -> str:
    return ", ".join(f"{device}: {text}" for device, text in sorted(by_device.items()))


def _domains(readings: Mapping[str, _Reading]) -> dict[str, set[str]]:
    """{identity: the nodes all of whose GPUs have it}."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for name, reading in readings.items():
        if len(reading.identities) == 1:
            found[min(reading.identities)].add(name)
    return found


def _usual(domains: Mapping[str, Collection[str]]) -> str:
    """The ClusterUUID that most nodes have, "" for no nodes."""
    clusters: collections.Counter[str] = collections.Counter()
    for identity, names in domains.items():
        clusters[_cluster(identity)] += len(names)
    return max(clusters, key=lambda cluster: clusters[cluster], default="")


def _alone(ill: Collection[str], domains: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The ill nodes that have a clique of the usual cluster to themselves."""
    usual = _usual(domains)
    return frozenset(
        name
        for identity, names in domains.items()
        for name in names
        if len(names) == 1 and name in ill and _cluster(identity) == usual
    )


def _by_trouble(
    readings: Mapping[str, _Reading], domains: Mapping[str, Collection[str]]
) -> dict[Trouble, dict[str, str]]:
    """{trouble: {node: what it shows}}. A node is in its place if it shares its clique with another node and has the
    ClusterUUID that most nodes have: partitions of a rack have one ClusterUUID."""
    found: dict[Trouble, dict[str, str]] = collections.defaultdict(dict)
    usual = _usual(domains)
    differ = len(frozenset().union(*(reading.identities for reading in readings.values()))) > 1
    for name, reading in readings.items():
        for trouble, observed in reading.troubles.items():
            found[trouble][name] = observed
        shares = any(name in names and len(names) > 1 for names in domains.values())
        in_place = shares and {_cluster(each) for each in reading.identities} == {usual}
        if differ and reading.identities and not in_place:
            found[Trouble.SPLIT][name] = " and ".join(sorted(reading.identities))
    return found


def _of_the_rack(
    ill: Collection[str], nodes: Collection[str], domains: Mapping[str, Collection[str]]
) -> tuple[frozenset[str], frozenset[str]]:
    """(ill nodes whose trouble is the rack's, all nodes of the domains concerned). It is the rack's if half of all
    nodes have it (the second set is then empty), or half of a domain's nodes, at least two."""
    if 2 * len(ill) >= len(nodes):
        return frozenset(ill), frozenset()
    found: set[str] = set()
    whole: set[str] = set()
    for names in domains.values():
        of_domain = [name for name in names if name in ill]
        if len(of_domain) > 1 and 2 * len(of_domain) >= len(names):
            found.update(of_domain)
            whole.update(names)
    return frozenset(found), frozenset(whole)


def _no_gains(readings: Mapping[str, _Reading], measured: Mapping[str, Measurements]) -> dict[str, list[str]]:
    """{why MNNVL gives nothing: the nodes of that domain}. Each domain grew groups of its own."""
    grown: dict[frozenset[str], list[str]] = collections.defaultdict(list)
    for name, reading in readings.items():
        grown[reading.identities].append(name)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for names in sorted(grown.values()):
        if why := _no_gain(measured[name] for name in names):
            found[why] += names
    return found


def _no_gain(measured: Iterable[Measurements]) -> str:
    """Why MNNVL gives nothing at the largest size that ran both ways, "" if it does or was not tried."""
    rates: dict[tuple[int, int, str], list[float]] = collections.defaultdict(list)
    for rows in measured:
        for row in rows.rows(COLLECTIVES, Trouble.NO_GAIN):
            ranks, size, way = (row.labels.get(name, "") for name in ("ranks", "bytes", "mnnvl"))
            if row.value is not None and way and ranks.isdecimal() and size.isdecimal():
                rates[int(ranks), int(size), way].append(row.value)
    both = [(most, sent) for most, sent, way in rates if way == "on" and (most, sent, "off") in rates]
    if not both:
        return ""
    most, sent = max(both)
    on, off = (min(rates[most, sent, way]) for way in ("on", "off"))
    factor = GAIN if sent >= LARGE_BYTES else 1.0
    if on > factor * off or min(on, off) > NICS_MOST:
        return ""
    return (
        f"with {most} ranks an all_reduce of {figure(sent / 1e6, 'MB')} has {on:.3g} GB/s with MNNVL, not more than "
        f"{factor:g} times the {off:.3g} GB/s without: NCCL used the same way both times"
    )


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
        labels=(("rack", rack),),
    )
