"""Collectives between processes of this node over gloo, one process for each core, payload checked on every rank.

Bus bandwidth is counted as nccl-tests counts it: S/t × factor, where S is the size of the whole buffer (for all_gather
and reduce_scatter that of all ranks) and the factor 2(n−1)/n for all_reduce, (n−1)/n for all_gather and reduce_scatter,
1 for broadcast. Payloads are small integers, so every sum is exact in any order.
"""

from __future__ import annotations

import datetime
import os
import pathlib
from typing import Any, Callable, Dict, List, Tuple

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Clock, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._shared import MIB, median, spread

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_TIMEOUT = datetime.timedelta(seconds=60)
_WARMUP = 2
_MODULUS = 97  # values below it: sums over 100,000 ranks stay exact in fp32
_ELEMENT = 4

Operation = Tuple[Callable[[], Any], Callable[[], Any], Callable[[], int]]
"""What fills the buffers, what runs the collective, and what counts the elements that came out wrong."""


class Collectives(Probe):
    """Bus bandwidth and correctness of collectives between the node's cores."""

    name = "collectives"
    stage = "performance"
    doc = "gloo collectives between processes on this node, payload verified"
    params = {
        "mib": Param([1, 16], "whole buffer sizes in MiB"),
        "repeats": Param(10, "timed repeats of each operation and size"),
        "ranks": Param(None, "processes; None: one for each core, at least 2 and at most 32"),
        "ops": Param(list(OPS), "operations to run"),
    }
    metrics = {
        "collective_busbw": Metric("GB/s", "bus bandwidth by operation and size of the whole buffer in bytes"),
        "collective_mismatches": Metric("count", "elements that were wrong on any rank, by operation"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Measure. Raises Skip where PyTorch was built without gloo."""
        torch = require_torch()
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise Skip("PyTorch was built without gloo")
        cores = context.hardware.devices("core")
        if not cores:
            raise Skip("this machine offers no CPU to run on")
        count = context.params["ranks"] or max(2, min(32, len(cores)))
        context.progress("collectives between %d processes" % count)
        devices = [cores[rank % len(cores)] for rank in range(count)]
        found = context.hardware.at_once(devices, _Rank(torch, context))
        for op in context.params["ops"]:
            wrong = sum(mismatches[op] for _, mismatches in found)
            context.emit("collective_mismatches", "node", value=wrong, labels={"op": op}, samples=count)
        for op, size in found[0][0]:
            # A collective has ended when its last rank has.
            slowest = [max(times) for times in zip(*(seconds[op, size] for seconds, _ in found))]
            rates = [size / each / 1e9 * busbw_factor(op, count) for each in slowest]
            labels = {"op": op, "bytes": str(size)}
            context.emit(
                "collective_busbw", "node", value=median(rates), labels=labels, samples=len(rates), spread=spread(rates)
            )


def busbw_factor(op: str, ranks: int) -> float:
    """What turns algorithm bandwidth into bus bandwidth, as nccl-tests' PERFORMANCE.md defines it."""
    return {"all_reduce": 2.0 * (ranks - 1) / ranks, "broadcast": 1.0}.get(op, (ranks - 1) / ranks)


class _Rank:
    """The work of one process: ({(op, bytes): seconds by repeat}, {op: wrong elements})."""

    def __init__(self, torch: Any, context: Context) -> None:
        self._torch, self._clock, self._params = torch, context.hardware.clock, context.params
        self._port_file = context.scratch / "port"

    def __call__(self, worker: Worker) -> Tuple[Dict[Tuple[str, int], List[float]], Dict[str, int]]:
        dist = self._torch.distributed
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # gloo else resolves the host's name, which need not resolve
        dist.init_process_group(
            "gloo", store=self._store(worker), rank=worker.index, world_size=worker.count, timeout=_TIMEOUT
        )
        try:
            return self._measure(worker)
        finally:
            dist.destroy_process_group()

    def _store(self, worker: Worker) -> Any:
        """A TCPStore on a port that the kernel chose; rank 0 tells the others by a file."""
        dist = self._torch.distributed
        if worker.index == 0:
            store = dist.TCPStore("127.0.0.1", 0, worker.count, True, _TIMEOUT, wait_for_workers=False)
            _tell_port(self._port_file, store.port)
            return store
        port = _await_port(self._port_file, self._clock)
        return dist.TCPStore("127.0.0.1", port, worker.count, False, _TIMEOUT)

    def _measure(self, worker: Worker) -> Tuple[Dict[Tuple[str, int], List[float]], Dict[str, int]]:
        seconds: Dict[Tuple[str, int], List[float]] = {}
        wrong = dict.fromkeys(self._params["ops"], 0)
        for op in self._params["ops"]:
            for mib in self._params["mib"]:
                elements = int(mib * MIB) // _ELEMENT // worker.count * worker.count
                reset, run, check = prepare(self._torch, op, worker.index, worker.count, elements)
                times = []
                for _ in range(_WARMUP + self._params["repeats"]):
                    reset()
                    self._torch.distributed.barrier()
                    start = self._clock.now()
                    run()
                    times.append(self._clock.now() - start)
                    wrong[op] += check()
                seconds[op, elements * _ELEMENT] = times[_WARMUP:]
        return seconds, wrong


def prepare(torch: Any, op: str, rank: int, ranks: int, elements: int) -> Operation:
    """One collective over a whole buffer of ``elements``, with payload and expected result by formula."""
    dist, share = torch.distributed, elements // ranks

    def payload(of_rank: int) -> Any:
        return ((torch.arange(elements) * (of_rank + 1) + of_rank) % _MODULUS).float()

    mine, span = payload(rank), slice(rank * share, (rank + 1) * share)
    if op == "all_reduce":
        result, expected = torch.empty(elements), sum(payload(each) for each in range(ranks))
        reset, run = lambda: result.copy_(mine), lambda: dist.all_reduce(result)
    elif op == "broadcast":
        result, expected = torch.empty(elements), payload(0)
        reset, run = lambda: result.copy_(mine), lambda: dist.broadcast(result, 0)
    elif op == "all_gather":
        result = torch.empty(elements)
        expected = torch.cat([payload(each)[:share] for each in range(ranks)])
        parts, part = list(result.chunk(ranks)), mine[:share].clone()
        reset, run = lambda: result.fill_(-1.0), lambda: dist.all_gather(parts, part)
    elif op == "reduce_scatter":
        result, expected = torch.empty(share), sum(payload(each)[span] for each in range(ranks))
        inputs = list(mine.chunk(ranks))
        reset, run = lambda: result.fill_(-1.0), lambda: dist.reduce_scatter(result, inputs)
    else:
        raise ValueError("there is no collective %s (there are %s)" % (op, ", ".join(OPS)))
    return reset, run, lambda: int((result != expected).sum())


def _tell_port(path: pathlib.Path, port: int) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(str(port))
    draft.replace(path)


def _await_port(path: pathlib.Path, clock: Clock) -> int:
    end = clock.now() + _TIMEOUT.total_seconds()
    while clock.now() < end:
        if path.exists():
            return int(path.read_text())
        clock.sleep(0.01)
    raise TimeoutError("the first rank did not open its store within %.0f s" % _TIMEOUT.total_seconds())
