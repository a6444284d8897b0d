"""The kernel's messages since boot that may report a fault, each with time, priority and text. The controller judges.

Run it at the end of a stage: the stage's inventory has the time of the log's newest line at its begin.
"""

from __future__ import annotations

from muster_node.hardware.events import first_time
from muster_node.hardware.host.kernel_events import folded, labels_of, parse_events
from muster_node.hardware.seam import NO_PRIVILEGE
from muster_node.probe import Context, Metric, Probe
from muster_node.tools.run import gpus_by_pci


class KernelEvents(Probe):
    """What the kernel says of hardware, drivers and itself, XIDs and SXIDs left to the probe ``xids``."""

    name = "kernel_events"
    stage = "intake"
    doc = "messages of the kernel log since boot that may report a fault"
    loads = False
    metrics = {
        "kernel_event": Metric(
            "text", "a message or record, with priority, PCI address, seconds since boot; samples: how often"
        ),
        "kernel_event_total": Metric("count", "such messages and records in the kernel log since boot"),
        "kernel_log_begin": Metric("s", "time since boot of the oldest line that the kernel log still has"),
    }

    def run(self, context: Context) -> None:
        """Report every event; an unreadable log has no total, never zero."""
        log = context.hardware.kernel_log()
        if log is None:
            context.emit("kernel_event_total", "node", note=f"the kernel log cannot be read: {NO_PRIVILEGE}")
            return
        events = parse_events(log)
        devices = gpus_by_pci(context.hardware) if any(event.pci for event in events) else {}
        for number, event in enumerate(folded(events)):
            context.emit(
                "kernel_event",
                devices.get(event.pci, "node"),
                text=event.text,
                labels=labels_of(event, number),
                samples=event.count,
            )
        context.emit("kernel_event_total", "node", value=len(events))
        begin = first_time(log)
        context.emit("kernel_log_begin", "node", value=begin, note="" if begin is not None else "no line has a time")
