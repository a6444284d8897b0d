"""Clocks, limits and modes of GPUs, and which of them differ from before. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from muster_node.hardware.seam import Fact

SETTINGS = ("application_clock", "power_limit", "persistence_mode", "mig_mode", "compute_mode", "ecc_mode")
_GONE = "not reported any more"

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Device, setting and its labels."""
Settings = dict[Key, Fact]


def settings(facts: Iterable[Fact]) -> Settings:
    """The settings of each GPU that are known."""
    return {
        (fact.device, fact.name, tuple(sorted(fact.labels.items()))): fact
        for fact in facts
        if fact.name in SETTINGS and fact.device.startswith("gpu") and _words(fact) is not None
    }


def changes(before: Settings, after: Settings) -> dict[Key, str]:
    """Differences as text, for GPUs that still report settings; lost GPUs are reported elsewhere."""
    telling = {device for device, _, _ in after}
    found = {}
    for key, fact in before.items():
        was, now = _words(fact), _words(after[key]) if key in after else _GONE
        if key[0] in telling and now != was:
            variant = "".join(f" ({text})" for _, text in key[2])
            found[key] = f"{key[1]}{variant}: {was} before, {now} after"
    return found


def _words(fact: Fact) -> str | None:
    text: Any = fact.text if fact.value is None else f"{fact.value:g} {fact.unit}"
    return None if text is None else str(text)
