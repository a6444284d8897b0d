"""Topology from what a fleet has already: Slurm's topology.conf, the output of ibnetdiscover, or of lldpctl.

Where every rail has a leaf switch of its own, nodes are on the same leaf here if they share their switch on each rail.
Each function raises BadTopology with the line that cannot be used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from muster_criteria.cluster.fabric.topology import BadTopology, Topology, from_groups

NODES_MAX = 100_000
"""Most names in a file: a range such as n[1-9999999999] must not fill the memory."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_SWITCH = re.compile(r'^Switch\s+\d+\s+"(S-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(r'^\[\d+\](?:\([0-9a-f]+\))?\s+"([SH])-([0-9a-f]+)"\[(\d+)\](?:\([0-9a-f]+\))?\s*#\s*"([^"]*)"')
_AGGREGATION = "Aggregation Node"
"""Ends the description of the adapter that a switch with SHARP has inside: no node's."""
_LLDP = re.compile(r"^lldp\.(.+?)\.chassis\.name=(.+)$")


def from_slurm(text: str, rails: Sequence[str]) -> Topology:
    """topology.conf of topology/tree or topology/block: the switch (or block) that names a node is its leaf.

    The pod of a leaf is the switch above it. https://slurm.schedmd.com/topology.conf.html
    """
    leaf: dict[str, Hashable] = {}
    above: dict[Hashable, str] = {}
    for line, given in _slurm_lines(text):
        name = given.get("switchname") or given.get("blockname")
        if not name:
            continue
        for node in hostlist(given.get("nodes", ""), line):
            if node in leaf:
                raise BadTopology(f"line {line} puts {node} under {name}, an earlier one under {leaf[node]}: keep one")
            leaf[node] = name
        for switch in hostlist(given.get("switches", ""), line):
            above[switch] = name
    if not leaf:
        raise BadTopology("no line of topology.conf has SwitchName or BlockName with Nodes")
    pods: dict[Hashable, str] = {each: above[each] for each in set(leaf.values()) if each in above}
    return from_groups(leaf, rails, pods)


def _slurm_lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and parameters of each line; a line that ends in a backslash goes on in the next."""
    whole, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        begun = begun if whole else number
        whole += raw.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        pairs = (word.partition("=") for word in whole.split())
        yield begun, {key.lower(): value for key, _, value in pairs}
        whole = ""


def hostlist(text: str, line: int = 0) -> list[str]:
    """The names of a hostlist expression such as "n[001-003,7],login", in order."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        names += _expanded(part, line)
        if len(names) > NODES_MAX:
            raise BadTopology(f"line {line} names more than {NODES_MAX} nodes")
    return names


def _expanded(part: str, line: int) -> list[str]:
    found = _BRACKETS.search(part)
    if found is None:
        return [part]
    numbers: list[str] = []
    for piece in found.group(1).split(","):
        one = _RANGE.fullmatch(piece.strip())
        first, last = (int(one.group(1)), int(one.group(2) or one.group(1))) if one else (1, 0)
        if one is None or last < first or last - first >= NODES_MAX:
            raise BadTopology(f"line {line} has [{found.group(1)}], which is no list of numbers and ranges")
        numbers += [str(number).zfill(len(one.group(1))) for number in range(first, last + 1)]
    rest = _expanded(part[found.end() :], line)
    if len(numbers) * len(rest) > NODES_MAX:
        raise BadTopology(f"line {line} names more than {NODES_MAX} nodes")
    return [part[: found.start()] + number + tail for number in numbers for tail in rest]


def from_ibnetdiscover(text: str) -> Topology:
    """Topology of all channel adapters, whose description is "NODE ADAPTER": one rail for each adapter's name.

    Leaf switches are those with adapters; a pod is the leaves that reach the same switches above them. Nodes lacking
    an adapter that others have belong to a leaf without it. Its second port is named "ADAPTER/2", as nodes name it.
    """
    adapters: dict[str, dict[str, str]] = defaultdict(dict)
    uplinks: dict[str, set[str]] = defaultdict(set)
    switch = ""
    for line, raw in enumerate(text.splitlines(), 1):
        if begun := _SWITCH.match(raw):
            switch = begun.group(1)
        elif not raw.startswith("["):
            switch = switch if not raw or raw[0].isspace() or raw.startswith("#") else ""
        elif switch and (port := _PORT.match(raw)):
            if port.group(1) == "S":
                uplinks[switch].add(f"S-{port.group(2)}")
                continue
            described = port.group(4).strip()
            node, _, adapter = described.partition(" ")
            if described.endswith(_AGGREGATION):
                continue
            if not adapter:
                raise BadTopology(f'line {line} describes an adapter as "{described}", not as "NODE ADAPTER"')
            adapter = adapter if port.group(3) == "1" else f"{adapter}/{port.group(3)}"
            if adapter in adapters[node]:
                raise BadTopology(f'line {line} describes a second adapter as "{described}": set their descriptions')
            adapters[node][adapter] = switch
    if not adapters:
        raise BadTopology("there is no switch with an adapter on it: is this the output of ibnetdiscover?")
    return _by_switches(adapters, uplinks)


def from_lldp(outputs: Mapping[str, str], rails: Sequence[str]) -> Topology:
    """Topology by ``lldpctl -f keyvalue`` of each node: the switch that each rail's interface sees. One pod."""
    switches: dict[str, dict[str, str]] = {}
    for node, text in outputs.items():
        seen: dict[str, str] = {}
        for found in filter(None, map(_LLDP.match, text.splitlines())):
            if (
                seen.setdefault(found.group(1), found.group(2).strip()) != found.group(2).strip()
                and found.group(1) in rails
            ):
                raise BadTopology(f"{node} sees two neighbours on {found.group(1)}: which of them is its switch?")
        missing = [rail for rail in rails if rail not in seen]
        if missing:
            raise BadTopology(f"{node} sees no switch on {missing[0]}: is lldpd running there, and the port up?")
        switches[node] = {rail: seen[rail] for rail in rails}
    if not switches:
        raise BadTopology("there is no output of lldpctl")
    return _by_switches(switches, {}, rails)


def _by_switches(
    on: Mapping[str, Mapping[str, str]], uplinks: Mapping[str, set[str]], rails: Sequence[str] | None = None
) -> Topology:
    rails = rails or sorted({rail for given in on.values() for rail in given})
    groups = {node: tuple(given.get(rail, "") for rail in rails) for node, given in on.items()}
    # A switch carries several rails where the fabric is not rail-optimised: its name once is enough.
    names = {group: " ".join(dict.fromkeys(filter(None, group))) for group in groups.values()}
    above = {group: ", ".join(sorted(set().union(*(uplinks.get(name, ()) for name in group)))) for group in names}
    leaf: dict[str, Hashable] = {node: names[group] for node, group in sorted(groups.items())}
    pod: dict[Hashable, str] = {names[group]: above[group] or "all leaves" for group in names}
    return from_groups(leaf, rails, pod)
