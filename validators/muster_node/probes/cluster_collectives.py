"""Collectives between nodes: NCCL between their GPUs, gloo between CPUs, one rank for each node, every payload checked.

Where an operation keeps each sender's part apart (all but the sums), mismatches are counted by sender, which separates
a bad sender, a bad receiver and a bad path between two. The network is real beside a simulated
machine too, so everything here is measured in real time.
"""

from __future__ import annotations

import os
from typing import Any

from muster_node.cluster.exchange import ANYBODY, ELEMENT_BYTES, OPS, Exchange, busbw_factor
from muster_node.cluster.fabric import Fabric, open_fabric
from muster_node.cluster.member import PeerGroup
from muster_node.cluster.session import METRICS, PARAMS, join_block
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Clock
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import MIB, median, spread

_WARMUP = 2


class ClusterCollectives(Probe):
    """Bus bandwidth, correctness and punctuality of collectives between the nodes of a block."""

    name = "cluster_collectives"
    stage = "cluster_validation"
    doc = "Collectives between nodes with verified payloads; who is lost is named"
    params = {
        **PARAMS,
        "mib": Param([1, 16], "whole buffer sizes in MiB"),
        "repeats": Param(10, "timed repeats of each operation and size"),
        "ops": Param(list(OPS), "operations to run"),
    }
    metrics = {
        **METRICS,
        "collective_mismatches": Metric("count", "elements received wrong, by operation and, where known, sender"),
        "collective_busbw": Metric("GB/s", "bus bandwidth by operation and size, by the slowest rank of each repeat"),
        "collective_time": Metric("s", "real time that this rank spent in one collective"),
        "arrival_lag": Metric("s", "real time by which this rank came later to collectives than the first"),
        "collective_backend": Metric("text", "nccl or gloo, and PyTorch's version"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Take part in the block's collectives. Raises Skip where PyTorch lacks the backend."""
        join_block(type(self), context, _Work(context))


def device_of(context: Context, torch: Any) -> Any:
    """The first GPU where there is a real one, else the CPU: simulated GPUs keep their tensors there too."""
    gpus = context.hardware.devices("gpu")
    return context.hardware.compute(gpus[0]).torch_device if gpus else torch.device("cpu")


class _Work:
    """This rank's part."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clock: Clock = context.hardware.host_clock
        self._times: dict[str, dict[str, list[float]]] = {}

    def __call__(self, group: PeerGroup) -> None:
        group.begin("prepare")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch = require_torch()
        context = self._context
        with open_fabric(torch, group, device_of(context, torch)) as fabric:
            context.emit("collective_backend", "node", text=f"{fabric.backend}, PyTorch {torch.__version__}")
            group.begin("collectives")
            for op in context.params["ops"]:
                self._operation(torch, fabric, group, op)
            times = group.gather(self._times)
            self._report(group, times)
            group.begin("finish")
            group.gather()

    def _operation(self, torch: Any, fabric: Fabric, group: PeerGroup, op: str) -> None:
        ranks, context = len(group.block.members), self._context
        wrong: dict[int, int] = {}
        checks = 0
        for mib in context.params["mib"]:
            elements = max(1, int(mib * MIB) // ELEMENT_BYTES // ranks) * ranks
            exchange = Exchange(torch, op, group.block.rank, ranks, elements, fabric.device)
            times: dict[str, list[float]] = {"waits": [], "seconds": []}
            for repeat in range(_WARMUP + context.params["repeats"]):
                exchange.reset()
                fabric.settle()
                with group.waiting(f"{op} of {mib:g} MiB, repeat {repeat}"):
                    begun = self._clock.now()
                    fabric.barrier()
                    met = self._clock.now()
                    exchange.run()
                    fabric.settle()
                    ended = self._clock.now()
                if repeat >= _WARMUP:
                    times["waits"].append(met - begun)
                    times["seconds"].append(ended - met)
                for source, count in exchange.wrong().items():
                    wrong[source] = wrong.get(source, 0) + count
                checks += 1
            self._times[f"{op}/{elements * ELEMENT_BYTES}"] = times
        context.emit("collective_mismatches", "node", value=sum(wrong.values()), labels={"op": op}, samples=checks)
        for source, count in sorted(wrong.items()):
            if source != ANYBODY:
                labels = {"op": op, "sender": group.block.members[source]}
                context.emit("collective_mismatches", "node", value=count, labels=labels, samples=checks)

    def _report(self, group: PeerGroup, times: dict[str, Any]) -> None:
        """Every member reports the block's bandwidth, and its own time and lag."""
        emit, members = self._context.emit, group.block.members
        for key, mine in self._times.items():
            op, size = key.split("/")
            labels = {"op": op, "bytes": size}
            # A collective has ended when its last rank has.
            slowest = [max(each) for each in zip(*(times[name][key]["seconds"] for name in members))]
            rates = [int(size) / seconds / 1e9 * busbw_factor(op, len(members)) for seconds in slowest]
            # All leave the barrier together, so the member that waited least came last.
            longest = [max(each) for each in zip(*(times[name][key]["waits"] for name in members))]
            lags = [most - own for most, own in zip(longest, mine["waits"])]
            for metric, values in (("busbw", rates), ("time", mine["seconds"])):
                emit(
                    "collective_" + metric,
                    "node",
                    value=median(values),
                    labels=labels,
                    samples=len(values),
                    spread=spread(values),
                )
            emit("arrival_lag", "node", value=median(lags), labels=labels, samples=len(lags))
