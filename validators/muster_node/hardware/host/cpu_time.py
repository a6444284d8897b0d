"""CPU time of this process's loads against the wall clock, and where the rest of the time went.

A rate by CPU time alone hides a machine that is held down: a core that a control group gives 10 % of the time, or that
a hypervisor gives to others, still computes at full speed in that time. Sources: proc(5) for steal and the ticks of
other processes; Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst for quotas.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Sequence

from muster_node.hardware.host import cgroups
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import CpuTime, Device

_STEAL = 7
_IDLE = (3, 4)
"""Places of the ticks in a line of /proc/stat: of steal; of idle and iowait."""


@dataclasses.dataclass
class Account:
    """Timed work of this process, in seconds of CPU time and by the wall clock."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


timed = Account()
"""The account of this process; a worker begins with an empty one (``begin_worker``)."""


@dataclasses.dataclass(frozen=True)
class Spent:
    """What a worker used: CPU and wall time of its timed work, and CPU time in all."""

    cpu_s: float
    wall_s: float
    process_s: float


def begin_worker() -> None:
    """Empties the account that a forked worker has inherited."""
    timed.cpu_s = timed.wall_s = 0.0


def spent() -> Spent:
    """What this worker has used so far."""
    return Spent(timed.cpu_s, timed.wall_s, time.process_time())


@dataclasses.dataclass(frozen=True)
class _Group:
    """A control group's CPU bandwidth: its quota in CPUs (None: none), and what it has counted."""

    quota: float | None
    throttled_s: float | None
    throttled_periods: float
    periods: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Seconds that these CPUs were busy and stolen, and the control groups above this process, innermost first."""

    busy_s: float | None
    stolen_s: float | None
    groups: tuple[_Group, ...]


def snapshot(files: Files, devices: Sequence[Device]) -> Snapshot:
    """The state now."""
    busy, stolen = _ticks(files.text("/proc/stat"), {device.id for device in devices})
    groups = (_group(files, folder) for folder in cgroups.above(files, "cpu"))
    return Snapshot(busy, stolen, tuple(group for group in groups if group is not None))


def _ticks(text: str, cpus: set[str]) -> tuple[float | None, float | None]:
    busy = stolen = 0.0
    seen = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) > _STEAL + 1 and words[0] in cpus:
            ticks = [int(word) for word in words[1:9]]
            seen += 1
            stolen += ticks[_STEAL]
            busy += sum(ticks) - ticks[_STEAL] - sum(ticks[place] for place in _IDLE)
    hertz = os.sysconf("SC_CLK_TCK")
    return (busy / hertz, stolen / hertz) if seen else (None, None)


def _group(files: Files, folder: str) -> _Group | None:
    """None for a group without a CPU bandwidth."""
    counts = dict(re.findall(r"^(\w+) (\d+)$", files.text(f"{folder}/cpu.stat"), re.MULTILINE))
    if "nr_periods" not in counts:
        return None
    allowed, _, period = files.text(f"{folder}/cpu.max").partition(" ")
    if not period:
        allowed = str(int(files.number(f"{folder}/cpu.cfs_quota_us") or -1))
        period = str(int(files.number(f"{folder}/cpu.cfs_period_us") or 0))
    limited = allowed.isdigit() and period.strip().isdigit() and int(period) > 0
    held = float(counts["throttled_usec"]) / 1e6 if "throttled_usec" in counts else None
    if "throttled_time" in counts:
        held = float(counts["throttled_time"]) / 1e9
    return _Group(
        int(allowed) / int(period) if limited else None,
        held,
        float(counts.get("nr_throttled", 0)),
        float(counts["nr_periods"]),
    )


class Ledger:
    """The sum of all loads of this process."""

    def __init__(self) -> None:
        self._workers: dict[str, list[Spent]] = {}
        self._others = self._stolen = self._held = 0.0
        self._known = True
        self._periods = self._throttled = 0.0
        self._quota: float | None = None
        self._counted = False
        self._widest = 0

    def add(self, devices: Sequence[Device], used: Sequence[Spent], before: Snapshot, after: Snapshot) -> None:
        """Adds one load on ``devices``."""
        for device, each in zip(devices, used):
            self._workers.setdefault(device.id, []).append(each)
        if before.busy_s is None or after.busy_s is None or before.stolen_s is None or after.stolen_s is None:
            self._known = False
        else:
            self._others += max(0.0, after.busy_s - before.busy_s - sum(each.process_s for each in used))
            self._stolen += max(0.0, after.stolen_s - before.stolen_s)
        self._widest = max(self._widest, len(devices))
        self._count_groups(before.groups, after.groups)

    def _count_groups(self, before: Sequence[_Group], after: Sequence[_Group]) -> None:
        """Of nested groups, the one that held the load longest counts; the tightest quota applies to all."""
        held = throttled = periods = 0.0
        for begun, ended in zip(before, after):
            self._counted = True
            if ended.quota is not None:
                self._quota = ended.quota if self._quota is None else min(self._quota, ended.quota)
            held = max(held, (ended.throttled_s or 0.0) - (begun.throttled_s or 0.0))
            more = ended.throttled_periods - begun.throttled_periods
            if more > throttled:
                throttled, periods = more, ended.periods - begun.periods
        self._held += held
        self._throttled += throttled
        self._periods += periods

    def total(self) -> CpuTime | None:
        """Everything so far; None if nothing was timed on a CPU."""
        wall = sum(each.wall_s for every in self._workers.values() for each in every)
        if not wall:
            return None
        return CpuTime(
            wall_s={device: sum(each.wall_s for each in every) for device, every in self._workers.items()},
            cpu_s={device: sum(each.cpu_s for each in every) for device, every in self._workers.items()},
            stolen_s=self._stolen if self._known else None,
            others_s=self._others if self._known else None,
            held_s=self._held if self._counted else None,
            throttled_periods=int(self._throttled),
            periods=int(self._periods),
            quota=self._quota,
            cpus=self._widest,
        )
