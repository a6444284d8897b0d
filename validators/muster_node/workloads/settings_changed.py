"""Settings of GPUs that differ after a load: a test must not change them."""

from __future__ import annotations

from muster_node.agent.gpu_settings import Settings, changes
from muster_node.probe import Context, Metric

METRICS = {
    "settings_changed": Metric(
        "count", "clocks, limits and modes that were set otherwise after the load than before it"
    )
}
"""Metrics of a probe that reports them."""


def emit_changes(context: Context, before: Settings, after: Settings) -> None:
    """Report how many settings differ, by device."""
    changed, readable = changes(before, after), {device for device, _, _ in after}
    for device in {device: None for device, _, _ in before}:
        if device not in readable:
            context.emit("settings_changed", device, note="the GPU no longer reports its settings")
            continue
        texts = [text for key, text in changed.items() if key[0] == device]
        context.emit("settings_changed", device, value=len(texts), note="; ".join(texts))
