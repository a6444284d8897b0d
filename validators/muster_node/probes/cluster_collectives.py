"""Collectives between nodes: NCCL between all their GPUs, gloo between CPUs, every payload checked.

Where an operation keeps each sender's part apart (all but the sums), mismatches are counted by sender, which separates
a bad sender, a bad receiver and a bad path between two. The network is real for a simulated
machine too, so everything here is measured in real time.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

from muster_node.cluster.collectives.domain import DOMAIN_METRICS, count_wrong, grow
from muster_node.cluster.collectives.exchange import ANYBODY, ELEMENT_BYTES, OPS, Exchange, busbw_factor, elements_of
from muster_node.cluster.collectives.fabric import Fabric, open_fabric
from muster_node.cluster.rendezvous.member import PeerGroup
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.cluster.rendezvous.session import METRICS, PARAMS, join_block
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import MIB, median, spread
from muster_node.workloads.under_load.ports import PORT_METRICS, watched_ports

_WARMUP = 2


class ClusterCollectives(Probe):
    """Bus bandwidth, correctness and punctuality of collectives between the nodes of a block."""

    name = "cluster_collectives"
    stage = "cluster_validation"
    doc = "Collectives between nodes with verified payloads; who is lost is named"
    params = {
        **PARAMS,
        "gpus": Param("all", "all: a rank for every GPU of the node; one: for its first"),
        "mib": Param([1, 16], "whole buffer sizes in MiB"),
        "repeats": Param(10, "timed repeats of each operation and size"),
        "ops": Param(list(OPS), "operations to run"),
        "grow": Param(None, "collectives over groups that grow to the NVLink domain; None: where nodes share one"),
        "soak_minutes": Param(0, "minutes for which the first operation is repeated at its largest size afterwards"),
    }
    metrics = {
        **METRICS,
        "collective_mismatches": Metric("count", "elements received wrong, by operation and, where known, sender"),
        "collective_busbw": Metric("GB/s", "bus bandwidth by operation and size, by the slowest rank of each repeat"),
        "collective_time": Metric("s", "real time that this node's slowest rank spent in one collective"),
        "arrival_lag": Metric("s", "real time by which this node's last rank came later to collectives than the first"),
        "soak_time": Metric("min", "how long the soak lasted"),
        **DOMAIN_METRICS,
        **PORT_METRICS,
    }
    needs = ("torch",)

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """The soak; the rest takes as long as the network needs."""
        return 60 * float(params["soak_minutes"])

    def run(self, context: Context) -> None:
        """Take part in the block's collectives. Raises Skip where PyTorch lacks the backend."""
        join_block(type(self), context, functools.partial(_work, context))


def _work(context: Context, group: PeerGroup) -> None:
    """This node's part."""
    group.begin("prepare")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    require_torch().set_num_threads(1)
    gpus = context.hardware.devices("gpu")
    devices = gpus if context.params["gpus"] == "all" else gpus[:1]
    # Between CPUs one rank loads the network of a node as well as several do.
    ranks = devices or [Device("cpu0", "cpu", 0)]
    with watched_ports(context):
        Ranks(group, ranks, context).run(_Rank(context.params, context.seed))
        grow(context, group, ranks)
    group.begin("finish")
    group.gather()


class _Rank:
    """One rank's part, in its own process."""

    def __init__(self, params: Mapping[str, Any], seed: int) -> None:
        self._params, self._seed = params, seed
        self._times: dict[str, dict[str, list[float]]] = {}

    def __call__(self, group: RankGroup) -> None:
        torch = require_torch()
        on_gpu = group.device.kind == "gpu"
        # Simulated GPUs keep their tensors on the CPU.
        device = group.hardware.compute(group.device).torch_device if on_gpu else torch.device("cpu")
        with open_fabric(torch, group, device) as fabric:
            group.begin("collectives")
            for op in self._params["ops"]:
                self._operation(torch, fabric, group, op)
            for key, times in self._times.items():
                _report(group, key, times)
            if self._params["soak_minutes"]:
                self._soak(torch, fabric, group)

    def _operation(self, torch: Any, fabric: Fabric, group: RankGroup, op: str) -> None:
        ranks = group.world
        wrong: collections.Counter[int] = collections.Counter()
        checks = 0
        for mib in self._params["mib"]:
            elements = elements_of(mib * MIB, ranks)
            exchange = Exchange(torch, op, group.rank, ranks, elements, fabric.device, self._seed, mark=group.mark)
            times: dict[str, list[float]] = {"waits": [], "seconds": []}
            for repeat in range(_WARMUP + self._params["repeats"]):
                waited, seconds = _once(fabric, group, exchange, f"{op} of {mib:g} MiB, repeat {repeat}")
                if repeat >= _WARMUP:
                    times["waits"].append(waited)
                    times["seconds"].append(seconds)
                count_wrong(group, {"op": op}, wrong, exchange)
                checks += 1
            self._times[f"{op}/{elements * ELEMENT_BYTES}"] = times
        _report_wrong(group, {"op": op}, wrong, checks)

    def _soak(self, torch: Any, fabric: Fabric, group: RankGroup) -> None:
        """One operation for minutes or hours; the first rank says when it is over."""
        op, mib, clock = self._params["ops"][0], max(self._params["mib"]), group.hardware.host_clock
        elements = elements_of(mib * MIB, group.world)
        exchange = Exchange(torch, op, group.rank, group.world, elements, fabric.device, self._seed, mark=group.mark)
        wrong: collections.Counter[int] = collections.Counter()
        begun, checks, labels = clock.now(), 0, {"op": op, "part": "soak"}
        until = begun + 60.0 * self._params["soak_minutes"]
        group.begin("soak")
        while group.gather(clock.now() < until)[0]:
            minute = int((clock.now() - begun) // 60)
            for _ in range(self._params["repeats"]):
                _once(fabric, group, exchange, f"soak with {op} of {mib:g} MiB, minute {minute}")
                checks += 1
                count_wrong(group, labels, wrong, exchange)
        _report_wrong(group, labels, wrong, checks)
        if group.local == 0:
            group.emit("soak_time", "node", value=(clock.now() - begun) / 60.0)


def _once(fabric: Fabric, group: RankGroup, exchange: Exchange, what: str) -> tuple[float, float]:
    """Seconds that this rank waited for the others, and seconds of the collective itself, to the nanosecond."""
    clock = group.hardware.host_clock
    exchange.reset()
    fabric.settle()
    with group.waiting(what):
        begun = clock.now()
        fabric.barrier()
        met = clock.now()
        exchange.run()
        fabric.settle()
        return round(met - begun, 9), round(clock.now() - met, 9)


def _report_wrong(group: RankGroup, labels: dict[str, str], wrong: Mapping[int, int], checks: int) -> None:
    """Each rank its wrong elements by sender, the node their sum."""
    ranks = group.gather((group.device.id, sum(wrong.values())))
    for source, count in sorted(wrong.items()):
        if source != ANYBODY:
            sender = {"sender": group.node_of(source), "from": ranks[source][0]}
            group.emit(
                "collective_mismatches", group.device.id, value=count, labels={**labels, **sender}, samples=checks
            )
    here = ranks[group.rank - group.local :][: group.per_node]
    if group.local == 0:
        group.emit(
            "collective_mismatches", "node", value=sum(count for _, count in here), labels=labels, samples=checks
        )


def _report(group: RankGroup, key: str, times: Mapping[str, list[float]]) -> None:
    """Every node reports the block's bandwidth, and its own time and lag, in one operation of one size.

    Times of all ranks in all operations are more than one message takes: each node sends those of its slowest ranks.
    """
    here = group.gather(times, here=True)
    mine, waits, least = (_each(of, here, name) for of, name in ((max, "seconds"), (max, "waits"), (min, "waits")))
    nodes = group.gather(None if group.local else {"seconds": mine, "waits": waits})[:: group.per_node]
    if group.local:
        return
    op, size = key.split("/")
    labels = {"op": op, "bytes": size}
    # A collective has ended when its last rank has.
    rates = [int(size) / seconds / 1e9 * busbw_factor(op, group.world) for seconds in _each(max, nodes, "seconds")]
    # All leave the barrier together, so the rank that waited least came last.
    lags = [most - own for most, own in zip(_each(max, nodes, "waits"), least)]
    for metric, values in (("collective_busbw", rates), ("collective_time", mine)):
        group.emit(metric, "node", value=median(values), labels=labels, samples=len(values), spread=spread(values))
    group.emit("arrival_lag", "node", value=median(lags), labels=labels, samples=len(lags))


def _each(of: Callable[[Iterable[float]], float], times: Sequence[Mapping[str, list[float]]], name: str) -> list[float]:
    """For each repeat, the most or the least of these times."""
    return [of(each) for each in zip(*(one[name] for one in times))]
