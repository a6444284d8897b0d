"""Error counters of GPUs, links and ports, read before a load and after it, and told as what was added meanwhile.

A counter that is not told at both ends is told as such and never as zero; aggregate ECC counters are written too late
to be differenced.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Tuple

from muster_node.hardware.seam import Device, Fact, Hardware
from muster_node.probe import Context, Metric

DELTAS = {
    "ecc_uncorrected_delta": "ecc_uncorrected",
    "ecc_corrected_delta": "ecc_corrected",
    "pcie_replay_delta": "pcie_replay",
}
METRICS = {
    "ecc_uncorrected_delta": Metric("count", "uncorrected ECC errors during the load"),
    "ecc_corrected_delta": Metric("count", "corrected ECC errors during the load"),
    "pcie_replay_delta": Metric("count", "PCIe replays during the load"),
    "pcie_replay_rate": Metric("1/min", "PCIe replays a minute during the load"),
    "nvlink_errors_delta": Metric("count", "NVLink errors during the load, by kind, over all links"),
    "ib_errors_delta": Metric("count", "errors of an InfiniBand or RoCE port during the load, over all its counters"),
    "xid_delta": Metric("count", "XID messages in the kernel log during the load"),
}
"""What a probe declares that tells them."""

_UNTOLD = "this counter is not told here"
_NAMED = 4

Key = Tuple[str, str, str, str]
"""Counter, device, and kind and part ("link 3", "symbol_error") where a device has several."""


class Counters:
    """All counters as they stood when a load began."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._began = hardware.clock.now()
        self._before = _cumulative(hardware.counters())

    def emit(self, context: Context, gpus: List[Device]) -> None:
        """Tell what was added since."""
        after, minutes = _cumulative(self._hardware.counters()), (self._hardware.clock.now() - self._began) / 60.0
        for gpu in gpus:
            for metric, counter in DELTAS.items():
                value, note = self._added(after, (counter, gpu.id, "", ""))
                context.emit(metric, gpu.id, value=value, note=note)
                if counter == "pcie_replay" and minutes > 0:
                    context.emit("pcie_replay_rate", gpu.id, value=value and value / minutes, note=note)
        value, note = self._added(after, ("xid_count", "node", "", ""))
        context.emit("xid_delta", "node", value=value, note=note)
        self._emit_sums(context, after, "nvlink_errors", by_kind=True)
        self._emit_sums(context, after, "ib_errors", by_kind=False)

    def _added(self, after: Dict[Key, Fact], key: Key) -> Tuple[Optional[float], str]:
        begun, ended = self._before.get(key), after.get(key)
        if begun is None or ended is None or begun.value is None or ended.value is None:
            notes = [fact.note for fact in (ended, begun) if fact is not None and fact.note]
            return None, notes[0] if notes else _UNTOLD
        return ended.value - begun.value, ""

    def _emit_sums(self, context: Context, after: Dict[Key, Fact], counter: str, by_kind: bool) -> None:
        """One sum for each device (and kind of error); the note names the parts that it came from."""
        groups: Dict[Tuple[str, str], List[Key]] = {}
        for key in sorted({*self._before, *after}):
            if key[0] == counter:
                groups.setdefault((key[1], key[2] if by_kind else ""), []).append(key)
        for (device, kind), keys in groups.items():
            added = {key[3] or key[2]: self._added(after, key) for key in keys}
            known = {part: value for part, (value, _) in added.items() if value is not None}
            grown = ["%s: %.0f" % (part, value) for part, value in known.items() if value]
            refusals = ["%s: %s" % (part, note) for part, (_, note) in added.items() if note]
            context.emit(
                counter + "_delta",
                device,
                value=sum(known.values()) if known else None,
                labels={"kind": kind} if kind else {},
                samples=len(known),
                note="; ".join((grown or refusals)[:_NAMED]),
            )


def _cumulative(facts: Iterable[Fact]) -> Dict[Key, Fact]:
    return {_key(fact): fact for fact in facts if fact.labels.get("scope", "volatile") == "volatile"}


def _key(fact: Fact) -> Key:
    link = fact.labels.get("link")
    part = "" if link is None else "link " + link
    return fact.name, fact.device, fact.labels.get("kind") or fact.labels.get("counter", ""), part
