"""Where the members of a block sit and how their rails are reached: from their labels, and a topology file if any."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.fabric.observed import Place, Port
from muster_criteria.cluster.fabric.topology import LEAF_LABEL, BadTopology, Topology, from_labels
from muster_criteria.cluster.fabric.topology_files import from_ibnetdiscover, from_lldp, from_slurm, from_slurm_yaml

RAILS_LABEL = "rails"
"""Node label: NAME@ADDRESS[/INTERFACE[/RDMA-DEVICE[/GPU]]] of each rail, separated by spaces."""

ONLY_RAIL = "network"
"""The rail of nodes without that label: the network by which the members reach each other."""

LLDP = ".lldp"
"""Ends the name of a file of a node's neighbours."""

_LOOPBACK = re.compile(r"127\.|::1$")

_SLURM = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_SLURM_YAML = re.compile(r"^\s*-\s+topology\s*:", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Member:
    """One member as it is enrolled. ``gpus``: how many its SKU counts, None if it counts none."""

    name: str
    address: str
    labels: Mapping[str, str]
    gpus: int | None = None


def places_of(members: Sequence[Member]) -> tuple[tuple[str, ...], dict[str, Place]]:
    """The rails that all members have, in order, and the place of each member.

    Raises BadTopology for a label that cannot be read, members whose rails differ, or one address for two nodes. If
    there are more rails than GPUs, rails that name no GPU begin with the first GPU again.
    """
    labelled = [each for each in members if each.labels.get(RAILS_LABEL)]
    if not labelled:
        return (ONLY_RAIL,), {each.name: Place(each.address, (Port(),)) for each in members}
    if len(labelled) < len(members):
        lacks = next(each.name for each in members if not each.labels.get(RAILS_LABEL))
        raise BadTopology(f"{lacks} has no label {RAILS_LABEL}, {labelled[0].name} has: label all nodes of a block")
    found = {each.name: _ports(each) for each in members}
    rails = tuple(found[members[0].name])
    for each in members:
        if set(found[each.name]) != set(rails):
            own, other = ", ".join(found[each.name]), ", ".join(rails)
            raise BadTopology(
                f"{each.name} has the rails {own}, {members[0].name} {other}: correct label {RAILS_LABEL}"
            )
    _check_addresses(members, found)
    return rails, {each.name: Place(each.address, tuple(found[each.name][rail] for rail in rails)) for each in members}


def _check_addresses(members: Sequence[Member], ports: Mapping[str, Mapping[str, Port]]) -> None:
    """Raises BadTopology for one address on two machines: each pair of one of them would carry nothing.

    Nodes that share a host, which have one management address or are reached by loopback, may share their ports.
    """
    owners: dict[str, tuple[Member, str]] = {}
    for each in members:
        for rail, port in ports[each.name].items():
            owner, its_rail = owners.setdefault(port.address, (each, rail))
            if owner.address != each.address and not _LOOPBACK.match(port.address):
                raise BadTopology(
                    f"{each.name} has the address {port.address} on rail {rail}, and so has {owner.name} on rail "
                    f"{its_rail}: correct label {RAILS_LABEL} of one of them"
                )


def _ports(member: Member) -> dict[str, Port]:
    ports: dict[str, Port] = {}
    for word in str(member.labels[RAILS_LABEL]).split():
        name, at, rest = word.partition("@")
        address, interface, device, gpu, *more = (*rest.split("/"), "", "", "")
        if not (name and at and address) or any(more) or not (gpu or "0").isdecimal():
            raise BadTopology(
                f"label {RAILS_LABEL} of {member.name} has {word!r}: write NAME@ADDRESS[/INTERFACE[/DEVICE[/GPU]]]"
            )
        if not _is_ip(address):
            raise BadTopology(
                f"label {RAILS_LABEL} of {member.name} has the name {address!r}: write an IP address, since a node may "
                "read its own name as its loopback"
            )
        if name in ports:
            raise BadTopology(f"label {RAILS_LABEL} of {member.name} names {name} twice: keep one")
        for other, port in ports.items():
            if twice := {interface, device} & {port.interface, port.device} - {""}:
                raise BadTopology(
                    f"label {RAILS_LABEL} of {member.name} names {min(twice)} for {other} and {name}: give each rail a "
                    "port of its own, or one is tested twice and another never"
                )
        place = len(ports) % member.gpus if member.gpus else len(ports)
        ports[name] = Port(address, interface, device, int(gpu) if gpu else place, bool(gpu))
    return ports


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def topology_of(
    members: Sequence[Member], rails: Sequence[str], places: Mapping[str, Place], files: Mapping[str, str] | None = None
) -> Topology:
    """The topology of the members: from the files if there are any, else from their labels; else all on one leaf.

    ``files``: by file name, the text of one topology.conf, topology.yaml or ibnetdiscover output, or of NODE.lldp for
    each node (output of ``lldpctl -f keyvalue``); ``rails`` and ``places``: from ``places_of``. Raises BadTopology if a
    file cannot be read, lacks a member, or contradicts a member's label.
    """
    if not files:
        return from_labels({each.name: each.labels for each in members}, rails)
    interfaces = {
        each.name: {
            # A label without an interface may name the rail after it.
            rail: port.interface or rail for rail, port in zip(rails, places[each.name].ports, strict=True)
        }
        for each in members
    }  # fmt: skip
    devices = {
        name: {rail: port.device for rail, port in zip(rails, place.ports, strict=True)}
        for name, place in places.items()
    }
    found = dataclasses.replace(_read(files, interfaces, devices), rails=tuple(rails))
    for each in members:
        leaf, label = found.leaves[found.leaf_of[found.index[each.name]]], each.labels.get(LEAF_LABEL)
        if label and label != leaf:
            raise BadTopology(
                f"{each.name} is on leaf {leaf} by the topology file and on {label} by its label: correct one of them"
            )
    return found


def _read(
    files: Mapping[str, str], interfaces: Mapping[str, Mapping[str, str]], devices: Mapping[str, Mapping[str, str]]
) -> Topology:
    """``interfaces`` and ``devices``: by node and rail; a device may be ""."""
    names = list(interfaces)
    rails = list(interfaces[names[0]])
    if all(file.endswith(LLDP) for file in files):
        by_node = {file.removesuffix(LLDP): text for file, text in files.items()}
        missing = [name for name in names if name not in by_node]
        if missing:
            raise BadTopology(f"no file of lldpctl's output is named after {missing[0]}: write {missing[0]}{LLDP}")
        return from_lldp({name: by_node[name] for name in names}, interfaces)
    ((file, text),) = files.items()
    if file.endswith((".yaml", ".yml")) or _SLURM_YAML.search(text):
        return from_slurm_yaml(text, rails, names)
    if _SLURM.search(text):
        return from_slurm(text, rails, names)
    if all(device for own in devices.values() for device in own.values()):
        return from_ibnetdiscover(text, names, devices)
    found = from_ibnetdiscover(text, names)
    if len(rails) > len(found.rails):
        raise BadTopology(
            f"the nodes are labelled with {len(rails)} rails, and the fabric has {len(found.rails)} adapters a node"
        )
    return found
