"""XIDs and SXIDs of the kernel log since boot, each with code, device, time and text. The controller evaluates them.

Run it at the end of a stage: the stage's inventory has the time of the log's newest line at its begin.
"""

from __future__ import annotations

from muster_node.hardware.events import DeviceEvent, folded, labels_of
from muster_node.hardware.host.kernel_events import device_events
from muster_node.hardware.seam import NO_PRIVILEGE
from muster_node.probe import Context, Metric, Probe
from muster_node.tools.run import gpus_by_pci


class Xids(Probe):
    """Every error that the GPU driver and the NVSwitch driver have logged."""

    name = "xids"
    stage = "intake"
    doc = "XID and SXID messages in the kernel log since boot"
    loads = False
    metrics = {
        "xid": Metric("text", "an XID or SXID, with kind, code, PCI address, seconds since boot; samples: how often"),
        "xids_seen": Metric("bool", "whether the GPU's XIDs were watched to the end of the job, by log or by events"),
        "xid_total": Metric("count", "XID and SXID messages in the kernel log since boot"),
    }

    def run(self, context: Context) -> None:
        """Report every message; an unreadable log has no total, never zero."""
        log = context.hardware.kernel_log()
        if log is None:
            context.emit("xid_total", "node", note=f"the kernel log cannot be read: {NO_PRIVILEGE}")
            return
        events = device_events(log)
        devices = gpus_by_pci(context.hardware) if events else {}
        for number, event in enumerate(folded(events)):
            context.emit(
                "xid",
                _device_of(event, devices),
                text=event.text or "(no text)",
                labels=labels_of(event, number),
                samples=event.count,
            )
        context.emit("xid_total", "node", value=len(events))


def _device_of(event: DeviceEvent, devices: dict[str, str]) -> str:
    """The GPU or switch; the node for a GPU that no longer answers, whose address is in the labels."""
    return event.part or devices.get(event.pci, "node")
