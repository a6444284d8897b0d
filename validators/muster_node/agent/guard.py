"""The in-use guard: is this machine in use before a load starts?

What counts as use: a foreign process on a GPU, a GPU whose processes cannot be listed, or foreign processes that take
CPU time. What does not (reported, not refused): an idle login, and a daemon named in the plan that polls by design. The
load average is ignored: it lags by a minute and would refuse the job's own next stage. Busy means busy in three
readings in a row, so that a passing cron job refuses nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection
from typing import Callable

from muster_node.bounded import Hung, bounded
from muster_node.hardware.seam import Hardware, Usage

READINGS = 3
PAUSE_S = 2.0
READING_LIMIT_S = 60.0
"""Longer than NVML takes to give up eight GPUs that hang (``hardware.nvidia.nvml``): so the reason names them."""
NAMES_MAX = 5
COMM_MAX = 15
"""Characters that the kernel keeps of a process's name (TASK_COMM_LEN, less its end)."""


@dataclasses.dataclass(frozen=True)
class Use:
    """Whether the machine is in use, and sentences that name its users (or logins that do not use it).

    If not ``known``, it counts as in use, since nothing shows that it is not.
    """

    busy: bool
    evidence: tuple[str, ...]
    known: bool = True

    def sentence(self) -> str:
        """The reading as one sentence."""
        if not self.busy:
            return "this machine is not in use"
        what = "this machine is in use" if self.known else "it is not known whether this machine is in use"
        return "{}: {}".format(what, "; ".join(self.evidence))


def assess(usage: Usage, daemons: Collection[str] = ()) -> Use:
    """Evaluates one reading. ``busy_processes`` lists foreign processes above half a core (the seam's promise).

    ``daemons``: names of processes that are always busy, which does not mean that the node is in use.
    """
    busy: list[str] = []
    other: list[str] = []
    known_names = {name[:COMM_MAX] for name in daemons}
    polling = tuple(each for each in usage.busy_processes if each.rpartition(" (process ")[0] in known_names)
    foreign = tuple(each for each in usage.busy_processes if each not in polling)
    if usage.gpu_processes:
        busy.append(f"foreign GPU processes: {_names(usage.gpu_processes)}")
    if foreign:
        busy.append(f"busy processes: {_names(foreign)}")
    known = bool(busy) or not usage.unknown
    if usage.unknown:
        busy.append(f"not known: {_names(usage.unknown)}")
    if polling:
        other.append(f"busy by design (MUSTER_BUSY_DAEMONS): {_names(polling)}")
    if usage.users:
        other.append(f"logged in: {_names(usage.users)}")
    other.append(f"load average {usage.load_1min:.1f} on {usage.cpu_count} CPUs")
    return Use(bool(busy), tuple(busy + other), known)


def look(
    hardware: Hardware, patient: bool, stop: Callable[[], str | None] = lambda: None, daemons: Collection[str] = ()
) -> Use:
    """Reads the usage, again while it is busy if ``patient``. A reading that fails counts as busy."""
    use = Use(True, ("not looked at",))
    for attempt in range(READINGS if patient else 1):
        if attempt:
            _wait(PAUSE_S, stop)
        try:
            use = assess(bounded("the usage reading", hardware.usage, READING_LIMIT_S, stop), daemons)
        except Hung as error:
            return Use(True, (str(error),), known=False)
        except Exception as error:
            return Use(True, (f"usage could not be read: {type(error).__name__}: {str(error)[:200]}",), known=False)
        if not use.busy:
            return use
    return use


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(str(name)[:120] for name in names[:NAMES_MAX])
    return shown + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")


def _wait(seconds: float, stop: Callable[[], str | None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stop():
        time.sleep(0.05)
