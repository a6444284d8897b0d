"""XIDs while a job runs, if the kernel log cannot be read: entries of ``device_events``, which then has none."""

from __future__ import annotations

import contextlib
import threading

from muster_node.contract import Measurement
from muster_node.hardware.events import DeviceEvent, folded, labels_of
from muster_node.hardware.seam import EventSource, Hardware

PROBE, METRIC, UNIT = "device_events", "xid", "text"
SEEN, SEEN_UNIT = "xids_seen", "bool"
INTERVAL_S = 1.0
LEAVE_S = 2.0


class XidWatch:
    """Reads the driver's events in a thread of its own, so that one that hangs holds up nothing."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._source: EventSource | None = None
        self._events: list[DeviceEvent] = []
        self._failure = ""
        self._gpus = [device.id for device in hardware.devices("gpu")]
        self._readable = False
        try:
            self._source = hardware.event_source()
            self._readable = self._source is None and self._log_is_read()
        except Exception as error:
            self._fail(error)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="xids", daemon=True)
        if self._source is not None:
            self._thread.start()

    def stop(self, devices: dict[str, str], wait_s: float = LEAVE_S) -> list[Measurement]:
        """Ends the watch: an entry for each XID, and whether those of each GPU were seen.

        ``devices``: by PCI address.
        """
        if self._source is None:
            self._readable = self._readable and self._log_is_read()
            return self._seen({})
        self._end.set()
        self._thread.join(wait_s)
        entries = [
            Measurement(
                PROBE, METRIC, devices.get(event.pci, "node"), UNIT, text=event.text, labels=labels_of(event, number),
                samples=event.count,
            )
            for number, event in enumerate(folded(list(self._events)))
        ]  # fmt: skip
        return entries + self._seen(self._source.refused)

    def _log_is_read(self) -> bool:
        with contextlib.suppress(Exception):
            return self._hardware.kernel_log() is not None
        return False

    def _seen(self, refused: dict[str, str]) -> list[Measurement]:
        """For each GPU, whether an XID of it would have been seen to the end of the job."""
        blind = self._failure or self._broken_off()
        way = f"by {self._source.name}" if self._source else ""
        found = []
        for gpu in self._gpus:
            why = refused.get(gpu) or blind
            note = "" if self._readable else why or way
            value = 1.0 if self._readable or not why else None
            found.append(Measurement(PROBE, SEEN, gpu, SEEN_UNIT, value=value, note=note[:500]))
        return found

    def _broken_off(self) -> str:
        """Why the watch saw nothing, or not all, "" if it saw to the end."""
        if self._source is None:
            return "the kernel log cannot be read, and there is no other way to see XIDs"
        if self._thread.is_alive():
            return f"{self._source.name} did not answer"
        return self._source.trouble

    def _fail(self, error: Exception) -> None:
        self._failure = (f"{type(error).__name__}: {error}")[:200]

    def _loop(self) -> None:
        assert self._source is not None
        try:
            while not self._end.wait(INTERVAL_S):
                self._events.extend(self._source.read())
            self._events.extend(self._source.read())
            self._source.close()
        except Exception as error:
            self._fail(error)
