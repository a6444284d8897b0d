"""Error counters of host and ports: what a load added to them. Those of GPUs: ``gpus``.

A counter that cannot be read before and after the load has no value, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from muster_node.hardware.seam import NOT_SUPPORTED, Fact, Hardware
from muster_node.probe import Context, Metric
from muster_node.workloads.under_load.growth import NO_COUNTER, PORT_CEILINGS, Growth, growth, total

HOST = ("machine_checks", "machine_checks_corrected", "edac_corrected", "edac_uncorrected")
HOST_METRICS = {
    "machine_checks": Metric("count", "machine checks during the load that the hardware did not correct"),
    "machine_checks_corrected": Metric(
        "count",
        "interrupts for corrected errors of the hardware during the load (CPUs that share a bank count the same ones)",
    ),
    "edac_corrected": Metric("count", "errors of the host's memory corrected during the load"),
    "edac_uncorrected": Metric("count", "errors of the host's memory not corrected during the load"),
    "cpu_throttle_events_delta": Metric(
        "count", "thermal-throttle events during the load, over all CPUs (threads of a core count the same ones)"
    ),
}
"""Metrics of a probe that reports only the host's."""
METRICS = {
    "ib_error_rate": Metric("1/h", "errors of one counter of an InfiniBand or RoCE port that the load proves at least"),
    "ib_counters_unknown": Metric(
        "count", "error counters of a port that were full, reset or gone, so that what the load added is not known"
    ),
    "xid_delta": Metric("count", "XID messages in the kernel log during the load"),
    **HOST_METRICS,
}
"""Metrics of a probe that reports them."""

_CONFIDENT, _ALPHA = 1.6449, 0.05
"""Standard normal quantile of 95 %, and what is left of it."""
_EXACT_MAX, _HALVINGS = 200, 50

Key = tuple[str, str, str]
"""Counter, device, and part ("symbol_error") where a device has several."""


class Counters:
    """All counters at the beginning of a load."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._began = hardware.clock.now()
        self._before = _cumulative(hardware.counters())

    def emit(self, context: Context) -> None:
        """Report what was added since."""
        after, minutes = _cumulative(self._hardware.counters()), (self._hardware.clock.now() - self._began) / 60.0
        added = self._added(after, ("xid_count", "node", ""))
        context.emit("xid_delta", "node", value=added.value, note=added.note)
        for device in sorted({key[1] for key in self._keys(after, "ib_errors")}):
            parts = {key[2]: key for key in self._keys(after, "ib_errors") if key[1] == device}
            self._emit_unknown(context, after, device, parts)
        self._emit_port_rates(context, after, minutes)
        self._emit_host(context, after)

    def emit_host(self, context: Context) -> None:
        """Report what was added since to the host's counters: ``HOST_METRICS``."""
        self._emit_host(context, _cumulative(self._hardware.counters()))

    def _emit_host(self, context: Context, after: dict[Key, Fact]) -> None:
        for counter in HOST:
            added = self._added(after, (counter, "node", ""))
            context.emit(counter, "node", value=added.value, note=added.note)
        cpus = {key[1]: key for key in self._keys(after, "cpu_throttle_events")}
        value, known, note = total({cpu: self._added(after, key) for cpu, key in cpus.items()})
        context.emit("cpu_throttle_events_delta", "node", value=value, samples=known, note=note)

    def _keys(self, after: dict[Key, Fact], counter: str) -> list[Key]:
        """All parts of a counter that were read before or after."""
        return sorted(key for key in {*self._before, *after} if key[0] == counter)

    def _added(self, after: dict[Key, Fact], key: Key) -> Growth:
        return growth([self._before.get(key), after.get(key)], PORT_CEILINGS.get(key[2]), key[0] == "ib_errors")

    def _emit_unknown(self, context: Context, after: dict[Key, Fact], device: str, parts: dict[str, Key]) -> None:
        """Reports for how many of the port's counters the increase is unknown, or known only as a lower bound."""
        notes = {part: self._added(after, key).note for part, key in parts.items()}
        unknown = {part: note for part, note in notes.items() if note not in ("", NOT_SUPPORTED, NO_COUNTER)}
        text = "; ".join(f"{part}: {note}" for part, note in unknown.items())
        context.emit("ib_counters_unknown", device, value=len(unknown), samples=len(parts), note=text)

    def _emit_port_rates(self, context: Context, after: dict[Key, Fact], minutes: float) -> None:
        """The rate of each counter of each port that it has: a busy healthy fabric has a few errors of some kinds."""
        for key in self._keys(after, "ib_errors"):
            value = self._added(after, key).value
            if value is not None and minutes > 0:
                note = f"{value:.0f} in {minutes:.3g} min" if value else ""
                rate = 60.0 * proved(value) / minutes
                context.emit("ib_error_rate", key[1], value=rate, labels={"counter": key[2]}, note=note)


def proved(count: float) -> float:
    """Events that so many counted ones prove: the lower bound of the Poisson mean at 95 % confidence, one-sided.

    Three errors in a minute are no proof of 180 an hour. Garwood's exact limit (1936), as ``muster_criteria.counts``
    has it; above ``_EXACT_MAX`` Wilson and Hilferty's approximation (1931), there within 0.01 %. 0 for none.
    """
    if count <= 0:
        return 0.0
    if count > _EXACT_MAX:
        return count * (1.0 - 1.0 / (9.0 * count) - _CONFIDENT / (3.0 * math.sqrt(count))) ** 3
    low, high = 0.0, count
    for _ in range(_HALVINGS):
        mean = (low + high) / 2.0
        fewer = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(int(count)))
        low, high = (mean, high) if 1.0 - fewer < _ALPHA else (low, mean)
    return low


def _cumulative(facts: Iterable[Fact]) -> dict[Key, Fact]:
    return {(fact.name, fact.device, fact.labels.get("counter", "")): fact for fact in facts}
