"""The kernel log of a simulated machine since boot: the driver's errors, each with its time."""

from __future__ import annotations

from muster_simulator.machine import Machine
from muster_simulator.state import LOST, TIMED_OUT, UNCORRECTABLE, State

_UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>"
_XIDS = {
    UNCORRECTABLE: f"48, {_UNKNOWN_PROCESS}, An uncorrectable double bit error (DBE) has been detected",
    LOST: f"79, {_UNKNOWN_PROCESS}, GPU has fallen off the bus.",
    TIMED_OUT: f"119, {_UNKNOWN_PROCESS}, Timeout after 6s of waiting for RPC response from GPU GSP!",
}


def kernel_log(machine: Machine, state: State) -> list[str]:
    """Boot lines, and an XID for each event, stamped with seconds since boot."""
    model = machine.model
    lines = [
        f"[    0.000000] Linux version {model.kernel}",
        f"[   11.402113] NVRM: loading NVIDIA UNIX Open Kernel Module for {model.architecture}  {model.driver_version}",
    ]
    for event in state.events:
        pci = machine.gpus[event.slot].pci[4:-2].lower()
        lines.append(f"[{event.at - state.booted:12.6f}] NVRM: Xid (PCI:{pci}): {_XIDS[event.kind]}")
    return lines


def xid_count(state: State) -> float:
    """XIDs in the log since boot."""
    return float(len(state.events))
