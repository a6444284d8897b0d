"""Topology from what a fleet has: Slurm's topology.conf or topology.yaml, or the output of ibnetdiscover or lldpctl.

If every rail has a leaf switch of its own, nodes are on the same leaf here if they share the switch on each rail. A
file describes a whole fleet: each function takes the names of a block's nodes, ignores others, and raises BadTopology
that names what cannot be used, or a node that the file lacks.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from muster_criteria.cluster.fabric.cabling import Link, miscabled_rails, switches
from muster_criteria.cluster.fabric.topology import BadTopology, Topology, check_named, from_groups
from muster_criteria.hostlist import expanded
from muster_criteria.yaml_file import BadYaml, load

BYTES_MAX = 50_000_000
"""Largest file that is read."""
NODES_MAX = 100_000
"""Most names in a file: a range such as n[1-9999999999] must not fill the memory."""

_SWITCH = re.compile(r'^Switch\s+\d+\s+"(S-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_NUMBER = r"\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?"
"""A port; with `-g`, one of a modular switch has its number on the outside, too (rdma-core, ibnetdiscover.c)."""
_PORT = re.compile(rf'^{_NUMBER}\s+"([SH])-([0-9a-f]+)"{_NUMBER}\s*#\s*"([^"]*)"')
_AGGREGATION = "Aggregation Node"
"""Ends the description of the adapter inside a switch with SHARP, which belongs to no node."""
_LLDP = re.compile(r"^lldp\.(.+?)\.(chassis\.name|port\.ifname)=(.+)$")
_PARAMETER = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|(\S+))')
"""As Slurm's own parser reads it: blanks around the sign, and quotes."""


def from_slurm(text: str, rails: Sequence[str], names: Sequence[str]) -> Topology:
    """topology.conf of topology/tree or topology/block: the switch (or block) that names a node is its leaf.

    The pod of a leaf is the switch above it. https://slurm.schedmd.com/topology.conf.html
    """
    return _by_entries(_slurm_lines(text), rails, names)


def from_slurm_yaml(text: str, rails: Sequence[str], names: Sequence[str]) -> Topology:
    """As ``from_slurm``, of the first topology in topology.yaml that names a node of the block; the default comes
    first.

    https://slurm.schedmd.com/topology.yaml.html
    """
    try:
        given = load(text, BYTES_MAX)
    except BadYaml as error:
        raise BadTopology(f"the topology file {error}") from error
    topologies = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    for topology in sorted(topologies, key=lambda each: each.get("cluster_default") is not True):
        entries = list(_yaml_entries(topology))
        if any(not set(names).isdisjoint(hostlist(each["nodes"], where)) for where, each in entries):
            return _by_entries(entries, rails, names)
    raise BadTopology(
        "the YAML file has no topology of Slurm's with a tree or blocks that name a node of this block: name Slurm's "
        "topology.yaml"
    )


def _yaml_entries(topology: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for kind, many, one in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        of_kind = topology.get(kind)
        entries = of_kind.get(many) if isinstance(of_kind, dict) else None
        for each in entries if isinstance(entries, list) else []:
            if isinstance(each, dict) and each.get(one):
                nodes, switches = (str(each.get(name) or "") for name in ("nodes", "children"))
                yield f"{one} {each[one]}", {"switchname": str(each[one]), "nodes": nodes, "switches": switches}


def _by_entries(
    entries: Iterable[tuple[str, Mapping[str, str]]], rails: Sequence[str], names: Sequence[str]
) -> Topology:
    found, wanted = dict[str, str](), frozenset(names)
    above: dict[Hashable, str] = {}
    for where, given in entries:
        name = given.get("switchname") or given.get("blockname")
        if not name:
            continue
        for node in sorted(wanted.intersection(hostlist(given.get("nodes", ""), where))):
            if node in found:
                raise BadTopology(f"{where} puts {node} under {name}, an earlier one under {found[node]}: keep one")
            found[node] = name
        for switch in hostlist(given.get("switches", ""), where):
            above[switch] = name
    check_named(found, names)
    leaf = {name: found[name] for name in names}
    pods: dict[Hashable, str] = {each: above[each] for each in set(leaf.values()) if each in above}
    return from_groups(leaf, rails, pods)


def _slurm_lines(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(place such as "line 3", parameters) of each line; a trailing backslash continues a line."""
    whole, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        begun = begun if whole else number
        whole += raw.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        yield f"line {begun}", {key.lower(): quoted or bare for key, quoted, bare in _PARAMETER.findall(whole)}
        whole = ""


def hostlist(text: str, where: str = "the list") -> list[str]:
    """The names of a hostlist expression such as "n[001-003,7],login", in order. Raises BadTopology."""

    def bad(spans: str) -> None:
        raise BadTopology(f"{where} has [{spans}], which is no list of numbers and ranges")

    names = list(expanded(text, NODES_MAX + 1, bad))
    if len(names) > NODES_MAX:
        raise BadTopology(f"{where} names more than {NODES_MAX} nodes")
    return names


def from_ibnetdiscover(
    text: str, names: Sequence[str], devices: Mapping[str, Mapping[str, str]] | None = None
) -> Topology:
    """Topology by channel adapters, whose description is "NODE ADAPTER".

    Leaf switches are those with adapters; a pod is the leaves that reach the same switches above them. ``devices``: by
    node and rail, the adapter; each node must have these, and others (a storage network's) are ignored. Without it, or
    if the file names adapters differently, there is one rail for each name. Nodes without an adapter that others have
    form a leaf without it, unless an adapter with another description may be theirs. The second port of an adapter is
    named "ADAPTER/2", as nodes name it.
    """
    adapters, uplinks, odd = _ib_ports(text, names)
    if devices and any(set(devices[name].values()) & adapters.get(name, {}).keys() for name in names):
        for name in names:
            if lacked := [each for each in devices[name].items() if each[1] not in adapters.get(name, ())]:
                rail, device = lacked[0]
                raise BadTopology(
                    f"{name} lacks adapter {device}, its device of rail {rail}, in the topology file: correct label "
                    "rails, or bring the port up and write the file again" + (f"; {odd}" if odd else "")
                )
        on = {name: {rail: adapters[name][device] for rail, device in devices[name].items()} for name in names}
        return _checked(_by_switches(on, uplinks, list(devices[names[0]])), on)
    own = {name: adapters[name] for name in names if name in adapters}
    rails = sorted({rail for given in own.values() for rail in given})
    lacks = [name for name in names if len(own.get(name, ())) < max(len(rails), 1)]
    if odd and lacks:
        raise BadTopology(f"{lacks[0]} lacks an adapter in the topology file, and {odd}")
    check_named(own, names)
    return _by_switches(own, uplinks, rails)


def _ib_ports(text: str, names: Sequence[str]) -> tuple[dict[str, dict[str, Link]], dict[str, set[str]], str]:
    """(switch of each adapter of each node, switches above each switch, the first description that names no node).

    Such a description may belong to any node; if it belongs to one of the block, it is refused at once.
    """
    adapters: dict[str, dict[str, Link]] = defaultdict(dict)
    uplinks: dict[str, set[str]] = defaultdict(set)
    switch, odd, wanted = "", "", frozenset(names)
    for line, raw in enumerate(text.splitlines(), 1):
        if begun := _SWITCH.match(raw):
            switch = begun.group(1)
        elif not raw.startswith("["):
            switch = switch if not raw or raw[0].isspace() or raw.startswith("#") else ""
        elif switch and (port := _PORT.match(raw)):
            number, kind, guid, at, described = port.groups()
            if kind == "S":
                uplinks[switch].add(f"S-{guid}")
                continue
            described = described.strip()
            node, _, adapter = described.partition(" ")
            if described.endswith(_AGGREGATION):
                continue
            adapter = adapter if at == "1" else f"{adapter}/{at}"
            why = ""
            if described == node or (node not in wanted and " " in adapter):
                why = f'line {line} describes an adapter as "{described}", not as "NODE ADAPTER": set its description'
            elif adapter in adapters[node]:
                why = f'line {line} describes a second adapter as "{described}": set their descriptions'
            if why and node in wanted:
                raise BadTopology(why)
            odd = odd or why
            adapters[node][adapter] = Link(switch, number)
    if not adapters:
        raise BadTopology("there is no switch with an adapter on it: is this the output of ibnetdiscover?")
    return adapters, uplinks, odd


def from_lldp(outputs: Mapping[str, str], interfaces: Mapping[str, Mapping[str, str]]) -> Topology:
    """Topology by ``lldpctl -f keyvalue`` of each node: the switch that each rail's interface sees. One pod.

    ``interfaces``: by node and rail. All nodes have the same rails. Switches of one name count as one: many switches
    have another chassis address on each port, so nothing else of LLDP's tells two apart; but no port is of two nodes.
    """
    on: dict[str, dict[str, Link]] = {}
    owners: dict[Link, str] = {}
    for node, text in outputs.items():
        seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        for found in filter(None, map(_LLDP.match, text.splitlines())):
            seen[found.group(1), found.group(2)].add(found.group(3).strip())
        on[node] = {}
        for rail, interface in interfaces[node].items():
            names, ports = (seen[interface, key] for key in ("chassis.name", "port.ifname"))
            if not names:
                raise BadTopology(
                    f"{node} sees no switch on {interface}, its interface of rail {rail}: correct label rails, start "
                    "lldpd there, or bring the port up; of a bond only its slaves see one, so use label leaf"
                )
            if len(names) > 1:
                raise BadTopology(f"{node} sees two neighbours on {interface}: which of them is its switch?")
            link = on[node][rail] = Link(min(names), min(ports, default=""))
            if ports and (other := owners.setdefault(link, node)) != node:
                raise BadTopology(
                    f"{other} and {node} are both on port {link.port} of {link.switch}: give each switch a name of its "
                    "own, or use label leaf"
                )
    return _checked(_by_switches(on, {}, list(next(iter(interfaces.values())))), on)


def _checked(topology: Topology, on: Mapping[str, Mapping[str, Link]]) -> Topology:
    return dataclasses.replace(topology, miscabled=miscabled_rails(on, topology.rails))


def _by_switches(
    on: Mapping[str, Mapping[str, Link]], uplinks: Mapping[str, set[str]], rails: Sequence[str]
) -> Topology:
    groups = {node: switches(given, rails) for node, given in on.items()}
    # A switch carries several rails where the fabric is not rail-optimised: its name once is enough.
    names = {group: " ".join(dict.fromkeys(filter(None, group))) for group in groups.values()}
    above = {group: ", ".join(sorted(set().union(*(uplinks.get(name, ()) for name in group)))) for group in names}
    leaf: dict[str, Hashable] = {node: names[group] for node, group in groups.items()}
    pod: dict[Hashable, str] = {names[group]: above[group] or "all leaves" for group in names}
    return from_groups(leaf, rails, pod)
