"""The ports of a node while a load uses them: errors of each counter, and seconds without a link, in the time watched.

A port that loses its link and finds it again leaves little trace in a counter that is read twice. So a thread reads the
state every few seconds and sums the time that it was down.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from muster_node.hardware.seam import NOT_SUPPORTED, Fact, Hardware
from muster_node.probe import Context, Metric
from muster_node.workloads.under_load.growth import PORT_CEILINGS, growth

PORT_METRICS = {
    "port_watched": Metric("min", "time that the error counters and the link of a port were watched under load"),
    "port_errors": Metric(
        "count",
        "what one error counter of a port gained while it was watched (reset: yes: at least, or unknown, since it was "
        "reset meanwhile); zeros and those it never had are left out",
    ),
    "port_down": Metric(
        "s", "time without a link while the port was watched, summed over its flaps; of ports that had one meanwhile"
    ),
}
"""Metrics of a probe that watches ports."""

STATE_EVERY_S = 1.0
MINUTE_S = 60.0

Key = tuple[str, str]
"""Port and counter."""


class PortWatch:
    """Watches the node's ports from its creation to ``close``.

    Counters are read each minute, so that one that wraps or is reset in hours, as monitoring of fabrics does, costs a
    minute of them.
    """

    def __init__(self, hardware: Hardware, state_every_s: float = STATE_EVERY_S, minute_s: float = MINUTE_S) -> None:
        self._hardware, self._every_s, self._minute_s = hardware, state_every_s, minute_s
        self._clock = hardware.clock
        self._began = self._read_at = self._clock.now()
        self._readings: list[dict[Key, Fact]] = [_errors(hardware.port_counters())]
        # A spare port without a cable, which never has a link, is none that lost it.
        self._down = {port: 0.0 for port, up in hardware.port_links().items() if up}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        last = self._clock.now()
        while not self._over.wait(self._every_s):
            now = self._clock.now()
            for port, up in self._hardware.port_links().items():
                if up or port in self._down:
                    self._down[port] = self._down.get(port, 0.0) + (0.0 if up else now - last)
            last = now
            if now - self._read_at >= self._minute_s:
                self._read()

    def _read(self) -> None:
        self._read_at = self._clock.now()
        self._readings.append(_errors(self._hardware.port_counters()))

    def close(self, context: Context) -> None:
        """Ends the watch and reports it."""
        self._over.set()
        self._thread.join()
        self._read()
        minutes = (self._clock.now() - self._began) / 60.0
        counters = sorted({key for reading in self._readings for key in reading})
        for port in sorted({port for port, _ in counters}):
            unknown = []
            for counter in (name for at, name in counters if at == port):
                facts = [reading.get((port, counter)) for reading in self._readings]
                added = growth(facts, PORT_CEILINGS.get(counter), falls_to_zero=True)
                labels = {"counter": counter, **({"reset": "yes"} if added.reset else {})}
                if added.value is None and added.note == NOT_SUPPORTED:
                    unknown.append(counter)
                elif added.value != 0.0:
                    context.emit("port_errors", port, value=added.value, labels=labels, note=added.note)
            note = f"not read: {', '.join(unknown)}" if unknown else ""
            context.emit("port_watched", port, value=minutes, samples=len(self._readings), note=note)
            if port in self._down:
                context.emit("port_down", port, value=self._down[port])


@contextlib.contextmanager
def watched_ports(context: Context) -> Iterator[None]:
    """Watches the node's ports during the block, and reports also if that fails."""
    watch = PortWatch(context.hardware)
    try:
        yield
    finally:
        watch.close(context)


def _errors(facts: Iterable[Fact]) -> dict[Key, Fact]:
    return {(fact.device, fact.labels.get("counter", "")): fact for fact in facts if fact.name == "ib_errors"}
