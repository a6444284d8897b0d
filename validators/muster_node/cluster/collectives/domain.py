"""The NVLink domain of a block's nodes: what each says of it, and collectives over groups that grow to all of it.

Each size once with MNNVL and once with `NCCL_MNNVL_ENABLE=0` (NCCL user guide, environment variables): what is wrong
with IMEX or a partition shows in the first only. Groups grow because a fault of size does not show in a small one: nccl
issue #2186 crashed from 44 ranks on. NCCL reads the variable once in a process, so each way has processes of its own.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

from muster_node.cluster.collectives.exchange import ELEMENT_BYTES, Exchange, busbw_factor, elements_of
from muster_node.cluster.collectives.fabric import Fabric, open_fabric
from muster_node.cluster.rendezvous.member import PeerGroup
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device
from muster_node.probe import Context, Metric
from muster_node.workloads.common import MIB, median, spread

DOMAIN_METRICS = {
    "nvlink_domain": Metric("text", "ClusterUUID and clique of the GPU; zero where NVLink ends at the machine"),
    "fabric_state": Metric("text", "how far the GPU has come in joining its NVSwitch fabric"),
    "fabric_healthy": Metric("bool", "whether the fabric manager reports the GPU's NVLinks healthy"),
    "imex": Metric("text", "state of IMEX by its control tool, else of its service"),
    "domain_busbw": Metric(
        "GB/s", "bus bandwidth of an all_reduce in the domain, by ranks, bytes, and MNNVL on or off"
    ),
}
"""Metrics of a probe that tests the domain."""

_VARIABLE = "NCCL_MNNVL_ENABLE"
_WAYS = {"on": "1", "off": "0"}
_NOWHERE = "00000000-0000-0000-0000-000000000000"
_MASKED = "service masked"
_WARMUP = 2
_CHECKED = {"op": "all_reduce", "part": "domain"}


def grow(context: Context, group: PeerGroup, ranks: Sequence[Device]) -> None:
    """This node's part: its GPUs' identities, then the growing groups of the domains that the nodes share."""
    group.begin("domain")
    wanted = context.params["grow"]
    shared = group.gather(_reported(context))
    domains: dict[str, list[str]] = {}
    for name in group.names:
        # Asked to grow without a domain, all nodes are one: the way of the test is the same over gloo.
        if identity := shared[name] or ("all" if wanted else ""):
            domains.setdefault(identity, []).append(name)
    domains = {identity: names for identity, names in domains.items() if len(names) > 1}
    if wanted is False or not domains:
        return
    on_gpus = all(device.kind == "gpu" for device in ranks) and not context.hardware.simulated
    for way in _WAYS if on_gpus else ("",):
        before = os.environ.get(_VARIABLE)
        if way:
            os.environ[_VARIABLE] = _WAYS[way]
        try:
            Ranks(group, ranks, context).run(_Growing(context.params, context.seed, domains, way))
        finally:
            os.environ.pop(_VARIABLE, None)
            if before is not None:
                os.environ[_VARIABLE] = before


def node_counts(nodes: int) -> list[int]:
    """Numbers of nodes of the groups: doubled, with steps of a sixth in the upper half, where a fault of size begins.

    >>> node_counts(18)
    [1, 2, 4, 8, 12, 15, 16, 18]
    """
    doubled = [1 << power for power in range(nodes.bit_length()) if 1 << power <= nodes]
    return sorted({*doubled, *(nodes * sixths // 6 for sixths in (4, 5, 6)), nodes} - {0})


def _reported(context: Context) -> str:
    """Emits what the machine reports about its domain. Returns the one identity of all its GPUs, "" if they have none.

    It is also "" if something other than the node manages IMEX: NCCL's MNNVL needs an IMEX channel to start.
    """
    identities: set[str] = set()
    for fact in context.hardware.domain():
        context.emit(fact.name, fact.device, value=fact.value, text=fact.text, note=fact.note)
        if fact.name == "nvlink_domain":
            identities.add(fact.text or "")
        elif (fact.name, fact.text) == ("imex", _MASKED):
            identities.add("")
    identity = identities.pop() if len(identities) == 1 else ""
    return "" if identity.startswith(_NOWHERE) else identity


class _Growing:
    """One rank's part, in its own process."""

    def __init__(self, params: Mapping[str, Any], seed: int, domains: Mapping[str, Sequence[str]], way: str) -> None:
        self._params, self._seed, self._domains, self._way = params, seed, domains, way

    def __call__(self, group: RankGroup) -> None:
        torch = require_torch()
        on_gpu = group.device.kind == "gpu"
        device = group.hardware.compute(group.device).torch_device if on_gpu else torch.device("cpu")
        with open_fabric(torch, group, device) as fabric:
            group.begin("domain")
            counts = {identity: node_counts(len(names)) for identity, names in sorted(self._domains.items())}
            for step in range(max(len(each) for each in counts.values())):
                mine: tuple[list[int], Any] | None = None
                for identity, sizes in counts.items():
                    names = self._domains[identity][: sizes[min(step, len(sizes) - 1)]]
                    ranks = [rank for rank in range(group.world) if group.node_of(rank) in names]
                    # Made by all ranks in one order, also by those that are not in it.
                    with group.waiting(f"a group of {len(ranks)} ranks"):
                        made = torch.distributed.new_group(ranks)
                    if group.rank in ranks:
                        mine = (ranks, made)
                self._grown(torch, fabric, group, mine)

    def _grown(self, torch: Any, fabric: Fabric, group: RankGroup, mine: tuple[list[int], Any] | None) -> None:
        """One size: those outside of it wait until it is over."""
        seconds: list[float] = []
        wrong: collections.Counter[int] = collections.Counter()
        size = 0
        if mine is not None and len(mine[0]) > 1:
            ranks, within = mine
            size = elements_of(max(self._params["mib"]) * MIB, len(ranks))
            rank, seed = ranks.index(group.rank), self._seed
            exchange = Exchange(torch, "all_reduce", rank, len(ranks), size, fabric.device, seed, within, group.mark)
            seconds = self._repeats(torch, fabric, group, exchange, mine, wrong)
        here = group.gather({"seconds": seconds, "wrong": sum(wrong.values())}, here=True)
        nodes = group.gather(None if group.local else [max(each) for each in zip(*(one["seconds"] for one in here))])
        if mine is None or len(mine[0]) < 2 or group.local:
            return
        ranks = mine[0]
        slowest = [max(each) for each in zip(*(nodes[rank] for rank in ranks[:: group.per_node]))]
        factor = busbw_factor("all_reduce", len(ranks))
        rates = [size * ELEMENT_BYTES / each / 1e9 * factor for each in slowest]
        labels, sized = self._labels(ranks), {"bytes": str(size * ELEMENT_BYTES)}
        group.emit(
            "domain_busbw", "node", value=median(rates), labels={**sized, **labels}, samples=len(rates),
            spread=spread(rates),
        )  # fmt: skip
        value, samples = sum(one["wrong"] for one in here), len(slowest) + _WARMUP
        group.emit("collective_mismatches", "node", value=value, labels={**_CHECKED, **labels}, samples=samples)

    def _labels(self, ranks: Sequence[int]) -> dict[str, str]:
        return {"ranks": str(len(ranks)), **({"mnnvl": self._way} if self._way else {})}

    def _repeats(
        self,
        torch: Any,
        fabric: Fabric,
        group: RankGroup,
        exchange: Exchange,
        mine: tuple[list[int], Any],
        wrong: collections.Counter[int],
    ) -> list[float]:
        """Seconds of the timed repeats; ``wrong`` gets the wrong elements of all."""
        clock, (ranks, within) = group.hardware.host_clock, mine
        one = torch.ones(1, device=fabric.device)
        seconds, labels = [], {**_CHECKED, **self._labels(ranks)}
        way = f", MNNVL {self._way}" if self._way else ""
        for repeat in range(_WARMUP + self._params["repeats"]):
            exchange.reset()
            fabric.settle()
            with group.waiting(f"all_reduce of {len(ranks)} ranks{way}, repeat {repeat}"):
                torch.distributed.all_reduce(one.fill_(1.0), group=within)
                fabric.settle()
                met = clock.now()
                exchange.run()
                fabric.settle()
            if repeat >= _WARMUP:
                seconds.append(round(clock.now() - met, 9))
            count_wrong(group, labels, wrong, exchange)
        return seconds


def count_wrong(group: RankGroup, labels: dict[str, str], wrong: collections.Counter[int], exchange: Exchange) -> None:
    """Adds what arrived wrong to ``wrong``; the first of it is reported at once."""
    found = exchange.wrong()
    if found and not wrong:
        group.emit("collective_mismatches", "node", value=sum(found.values()), labels=labels, so_far=True)
    wrong.update(found)
