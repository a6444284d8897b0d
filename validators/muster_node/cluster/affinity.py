"""A rank runs on the CPUs nearest to its GPU: elsewhere copies cross the interconnect of the sockets, and it becomes a
straggler without a fault.

NCCL finds the NIC nearest to each GPU by itself. Its `NCCL_IB_HCA` must be the same for all ranks of a node, or they
build different rings (NVIDIA/nccl issue 1478).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import TYPE_CHECKING

from muster_node.hardware.host import parse

if TYPE_CHECKING:
    from muster_node.cluster.rank import RankGroup


def pin(group: RankGroup) -> None:
    """Pins this process to the CPUs nearest to its GPU. A rank on a CPU is pinned when its compute is made."""
    device = group.device
    if device.kind != "gpu" or group.hardware.simulated:
        return
    for fact in group.hardware.inventory():
        if (fact.name, fact.device) == ("gpu_numa_node", device.id) and fact.value is not None:
            _run_on(int(fact.value))


def _run_on(numa_node: int) -> None:
    """Runs on those CPUs of a NUMA node that this process may use."""
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path(f"/sys/devices/system/node/node{numa_node}/cpulist").read_text(encoding="ascii")
        cpus = set(parse.parse_cpu_list(text)) & os.sched_getaffinity(0)
        if cpus:
            os.sched_setaffinity(0, cpus)
