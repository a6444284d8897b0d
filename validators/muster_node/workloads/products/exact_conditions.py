"""Conditions for exact products other than a cold device: the heat of a soak, and bursts of power.

A fault may show on a warm GPU only, or only while its power changes in steps (docs/science.md#conditions).
"""

from __future__ import annotations

from typing import Any

from muster_node.hardware.seam import Compute, Worker
from muster_node.probe import Context
from muster_node.workloads.common import seed_of
from muster_node.workloads.products.exact_vector import Finding, Vector, heaviest
from muster_node.workloads.products.pulses import Pulsing, Work
from muster_node.workloads.products.timed import BUSY_BLOCK_S, products_in


def soak(torch: Any, context: Context, dtype: str, worker: Worker) -> float:
    """Unchecked products for ``soak_s``. Returns the seconds that they took, 0 without the format.

    In blocks so long that the GPU hardly rests between them.
    """
    compute, clock = context.hardware.compute(worker.device), context.hardware.clock
    worker.ready()
    if not compute.supports(dtype):
        return 0.0
    shape = heaviest(context.params["shapes"], worker.device.kind, dtype)
    vector = Vector(torch, compute, dtype, shape, "full", 0)
    seconds = context.params["soak_s"]
    end, products = clock.now() + seconds, 1
    while clock.now() < end:
        with compute.timer() as timing:
            vector.raw(products)
        products = products_in(BUSY_BLOCK_S, timing.seconds / products)
    return float(seconds)


def pulsed(torch: Any, context: Context, dtype: str, pattern: str) -> Pulsing:
    """Bursts of products, each compared with the exact answer.

    Comparing happens on the device within the burst; its result is read in the rest after it.
    """
    reruns = context.params["reruns"]

    def work_of(compute: Compute, finding: Finding) -> Work:
        shape = heaviest(context.params["shapes"], compute.device.kind, dtype)
        seed = seed_of(context.seed, finding.mode, compute.device.id, dtype, shape)
        vector = Vector(torch, compute, dtype, shape, "full", seed, context.emit)
        vector.check_first(reruns, finding)
        return vector.raw, lambda products: vector.check_burst(products, reruns, finding)

    return Pulsing(context, dtype, pattern, work_of)
