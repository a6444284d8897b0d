"""Parameters for both sides of each pair of a round, and the figures that they return as cells."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from muster_criteria.cluster.fabric.rounds import Kind, Round, RoundResult
from muster_criteria.cluster.fabric.topology import Topology
from muster_criteria.measured import Measured

PROBE = "pair_rails"
ALONE, TOGETHER, CROSSED, HOST_TCP = "alone", "together", "crossed", "host_tcp"
_GPU = re.compile(r"gpu[0-9]{1,3}")


@dataclasses.dataclass(frozen=True)
class Port:
    """One rail's port on a node: its address and, if known, its interface, RDMA device and nearest GPU.

    Without an address, the address by which the two nodes have met is used: a name's address differs by node.
    ``named``: ``gpu`` is a slot number; else it is a place among the node's GPUs that answer.
    """

    address: str = ""
    interface: str = ""
    device: str = ""
    gpu: int | None = None
    named: bool = True


@dataclasses.dataclass(frozen=True)
class Place:
    """How the others reach a node: its management address, and its ports in the order of the rails."""

    address: str
    ports: tuple[Port, ...]


def pair_params(
    topology: Topology,
    plan: Round,
    places: Mapping[str, Place],
    *,
    ports: Sequence[int],
    session: str,
    settings: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Parameters of ``pair_rails`` for each node of a round. The node with the lower index serves.

    ``ports``: of the first pair, the others have the next ones, since members may share a host. ``session``: the secret
    that each pair's own begins with. ``settings``: further parameters, the same for all (backend, seconds, streams).
    Raises ValueError for a node that has fewer ports than the topology has rails.
    """
    found: dict[str, dict[str, Any]] = {}
    for at, pair in enumerate(plan.pairs):
        shared = {
            **settings, "ports": [port + at for port in ports], "session": f"{session}/{plan.number}/{at}",
            "variants": plan.variants,
        }  # fmt: skip
        names = [topology.nodes[node] for node in pair]
        if settings.get("backend") == "nccl" and plan.kind is Kind.CONFIRM and all(_apart(places[n]) for n in names):
            shared["crossed"] = True
        for own, other, role in ((*names, "serve"), (*names[::-1], "join")):
            found[own] = {
                **shared, "role": role, "partner": other, "address": places[names[0]].address,
                "rails": _rails(topology, own, places[own], places[other]),
            }  # fmt: skip
    return found


def _apart(place: Place) -> bool:
    """Whether each rail has a GPU of its own: a GPU that two rails share shows nothing of either NIC when crossed."""
    gpus = [port.gpu for port in place.ports]
    return len(set(gpus)) == len(gpus)


def _rails(topology: Topology, name: str, own: Place, other: Place) -> list[dict[str, Any]]:
    if len(own.ports) != len(topology.rails):
        raise ValueError(f"{name} has {len(own.ports)} ports, the topology {len(topology.rails)} rails: correct one")
    return [
        {"name": rail, "own": mine.address, "other": theirs.address, "interface": mine.interface,
         "device": mine.device, "gpu": mine.gpu, "named": mine.named}
        for rail, mine, theirs in zip(topology.rails, own.ports, other.ports, strict=True)
    ]  # fmt: skip


def round_result(topology: Topology, plan: Round, returned: Mapping[str, Sequence[Measured] | None]) -> RoundResult:
    """The cells of a round. ``returned``: each node's measurements, None for a node that returned nothing.

    A pair counts as not measured if one node returned nothing, or if its backend is not the one of most pairs: then one
    of the two lacks software. The lower of the rates that arrived at both nodes counts.
    """
    shape = (len(plan.pairs), len(topology.rails))
    flows = {ALONE: plan.variants, TOGETHER: plan.variants, CROSSED: 1, HOST_TCP: 1}
    rates = {mode: np.full((*shape, count), np.nan) for mode, count in flows.items()}
    wrong = np.zeros(shape, dtype=bool)
    silent: set[int] = set()
    gpus: dict[tuple[int, int], str] = {}
    troubles: dict[tuple[int, int], str] = {}
    fallbacks: dict[int, str] = {}
    rail_at = {rail: at for at, rail in enumerate(topology.rails)}
    used = [_backend([returned.get(topology.nodes[node]) or () for node in pair]) for pair in plan.pairs]
    # With as many pairs of each, TCP is what the other backend was replaced by.
    usual = max(filter(None, used), key=lambda name: (used.count(name), name != "tcp", name), default="")
    other = {at for at, name in enumerate(used) if name not in ("", usual)}
    for at, pair in enumerate(plan.pairs):
        lost = {node for node in pair if returned.get(topology.nodes[node]) is None}
        silent |= lost
        for node in pair:
            said = (row.note for row in returned.get(topology.nodes[node]) or () if row.metric == "pair_backend")
            if why := next(said, ""):
                fallbacks[node] = why
        if lost or at in other:
            continue
        for node, row in ((own, each) for own in pair for each in returned[topology.nodes[own]] or ()):
            rail = rail_at.get(row.labels.get("rail", ""))
            if row.probe != PROBE or rail is None or row.value is None:
                continue
            mode = row.labels.get("mode", "")
            if _GPU.fullmatch(row.labels.get("gpu", "")):
                gpus[node, rail] = row.labels["gpu"]
            if row.metric == "pair_wrong_bytes" and mode in (ALONE, TOGETHER):
                wrong[at, rail] |= row.value > 0
            elif row.metric == "pair_bandwidth" and mode in rates:
                cell = at, rail, _variant(row, flows[mode])
                rates[mode][cell] = np.fmin(rates[mode][cell], row.value)
                if mode in (ALONE, TOGETHER) and row.value == 0 and row.note:
                    troubles.setdefault((node, rail), row.note)
    replaced = {node: used[at] for at in other for node in plan.pairs[at]}
    together, crossed, host = (np.fmax.reduce(rates[mode], axis=2) for mode in (TOGETHER, CROSSED, HOST_TCP))
    return RoundResult(
        plan, rates[ALONE], wrong, together, crossed, frozenset(silent), replaced, host > 0, usual, gpus, troubles,
        fallbacks,
    )  # fmt: skip


def untried(figures: Iterable[Measured]) -> dict[tuple[str, str], str]:
    """{(rail, mode): why} for rails over which nothing was tried in any flow, alone or with all rails at once: a NIC
    that is gone has no rate, not even 0. ``figures``: one node's of a round."""
    rates = [row for row in figures if row.metric == "pair_bandwidth" and row.labels.get("mode") in (ALONE, TOGETHER)]
    by_flow = [((row.labels.get("rail", ""), row.labels["mode"]), row) for row in rates]
    tried = {at for at, row in by_flow if row.value is not None}
    return {at: row.note for at, row in by_flow if at not in tried}


def _backend(sides: Sequence[Sequence[Measured]]) -> str:
    """What a pair was measured with, "" where no side says so."""
    return next((row.text for rows in sides for row in rows if row.metric == "pair_backend" and row.text), "")


def _variant(row: Measured, variants: int) -> int:
    given = row.labels.get("variant", "0")
    return int(given) if given.isdecimal() and int(given) < variants else 0
