"""What somebody may have set on GPUs, read before a load and after it: a test has to leave it as it was."""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple

from muster_node.hardware.seam import Fact
from muster_node.probe import Context, Metric

SETTINGS = ("application_clock", "power_limit", "persistence_mode", "mig_mode", "compute_mode", "ecc_mode")
METRICS = {
    "settings_changed": Metric(
        "count", "clocks, limits and modes that were set otherwise after the load than before it"
    )
}
"""What a probe declares that tells them."""
_GONE = "not told any more"

Set = Dict[Tuple[str, str, Tuple[Tuple[str, str], ...]], str]
"""Device, setting and its labels → what it is set to, in words."""


def settings(facts: Iterable[Fact]) -> Set:
    """What is set on each GPU; what is not told is left out."""
    found: Set = {}
    for fact in facts:
        told = fact.text if fact.value is None else "%g %s" % (fact.value, fact.unit)
        if fact.name in SETTINGS and fact.device.startswith("gpu") and told is not None:
            found[fact.device, fact.name, tuple(sorted(fact.labels.items()))] = told
    return found


def emit_changes(context: Context, before: Set, after: Set) -> None:
    """Tell what differs, device by device, of those that still tell anything: what is lost has other words for it."""
    for device in {device: None for device, _, _ in before}:
        if not any(key[0] == device for key in after):
            context.emit("settings_changed", device, note="the GPU does not tell its settings any more")
            continue
        changed: List[str] = []
        for key, told in before.items():
            now = after.get(key, _GONE)
            if key[0] == device and now != told:
                variant = "".join(" (%s)" % text for _, text in key[2])
                changed.append("%s%s: %s before, %s after" % (key[1], variant, told, now))
        context.emit("settings_changed", device, value=len(changed), note="; ".join(changed))
