"""What the kernel log says of hardware: drivers' errors by code, and messages that may report a fault.

Run it at the end of a stage: the stage's inventory has the time of the log's newest line at its begin. The controller
judges.
"""

from __future__ import annotations

from muster_node.hardware import events as errors
from muster_node.hardware.host import clocks
from muster_node.hardware.host import kernel_events as messages
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NO_PRIVILEGE
from muster_node.probe import Context, Metric, Probe


class DeviceEvents(Probe):
    """Every error that a driver logged under a code, and every other message that may report a fault."""

    name = "device_events"
    stage = "intake"
    doc = "drivers' errors (XIDs, SXIDs) and messages in the kernel log that may report a fault"
    loads = False
    metrics = {
        "xid": Metric("text", "an XID or SXID, with kind, code, PCI address, seconds since boot; samples: how often"),
        "xids_seen": Metric("bool", "whether the GPU's XIDs were watched to the end of the job, by log or by events"),
        "xid_total": Metric("count", "XID and SXID messages in the kernel log"),
        "kernel_event": Metric(
            "text", "a message or record, with priority, PCI address, seconds since boot; samples: how often"
        ),
        "kernel_event_total": Metric("count", "such messages and records in the kernel log"),
        "kernel_log_begin": Metric("s", "time since boot of the oldest line that the kernel log still has"),
        "kernel_log_clock": Metric("s", "time since boot by the clock of the kernel log when it was read"),
    }

    def run(self, context: Context) -> None:
        """Report every event; an unreadable log has no totals, never zero."""
        log, files = context.hardware.kernel_log(), Files()
        if not context.hardware.simulated and (now := clocks.log_clock(files) or clocks.uptime(files)) is not None:
            context.emit("kernel_log_clock", "node", value=now)
        if log is None:
            for total in ("xid_total", "kernel_event_total"):
                context.emit(total, "node", note=f"the kernel log cannot be read: {NO_PRIVILEGE}")
            return
        coded, plain = messages.device_events(log), messages.parse_events(log)
        devices = errors.by_pci(context.hardware.inventory()) if coded or any(event.pci for event in plain) else {}
        for number, error in enumerate(errors.folded(coded)):
            # The node stands for a GPU that no longer answers: its address is in the labels.
            context.emit(
                "xid",
                error.part or devices.get(error.pci, "node"),
                text=error.text or "(no text)",
                labels=errors.labels_of(error, number),
                samples=error.count,
            )
        context.emit("xid_total", "node", value=len(coded))
        for number, event in enumerate(messages.folded(plain)):
            context.emit(
                "kernel_event",
                devices.get(event.pci, "node"),
                text=event.text,
                labels=messages.labels_of(event, number),
                samples=event.count,
            )
        context.emit("kernel_event_total", "node", value=len(plain))
        begin = errors.first_time(log)
        context.emit("kernel_log_begin", "node", value=begin, note="" if begin is not None else "no line has a time")
