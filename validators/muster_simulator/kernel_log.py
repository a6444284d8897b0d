"""The kernel log of a simulated machine since boot: the driver's errors, each with its time."""

from __future__ import annotations

from typing import List

from muster_simulator.machine import Machine
from muster_simulator.state import LOST, TIMED_OUT, UNCORRECTABLE, State

_UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>"
_XIDS = {
    UNCORRECTABLE: "48, %s, An uncorrectable double bit error (DBE) has been detected" % _UNKNOWN_PROCESS,
    LOST: "79, %s, GPU has fallen off the bus." % _UNKNOWN_PROCESS,
    TIMED_OUT: "119, %s, Timeout after 6s of waiting for RPC response from GPU GSP!" % _UNKNOWN_PROCESS,
}


def kernel_log(machine: Machine, state: State) -> List[str]:
    """Boot lines, and an XID for each event, stamped with seconds since boot."""
    model = machine.model
    lines = [
        "[    0.000000] Linux version %s" % model.kernel,
        "[   11.402113] NVRM: loading NVIDIA UNIX Open Kernel Module for %s  %s"
        % (model.architecture, model.driver_version),
    ]
    for event in state.events:
        pci = machine.gpus[event.slot].pci[4:-2].lower()
        lines.append("[%12.6f] NVRM: Xid (PCI:%s): %s" % (event.at - state.booted, pci, _XIDS[event.kind]))
    return lines


def xid_count(state: State) -> float:
    """XIDs in the log since boot."""
    return float(len(state.events))
