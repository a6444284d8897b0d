"""Rank, NUMA node and NIC belong together: a rank runs on the CPUs nearest to its GPU and uses the NIC nearest to it.

Elsewhere copies cross the interconnect of the sockets, and a rank becomes a straggler without a fault. NCCL finds the
nearest NIC by itself; `NCCL_IB_HCA` (NCCL user guide, environment variables) makes the choice certain, and is set only
where one NIC alone is nearest.
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
    facts = {fact.name: fact for fact in group.hardware.inventory() if fact.device == device.id}
    node, nic = facts.get("gpu_numa_node"), facts.get("nearest_nic")
    if node is not None and node.value is not None:
        _run_on(int(node.value))
    name = only_nic(nic.text or "") if nic is not None else ""
    if name and group.per_node > 1:
        os.environ.setdefault("NCCL_IB_HCA", f"={name}")


def only_nic(nearest: str) -> str:
    """The NIC that alone is nearest, of the inventory's text; "" where there are several, or none.

    >>> only_nic("mlx5_3 (same PCIe switch)"), only_nic("mlx5_0, mlx5_1 (same root port)")
    ('mlx5_3', '')
    """
    names, _, _ = nearest.partition(" (")
    return "" if "," in names else names


def _run_on(numa_node: int) -> None:
    """Runs on those CPUs of a NUMA node that this process may use."""
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path(f"/sys/devices/system/node/node{numa_node}/cpulist").read_text(encoding="ascii")
        cpus = set(parse.parse_cpu_list(text)) & os.sched_getaffinity(0)
        if cpus:
            os.sched_setaffinity(0, cpus)
