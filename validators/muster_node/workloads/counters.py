"""Error counters of host, GPUs, links and ports: what a load added to them.

A counter that cannot be read before and after the load has no value, never zero; aggregate ECC counters are written too
late to be differenced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster_node.hardware.seam import Device, Fact, Hardware
from muster_node.probe import Context, Metric

DELTAS = {
    "ecc_uncorrected_delta": "ecc_uncorrected",
    "ecc_corrected_delta": "ecc_corrected",
    "pcie_replay_delta": "pcie_replay",
    "row_remap_corrected_delta": "row_remap_corrected",
    "row_remap_uncorrected_delta": "row_remap_uncorrected",
}
HOST = ("machine_checks", "edac_corrected", "edac_uncorrected")
HOST_METRICS = {
    "machine_checks": Metric("count", "machine-check events during the load"),
    "edac_corrected": Metric("count", "errors of the host's memory corrected during the load"),
    "edac_uncorrected": Metric("count", "errors of the host's memory not corrected during the load"),
    "cpu_throttle_events_delta": Metric(
        "count", "thermal-throttle events during the load, over all CPUs (threads of a core count the same ones)"
    ),
}
"""Metrics of a probe that reports only the host's."""
METRICS = {
    "ecc_uncorrected_delta": Metric("count", "uncorrected ECC errors during the load"),
    "ecc_corrected_delta": Metric("count", "corrected ECC errors during the load"),
    "pcie_replay_delta": Metric("count", "PCIe replays during the load"),
    "pcie_replay_rate": Metric("1/min", "PCIe replays a minute during the load"),
    "nvlink_errors_delta": Metric("count", "NVLink errors during the load, by kind, over all links"),
    "ib_errors_delta": Metric("count", "errors of an InfiniBand or RoCE port during the load, over all its counters"),
    "ib_error_rate": Metric("1/h", "errors of one counter of an InfiniBand or RoCE port that the load proves at least"),
    "xid_delta": Metric("count", "XID messages in the kernel log during the load"),
    "row_remap_corrected_delta": Metric("count", "rows remapped for corrected errors during the load"),
    "row_remap_uncorrected_delta": Metric("count", "rows remapped for uncorrected errors during the load"),
    "throttle_time_delta": Metric("s", "time spent throttled during the load, by reason"),
    **HOST_METRICS,
}
"""Metrics of a probe that reports them."""

_UNREADABLE = "this machine has no such counter"
_NAMED = 4
_CONFIDENT = 1.645
"""Standard normal quantile of 95 %."""

Key = tuple[str, str, str, str]
"""Counter, device, and kind (or reason) and part ("link 3", "symbol_error") where a device has several."""


class Counters:
    """All counters at the beginning of a load."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._began = hardware.clock.now()
        self._before = _cumulative(hardware.counters())

    def emit(self, context: Context, gpus: list[Device]) -> None:
        """Report what was added since."""
        after, minutes = _cumulative(self._hardware.counters()), (self._hardware.clock.now() - self._began) / 60.0
        for gpu in gpus:
            for metric, counter in DELTAS.items():
                value, note = self._added(after, (counter, gpu.id, "", ""))
                context.emit(metric, gpu.id, value=value, note=note)
                if counter == "pcie_replay" and minutes > 0:
                    context.emit("pcie_replay_rate", gpu.id, value=value and value / minutes, note=note)
            self._emit_throttled(context, after, gpu)
        value, note = self._added(after, ("xid_count", "node", "", ""))
        context.emit("xid_delta", "node", value=value, note=note)
        self._emit_sums(context, after, "nvlink_errors", by_kind=True)
        self._emit_sums(context, after, "ib_errors", by_kind=False)
        self._emit_port_rates(context, after, minutes)
        self._emit_host(context, after)

    def emit_host(self, context: Context) -> None:
        """Report what was added since to the host's counters: ``HOST_METRICS``."""
        self._emit_host(context, _cumulative(self._hardware.counters()))

    def _emit_host(self, context: Context, after: dict[Key, Fact]) -> None:
        for counter in HOST:
            value, note = self._added(after, (counter, "node", "", ""))
            context.emit(counter, "node", value=value, note=note)
        cpus = {key[1]: key for key in self._keys(after, "cpu_throttle_events")}
        self._emit_sum(context, after, "cpu_throttle_events_delta", "node", cpus)

    def _emit_throttled(self, context: Context, after: dict[Key, Fact], gpu: Device) -> None:
        keys = [key for key in self._keys(after, "throttle_time") if key[1] == gpu.id]
        for key in keys or [("throttle_time", gpu.id, "", "")]:
            value, note = self._added(after, key)
            labels = {"reason": key[2]} if key[2] else {}
            context.emit("throttle_time_delta", gpu.id, value=value, labels=labels, note=note)

    def _keys(self, after: dict[Key, Fact], counter: str) -> list[Key]:
        """All parts of a counter that were read before or after."""
        return sorted(key for key in {*self._before, *after} if key[0] == counter)

    def _added(self, after: dict[Key, Fact], key: Key) -> tuple[float | None, str]:
        begun, ended = self._before.get(key), after.get(key)
        if begun is None or ended is None or begun.value is None or ended.value is None:
            notes = [fact.note for fact in (ended, begun) if fact is not None and fact.note]
            return None, notes[0] if notes else _UNREADABLE
        return ended.value - begun.value, ""

    def _emit_sums(self, context: Context, after: dict[Key, Fact], counter: str, by_kind: bool) -> None:
        """One sum for each device (and kind of error); the note names the parts that it came from."""
        groups: dict[tuple[str, str], dict[str, Key]] = {}
        for key in self._keys(after, counter):
            groups.setdefault((key[1], key[2] if by_kind else ""), {})[key[3] or key[2]] = key
        for (device, kind), parts in groups.items():
            self._emit_sum(context, after, counter + "_delta", device, parts, {"kind": kind} if kind else None)

    def _emit_port_rates(self, context: Context, after: dict[Key, Fact], minutes: float) -> None:
        """The rate of each counter of each port that it has: a busy healthy fabric has a few errors of some kinds."""
        for key in self._keys(after, "ib_errors"):
            value, _ = self._added(after, key)
            if value is not None and minutes > 0:
                note = f"{value:.0f} in {minutes:.3g} min" if value else ""
                rate = 60.0 * proved(value) / minutes
                context.emit("ib_error_rate", key[1], value=rate, labels={"counter": key[2]}, note=note)

    def _emit_sum(
        self,
        context: Context,
        after: dict[Key, Fact],
        metric: str,
        device: str,
        parts: dict[str, Key],
        labels: dict[str, str] | None = None,
    ) -> None:
        """The sum of what all parts (name → counter) added; no value without a readable part."""
        added = {part: self._added(after, key) for part, key in parts.items()}
        known = {part: value for part, (value, _) in added.items() if value is not None}
        grown = [f"{part}: {value:.0f}" for part, value in known.items() if value]
        refusals = [f"{part}: {note}" for part, (_, note) in added.items() if note]
        context.emit(
            metric,
            device,
            value=sum(known.values()) if known else None,
            labels=labels or {},
            samples=len(known),
            note="; ".join((grown or refusals)[:_NAMED]) if parts else _UNREADABLE,
        )


def proved(count: float) -> float:
    """Events that so many counted ones prove: the lower bound of the Poisson mean at 95 % confidence, one-sided.

    Three errors in a minute are no proof of 180 an hour. Wilson and Hilferty's approximation (1931) of the quantile of
    chi-squared; 0 for none.
    """
    if count <= 0:
        return 0.0
    return count * max(0.0, 1.0 - 1.0 / (9.0 * count) - _CONFIDENT / (3.0 * math.sqrt(count))) ** 3


def _cumulative(facts: Iterable[Fact]) -> dict[Key, Fact]:
    return {_key(fact): fact for fact in facts if fact.labels.get("scope", "volatile") == "volatile"}


def _key(fact: Fact) -> Key:
    link = fact.labels.get("link")
    part = "" if link is None else "link " + link
    kinds = (fact.labels.get(label, "") for label in ("kind", "counter", "reason"))
    return fact.name, fact.device, next((kind for kind in kinds if kind), ""), part
