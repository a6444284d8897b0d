"""Collectives inside the node: NCCL between its GPUs, gloo between its cores, payload checked on every rank.

Bus bandwidth is counted as nccl-tests count it (their doc/PERFORMANCE.md): S/t × factor, see ``busbw_factor``. A rate
between GPUs counts only if NCCL's own log proves by which algorithm, protocol and transport the bytes went and how many
GPUs took part; without that proof there is a reason and no figure. NCCL writes that log while it is timed, a line or
two for each call, which slows buffers of a few KiB and not those that measure bandwidth.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import pathlib
from typing import Any, Callable

from muster_node.cluster.collectives.exchange import ELEMENT_BYTES, OPS, Exchange, busbw_factor, elements_of
from muster_node.cluster.collectives.fabric import listening_store
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Clock, Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.nccl_log import SUBSYSTEMS, Proof, parse_nccl_log, prove
from muster_node.workloads.common import GIB, MIB, median, memory_gib, reason_of, spread

SIZES = {"cpu": [MIB, 16 * MIB], "gpu": [8, 1024, MIB, 16 * MIB, 256 * MIB, GIB, 8 * GIB]}
BACKENDS = {"cpu": "gloo", "gpu": "nccl"}
_TIMEOUT = datetime.timedelta(seconds=120)
_WARMUP = 2
_BATCH, _BATCH_OF_LARGE, _LARGE = 20, 5, GIB  # as many as nccl-tests time at once, of large buffers fewer
_BUFFERS = 6  # buffers of full size that one operation takes with its payload, its result and what it must be

Key = tuple[str, int]
"""An operation, and the size of the whole buffer in bytes."""


class Collectives(Probe):
    """Bus bandwidth and correctness of collectives between the node's GPUs, or else its cores."""

    name = "collectives"
    stage = "performance"
    doc = "NCCL collectives between GPUs, or gloo between cores: payload verified, transport proven"
    params = {
        "sizes": Param(
            None, "whole buffer sizes in bytes; None: what suits the devices, on GPUs 8 B to 8 GiB, or what fits"
        ),
        "repeats": Param(10, "timed repeats of each operation and size"),
        "ranks": Param(None, "processes on CPUs; None: one for each core, at least 2 and at most 32"),
        "ops": Param(list(OPS), "operations to run"),
    }
    metrics = {
        "nvls": Metric("bool", "whether NCCL may reduce in the NVSwitches, by the log of every rank", on="node"),
        "collective_busbw": Metric("GB/s", "bus bandwidth by operation and bytes; on GPUs also with NVLS on or off"),
        "collective_mismatches": Metric("count", "elements that were wrong on any rank, by operation"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Measure. Raises Skip where PyTorch lacks the backend, or there is one GPU only."""
        torch, hardware = require_torch(), context.hardware
        gpus, cores = hardware.devices("gpu"), hardware.devices("core")
        if len(gpus) == 1:
            raise Skip("there is only one GPU")
        if gpus and (own := hardware.collective(OPS[0], len(gpus), context.seed)) is not None:
            if found := _or_why_not(context, {"nvls": "off"}, lambda: _in_this_process(context, gpus)):
                _report(context, found, {"nvls": "off"}, None, own.carried)
            return
        backend = BACKENDS["gpu" if gpus else "cpu"]
        if not torch.distributed.is_available() or not getattr(torch.distributed, f"is_{backend}_available")():
            raise Skip(f"PyTorch was built without {backend}")
        if not cores:
            raise Skip("this machine offers no CPU to run on")
        ranks = len(gpus) or context.params["ranks"] or max(2, min(32, len(cores)))
        context.progress(f"{backend} collectives between {ranks} processes")
        hardware.release_gpus()
        # A process for each rank, which is forked before this one has touched a GPU, and finds its own there.
        carriers = [cores[rank % len(cores)] for rank in range(ranks)]
        everyone = _Rank(torch, context, gpus, nvls=True)
        found = _or_why_not(context, {}, lambda: hardware.at_once(carriers, everyone))
        if not found:
            return
        if not gpus:
            _report(context, found, {}, None)
            return
        logs = _logs(context, ranks, nvls=True)
        without = [gpu.id for gpu, log in zip(gpus, logs) if not parse_nccl_log(log).nvls]
        in_switch = not without
        note = "" if in_switch else "not available by the log of {}".format(", ".join(without))
        context.emit("nvls", "node", value=float(in_switch), note=note)
        _report(context, found, {"nvls": "on" if in_switch else "off"}, logs)
        if in_switch:
            context.progress(f"nccl collectives between {ranks} processes, without NVLS")
            hardware.release_gpus()
            everyone = _Rank(torch, context, gpus, nvls=False)
            found = _or_why_not(context, {"nvls": "off"}, lambda: hardware.at_once(carriers, everyone))
            if found:
                _report(context, found, {"nvls": "off"}, _logs(context, ranks, nvls=False))


def _or_why_not(context: Context, labels: dict[str, str], measure: Callable[[], list[_Measured]]) -> list[_Measured]:
    """What ``measure`` returns; if a rank raised, an empty list, after emitting entries that name its device.

    A collective has no figure without each of its ranks.
    """
    try:
        return measure()
    except RuntimeError as error:
        for op in context.params["ops"]:
            for metric in ("collective_mismatches", "collective_busbw"):
                context.emit(metric, "node", labels={"op": op, **labels}, note=reason_of(error))
        return []


@dataclasses.dataclass
class _Measured:
    """What one rank measured: seconds by repeat, wrong elements by operation, sizes that did not fit.

    ``stretches``: begin and end in its log of what was logged during each.
    """

    seconds: dict[Key, list[float]] = dataclasses.field(default_factory=dict)
    wrong: dict[str, int] = dataclasses.field(default_factory=dict)
    left_out: list[Key] = dataclasses.field(default_factory=list)
    stretches: dict[Key, tuple[int, int]] = dataclasses.field(default_factory=dict)


def _in_this_process(context: Context, gpus: list[Device]) -> list[_Measured]:
    """What each GPU measured in the machine's own collectives."""
    hardware, ranks, params = context.hardware, len(gpus), context.params
    measured = [_Measured(wrong=dict.fromkeys(params["ops"], 0)) for _ in gpus]
    room = min(hardware.compute(gpu).free_memory() for gpu in gpus)
    for op in params["ops"]:
        for wanted in params["sizes"] or SIZES["gpu"]:
            elements = elements_of(wanted, ranks)
            key = (op, elements * ELEMENT_BYTES)
            if _BUFFERS * key[1] > room:
                measured[0].left_out.append(key)
                continue
            collective = hardware.collective(op, elements, context.seed)
            assert collective is not None
            for repeat in range(_WARMUP + params["repeats"]):
                taken, wrong = collective.run(), collective.wrong()
                for rank, found in enumerate(measured):
                    found.wrong[op] += wrong[rank]
                    if repeat >= _WARMUP:
                        found.seconds.setdefault(key, []).append(taken[rank])
    return measured


def _report(
    context: Context, measured: list[_Measured], labels: dict[str, str], logs: list[str] | None, carried: str = ""
) -> None:
    """``logs``: those of all ranks, where rates count only with proof of what carried the bytes; else ``carried``."""
    ranks, first = len(measured), measured[0]
    for op in context.params["ops"]:
        wrong = sum(found.wrong[op] for found in measured)
        context.emit("collective_mismatches", "node", value=wrong, labels={"op": op, **labels}, samples=ranks)
        proof = Proof(carried=carried)
        for size in (size for name, size in first.seconds if name == op):
            key = (op, size)
            if logs is not None:
                until = [parse_nccl_log(log[: found.stretches[key][1]]) for log, found in zip(logs, measured)]
                proof = prove(op, size, ranks, parse_nccl_log(logs[0][slice(*first.stretches[key])]), until)
            # A collective has ended when its last rank has.
            slowest = [max(times) for times in zip(*(found.seconds[key] for found in measured))]
            rates = [size / each / 1e9 * busbw_factor(op, ranks) for each in slowest]
            context.emit(
                "collective_busbw",
                "node",
                value=None if proof.why_not else median(rates),
                labels={"op": op, "bytes": str(size), **labels},
                samples=len(rates),
                spread=spread(rates),
                note=proof.carried or (proof.why_not and "what carried it is not proven: " + proof.why_not),
            )
    memory = _memory(context) if first.left_out else math.inf
    for op, size in first.left_out:
        if _BUFFERS * size > memory:  # no GPU of this model ever measures it, so it is not missing
            context.progress(f"{op} of {size} bytes is left out: the GPUs have less memory than it takes")
            continue
        note = "does not fit into free memory with its payload and result"
        context.emit("collective_busbw", "node", labels={"op": op, "bytes": str(size), **labels}, note=note)


def _memory(context: Context) -> float:
    """Bytes that every GPU has, free or not; infinite where one of them does not report it, and without GPUs."""
    known = memory_gib(context.hardware).values()
    return min(known) * GIB if known and len(known) == len(context.hardware.devices("gpu")) else math.inf


def _log_file(scratch: pathlib.Path, rank: int, nvls: bool) -> pathlib.Path:
    return scratch / f"nccl-{'nvls' if nvls else 'plain'}-{rank}.log"


def _logs(context: Context, ranks: int, nvls: bool) -> list[str]:
    """What NCCL wrote for each rank; "" where it wrote nothing."""
    files = [_log_file(context.scratch, rank, nvls) for rank in range(ranks)]
    return [file.read_text("latin-1") if file.exists() else "" for file in files]


class _Rank:
    """The work of one process."""

    def __init__(self, torch: Any, context: Context, gpus: list[Device], nvls: bool) -> None:
        self._torch, self._hardware, self._params = torch, context.hardware, context.params
        self._scratch, self._seed, self._gpus, self._nvls = context.scratch, context.seed, gpus, nvls
        self._kind, self._emit = "gpu" if gpus else "cpu", context.emit

    def __call__(self, worker: Worker) -> _Measured:
        dist = self._torch.distributed
        compute = self._own_gpu(worker) if self._gpus else self._hardware.compute(worker.device)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # gloo else resolves the host's name, which need not resolve
        dist.init_process_group(
            BACKENDS[self._kind],
            store=self._store(worker),
            rank=worker.index,
            world_size=worker.count,
            timeout=_TIMEOUT,
        )
        try:
            measured = self._measure(worker, compute)
        except RuntimeError as error:  # the worker's own name is that of the CPU it runs on
            # The group is left as it is: NCCL may wait in it for the others, until one of them reports first.
            device = self._gpus[worker.index] if self._gpus else compute.device
            raise RuntimeError(f"{device.id}: {reason_of(error)}") from error
        dist.destroy_process_group()
        return measured

    def _own_gpu(self, worker: Worker) -> Compute:
        """This rank's GPU; NCCL's helper threads may run on any CPU, and write down what they do."""
        os.sched_setaffinity(0, {cpu.index for cpu in self._hardware.devices("cpu")})
        os.environ.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS=SUBSYSTEMS,
            NCCL_DEBUG_FILE=str(_log_file(self._scratch, worker.index, self._nvls)),
        )
        if not self._nvls:
            os.environ["NCCL_NVLS_ENABLE"] = "0"
        compute = self._hardware.compute(self._gpus[worker.index])
        if compute.torch_device.type == "cuda":
            self._torch.cuda.set_device(compute.torch_device)
        return compute

    def _store(self, worker: Worker) -> Any:
        """A TCPStore on a port that the kernel chose; rank 0 passes it on in a file."""
        dist = self._torch.distributed
        port_file = self._scratch / ("port-nvls" if self._nvls else "port-plain")
        if worker.index == 0:
            store = listening_store(dist, "127.0.0.1", worker.count, _TIMEOUT)
            _write_port(port_file, store.port)
            return store
        port = _await_port(port_file, self._hardware.clock)
        return dist.TCPStore("127.0.0.1", port, worker.count, False, _TIMEOUT)

    def _measure(self, worker: Worker, compute: Compute) -> _Measured:
        measured, room = _Measured(wrong=dict.fromkeys(self._params["ops"], 0)), self._room(worker, compute)
        log = _log_file(self._scratch, worker.index, self._nvls)
        for op in self._params["ops"]:
            for wanted in self._params["sizes"] or SIZES[self._kind]:
                elements = elements_of(wanted, worker.count)
                size = elements * ELEMENT_BYTES
                if _BUFFERS * size > room:
                    measured.left_out.append((op, size))
                    continue
                exchange = Exchange(
                    self._torch, op, worker.index, worker.count, elements, compute.torch_device, self._seed
                )
                begin = _length(log)
                measured.seconds[op, size] = self._times(exchange, size, op, measured)
                measured.stretches[op, size] = (begin, _length(log))
        return measured

    def _room(self, worker: Worker, compute: Compute) -> int:
        """Bytes that every rank has free: all have to leave out the same sizes."""
        free = compute.free_memory() // (1 if self._gpus else worker.count)
        least = self._torch.tensor([free], dtype=self._torch.int64, device=compute.torch_device)
        self._torch.distributed.all_reduce(least, op=self._torch.distributed.ReduceOp.MIN)
        return int(least)

    def _times(self, exchange: Exchange, size: int, op: str, measured: _Measured) -> list[float]:
        """Seconds of one collective, by repeat; on GPUs of several that are queued at once, as nccl-tests do it."""
        clock, times = self._hardware.clock, []
        batch = 1 if not self._gpus else _BATCH if size < _LARGE else _BATCH_OF_LARGE
        for _ in range(_WARMUP + self._params["repeats"]):
            exchange.reset()
            self._settle()
            self._torch.distributed.barrier()
            self._settle()
            start = clock.now()
            for _ in range(batch):
                exchange.run()
            self._settle()
            times.append((clock.now() - start) / batch)
            if batch > 1:  # a repeated sum would change the result
                exchange.reset()
                exchange.run()
            wrong = sum(exchange.wrong().values())
            if wrong and not measured.wrong[op]:
                labels = {"op": op, **({"nvls": "on" if self._nvls else "off"} if self._gpus else {})}
                self._emit("collective_mismatches", "node", value=wrong, labels=labels, so_far=True)
            measured.wrong[op] += wrong
        return times[_WARMUP:]

    def _settle(self) -> None:
        """Returns once the device has done all queued work."""
        if self._gpus and BACKENDS["gpu"] == "nccl":
            self._torch.cuda.synchronize()


def _length(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write_port(path: pathlib.Path, port: int) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(str(port))
    draft.replace(path)


def _await_port(path: pathlib.Path, clock: Clock) -> int:
    end = clock.now() + _TIMEOUT.total_seconds()
    while clock.now() < end:
        if path.exists():
            return int(path.read_text())
        clock.sleep(0.01)
    raise TimeoutError(f"the first rank did not open its store within {_TIMEOUT.total_seconds():.0f} s")
