"""What somebody may have set on GPUs, read before a load and after it: a test has to leave it as it was."""

from __future__ import annotations

from muster_node.agent.gpu_settings import Settings, changes
from muster_node.probe import Context, Metric

METRICS = {
    "settings_changed": Metric(
        "count", "clocks, limits and modes that were set otherwise after the load than before it"
    )
}
"""What a probe declares that tells them."""


def emit_changes(context: Context, before: Settings, after: Settings) -> None:
    """Tell what differs, device by device."""
    changed, telling = changes(before, after), {device for device, _, _ in after}
    for device in {device: None for device, _, _ in before}:
        if device not in telling:
            context.emit("settings_changed", device, note="the GPU does not tell its settings any more")
            continue
        words = [told for key, told in changed.items() if key[0] == device]
        context.emit("settings_changed", device, value=len(words), note="; ".join(words))
