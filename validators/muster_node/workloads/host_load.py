"""Load for the host: cores multiply and check memory, window by window. By itself, or during a load of the GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional

from muster_node.hardware.seam import Device, Worker
from muster_node.probe import Context, Metric, Skip
from muster_node.workloads.common import GIB, LEAST_SHARE, MIB, beyond_caches, median, reason_of, seed_of, spread
from muster_node.workloads.digest import digest
from muster_node.workloads.patterns import BLOCK_BYTES, EXAMPLES, Region, random_words
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, report_reruns
from muster_node.workloads.vote import dissenters

_SIZE = 512
_WINDOWS = 30  # windows over the burn: ten in each third
_WINDOW_MIN_S = 0.1
_FREE_SHARE = 0.8
_REGION_BYTES = 64 * MIB  # memory checked after each window: beyond a core's share of cache, quicker than a window
_TICK_S = 0.5
_RERUNS = 3

CHECKS = {
    "memory_burn_mismatches": Metric("count", "words of memory that did not hold what was written"),
    "memory_burn_rerun": Metric("count", RERUN_DOC),
    "memory_burn_tested": Metric("GiB", "memory of the host that was written and checked"),
    "host_product_mismatches": Metric(
        "count", "products of a core that differ from its first, and cores whose first differs from that of most"
    ),
}
"""What a burn of CPUs finds wrong."""
METRICS = {
    **CHECKS,
    "host_cores": Metric("count", "cores of the host that this process may load, those that drive the GPUs included"),
    "host_burn_rate": Metric("GFLOPS", "median rate of a core that was loaded while the GPUs were"),
}
"""What a probe declares that loads the host during a load of GPUs."""

Burns = Optional["Future[list[HostBurn]]"]
"""The future result of a load during that of the GPUs; None without such a load."""


@dataclasses.dataclass(frozen=True)
class HostBurn:
    """One CPU's burn: GFLOPS window by window, each with a check of memory; number of wrong words and products.

    ``first``: the digest of its first product, whose operands are the same on every CPU.
    """

    rates: list[float]
    mismatches: int
    examples: list[str]
    cpu: str
    products: int
    unlike: int
    first: str
    tested_bytes: int
    again: Rerun


def burn_cpu(
    torch: Any,
    context: Context,
    dtype: str,
    memory_gib: float,
    seconds: float,
    stopped: Callable[[], bool],
    worker: Worker,
    *,
    least_bytes: float = 0.0,
) -> HostBurn:
    """The work of one CPU: windows of products, each followed by a check of the next part of its memory.

    It ends after ``seconds``, or once ``stopped()``. Raises Skip where ``memory_gib``, that of all CPUs
    together, is not free. ``least_bytes`` are taken instead where they are more, half of what is free at most.
    """
    clock = context.hardware.clock
    compute = context.hardware.compute(worker.device)
    free = compute.free_memory()
    memory_bytes = int(max(memory_gib * GIB, min(least_bytes, LEAST_SHARE * free)))
    if memory_bytes > _FREE_SHARE * free:
        raise Skip(f"{memory_gib:.1f} GiB to check while burning are not free")
    seed = seed_of(context.seed, worker.device.id)
    generator = torch.Generator().manual_seed(seed_of(context.seed, "the operands of every core"))
    a, b = (torch.randn((_SIZE, _SIZE), generator=generator, dtype=getattr(torch, dtype)) for _ in range(2))
    worker.ready()
    sizes = _sizes(memory_bytes // worker.count)
    regions = [Region(torch, compute, size, BLOCK_BYTES["cpu"]) for size in sizes]
    window = max(_WINDOW_MIN_S, seconds / _WINDOWS)
    rates: list[float] = []
    mismatches, examples, again = 0, [], Rerun()  # type: int, list[str], Rerun
    first, total, unlike = compute.matmul(a, b, nominal=(_SIZE, _SIZE, _SIZE)), 0, 0
    end = clock.now() + seconds
    while not rates or (clock.now() < end and not stopped()):
        until, products, busy = clock.now() + window, 0, 0.0
        while not products or (clock.now() < until and not stopped()):
            with compute.timer() as timing:
                product = compute.matmul(a, b, nominal=(_SIZE, _SIZE, _SIZE))
            if not torch.equal(product, first):
                if not unlike:
                    context.emit("host_product_mismatches", "node", value=1, note=worker.device.id, so_far=True)
                unlike += 1
            products, busy = products + 1, busy + timing.seconds
        total += products
        rates.append(2.0 * _SIZE**3 * products / busy / 1e9)
        region, fill = regions[len(rates) % len(regions)], random_words(seed + len(rates))
        wrong, found = region.test([fill])
        if wrong and not mismatches:
            context.emit("memory_burn_mismatches", "memory", value=wrong, note="; ".join(found[:1]), so_far=True)
        mismatches += wrong
        examples += found[: max(0, EXAMPLES - len(examples))]
        for _ in range(_RERUNS if wrong and not again.runs else 0):
            again.add(bool(region.test([fill])[0]))
    return HostBurn(
        rates, mismatches, examples, worker.device.id, total, unlike, digest(torch, [first]),
        sizes[0] * min(len(rates), len(regions)), again,
    )  # fmt: skip


def _sizes(total: int) -> list[int]:
    count = max(1, total // _REGION_BYTES)
    return [total // count] * count


def emit_checks(context: Context, burns: list[HostBurn]) -> None:
    """What was wrong in memory and products, of all CPUs together."""
    wrong = [f"{burn.cpu}: {burn.unlike} of {burn.products} products" for burn in burns if burn.unlike]
    apart = dissenters([burn.first for burn in burns], "cores")
    wrong += [f"{burns[index].cpu}: {reason}" for index, reason in apart.items()]
    context.emit(
        "host_product_mismatches",
        "node",
        value=sum(burn.unlike for burn in burns) + len(apart),
        samples=sum(burn.products for burn in burns),
        note="; ".join(wrong[:EXAMPLES]),
    )
    context.emit(
        "memory_burn_mismatches",
        "memory",
        value=sum(burn.mismatches for burn in burns),
        samples=sum(len(burn.rates) for burn in burns),
        note="; ".join([example for burn in burns for example in burn.examples][:EXAMPLES]),
    )
    report_reruns(context, "memory_burn_rerun", "memory", {}, {burn.cpu: burn.again for burn in burns})
    context.emit("memory_burn_tested", "memory", value=sum(burn.tested_bytes for burn in burns) / GIB)


@contextlib.contextmanager
def burning(context: Context, torch: Any, cores: list[Device], memory_gib: float, limit_s: float) -> Iterator[Burns]:
    """Burns ``cores`` while the block lasts, ``limit_s`` at most; the future has the result once the block has ended.

    To be entered before this process touches a GPU or a tensor: the workers are forked, and neither outlives a fork.
    """
    if not cores:
        yield None
        return
    stop, forked = mmap.mmap(-1, 1), threading.Event()  # shared with the workers; /dev/shm may be full, or not there
    work = functools.partial(
        burn_cpu, torch, context, "float32", memory_gib, limit_s, lambda: stop[0] > 0,
        least_bytes=beyond_caches(context.hardware),
    )  # fmt: skip
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="host-load") as pool:
        # The first tick comes when all workers have been forked; they end with the thread that forked them.
        burns = pool.submit(context.hardware.at_once, cores, work, forked.set, _TICK_S)
        burns.add_done_callback(lambda _: forked.set())
        forked.wait()
        try:
            yield burns
        finally:
            stop[0] = 1


def emit_burns(context: Context, burns: Burns) -> None:
    """The rate of the cores and their memory's mismatches, or why there are none. Raises what ended the load."""
    why = "there is no core to spare that could be loaded"
    if burns is not None:
        try:
            found = burns.result()
        except Skip as error:
            why = f"the host was not loaded to the end: {reason_of(error)}"
        else:
            rates = [median(burn.rates) for burn in found]
            context.emit("host_burn_rate", "node", value=median(rates), samples=len(rates), spread=spread(rates))
            emit_checks(context, found)
            return
    context.emit("host_burn_rate", "node", note=why)
    context.emit("memory_burn_mismatches", "memory", note=why)
    context.emit("memory_burn_tested", "memory", note=why)
    context.emit("host_product_mismatches", "node", note=why)
