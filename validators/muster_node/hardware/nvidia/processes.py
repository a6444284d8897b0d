"""Processes on NVIDIA GPUs: all but this one, and during a job all but the job's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

from muster_node.hardware.nvidia.gpu import Gpu
from muster_node.hardware.nvidia.nvml import Answer, Nvml
from muster_node.hardware.seam import Fact
from muster_node.processes import Process, look_up, table

KINDS = ("Compute", "Graphics")
_PARENTS_MAX = 64
_DIAGNOSIS = "nvvs"
"""NVIDIA's diagnostics. DCGM's service starts them as its own child, one at a time, when ``dcgmi diag`` asks for it."""


def on(nvml: Nvml, gpu: Gpu) -> Iterator[str]:
    """A sentence for each process on this GPU other than this one."""
    for kind in KINDS:
        for process in nvml.query(f"nvmlDeviceGet{kind}RunningProcesses", gpu.handle).value or ():
            if process.pid != os.getpid():
                yield f"process {_named(process.pid)} uses {gpu.device.id} ({kind.lower()})"


def unlisted(nvml: Nvml, gpu: Gpu) -> str:
    """Why the processes that use this GPU are not known, "" if they are.

    No process can use a GPU that is lost or needs a reset, and a GPU without such a list counts as unused. A GPU that
    does not answer may be in use by a job that waits for it; a driver too old for the call hides processes.
    """
    unsupported = nvml.constant("NVML_ERROR_NOT_SUPPORTED")
    for kind in KINDS:
        answer = nvml.query(f"nvmlDeviceGet{kind}RunningProcesses", gpu.handle)
        if answer.value is None and answer.code != unsupported and not nvml.is_lost(gpu.handle):
            return f"the {kind.lower()} processes of {gpu.device.id} cannot be listed ({answer.note})"
    return ""


def foreign(nvml: Nvml, gpu: Gpu, proc: str = "/proc") -> Fact:
    """How many processes on this GPU are neither this one nor started by it."""
    pids: set[int] = set()
    refused = Answer()
    for kind in KINDS:
        answer = nvml.query(f"nvmlDeviceGet{kind}RunningProcesses", gpu.handle)
        pids |= {int(process.pid) for process in answer.value or ()}
        refused = answer if answer.note else refused
    others = {pid: _is_ours(pid, proc) for pid in pids}
    strangers = sorted(pid for pid, ours in others.items() if ours is False)
    hidden = sum(ours is None for ours in others.values())
    if strangers:
        note = "processes {}".format(", ".join(_named(pid, proc) for pid in strangers))
        return Fact("foreign_processes", gpu.device.id, "count", float(len(strangers)), note=note)
    if hidden:
        note = f"{hidden} processes on it are not visible here (another PID namespace), so whose they are is not known"
        return Fact("foreign_processes", gpu.device.id, "count", note=note)
    if refused.note:
        return Fact("foreign_processes", gpu.device.id, "count", note=refused.note)
    return Fact("foreign_processes", gpu.device.id, "count", 0.0)


def _named(pid: int, proc: str = "/proc") -> str:
    process = look_up(pid, proc)
    return f"{pid} ({process.name})" if process else str(pid)


def _is_ours(pid: int, proc: str) -> bool | None:
    """Whether a process descends from this one, or from a diagnosis that it asked for; None where it cannot be seen."""
    for _ in range(_PARENTS_MAX):
        if pid == os.getpid():
            return True
        process = look_up(pid, proc)
        if process is None:
            return None
        if process.name == _DIAGNOSIS and _asked_for(process, proc):
            return True
        if process.parent <= 1:
            return False
        pid = process.parent
    return False


def _asked_for(diagnosis: Process, proc: str) -> bool:
    """Whether a ``dcgmi`` below this process was waiting for the diagnosis when it began."""
    return any(
        each.name == "dcgmi" and each.started <= diagnosis.started and _is_ours(each.pid, proc)
        for each in table(proc).values()
    )
