"""Telemetry while probes run: reads every sensor once a second and streams the readings, of a long job fewer, to a
file.

Nothing here may stop a run: a sensor that raises is noted, one that hangs loses only its series, a full disk ends the
file alone.
"""

from __future__ import annotations

import array
import gzip
import hashlib
import io
import json
import math
import os
import pathlib
import statistics
import threading
import time
from collections.abc import Iterable

from muster_node.agent.aggregate import StateSeries
from muster_node.contract import DEVICE, NAME, NUMBER_MAX, TELEMETRY_BYTES_MAX, UNIT, TelemetryFile
from muster_node.hardware.seam import Hardware, Sample

SERIES_MAX = 2048
"""Series kept: an 8-GPU node with 256 logical CPUs has about 700. Further ones are dropped and counted in the notes."""

FILE_BYTES_MAX = TELEMETRY_BYTES_MAX - 2 * 1024 * 1024
"""Where the side file stops growing; what is still buffered then comes on top."""

ROW_BYTES = 8
"""A row takes less, compressed: 70 series over 48 hours at 1 Hz come to 90 MB, which is more than the file may have."""

FLUSH_S = 60.0
"""So much of the side file is lost at most if the agent itself is killed."""

PAUSE_MIN_S = 0.05
HOLD_SPACINGS = 3
"""A state is taken to hold for so many times the spacing of the readings, if no new reading comes."""

Key = tuple[str, str]
INLET = ("inlet_temperature", "node")
"""The one series whose median is asked for: its readings are kept, 8 bytes each."""


class _HashedFile(io.RawIOBase):
    """A file that hashes what it really wrote, so that a file cut short by a full disk still has a true hash."""

    def __init__(self, path: pathlib.Path) -> None:
        self._fd = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.sha256 = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        total = len(view)
        while len(view):
            written = os.write(self._fd, view)
            self.sha256.update(view[:written])
            self.size += written
            view = view[written:]
        return total

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class Recorder:
    """Takes readings: streams them to ``path``, and keeps what its other methods need. Thread-safe.

    ``hold_max_s``: how long a state is assumed to hold without a new reading. ``lasts_s``: how long the job may take;
    for a long job, only as many readings are written as keep the file within its limit to the end.
    """

    def __init__(self, path: pathlib.Path, hold_max_s: float, lasts_s: float = 0.0) -> None:
        self._path = path
        self._hold_max_s = hold_max_s
        self._lock = threading.Lock()
        self._heads: dict[Key, str] = {}
        self._throttled: dict[str, StateSeries] = {}
        self._inlet = array.array("d")
        self._left_out = 0
        self._unusable = 0
        self._rows = 0
        self._closed = False
        self._flushed_at = self._written_at = -math.inf
        self._row_s = lasts_s * ROW_BYTES / FILE_BYTES_MAX
        self.notes: list[str] = []
        self._raw: _HashedFile | None = None
        self._gzip: gzip.GzipFile | None = None
        try:
            self._raw = _HashedFile(path)
            self._gzip = gzip.GzipFile(fileobj=self._raw, mode="wb", filename="", mtime=0, compresslevel=6)
        except OSError as error:
            self._stop_file(f"the telemetry file cannot be written: {error}")

    def add(self, t: float, samples: Iterable[Sample], hold_max_s: float | None = None) -> None:
        """One reading of all sensors, ``t`` in epoch seconds. Ignored once closed (a reading that came too late).

        ``hold_max_s`` from now on replaces that of the start.
        """
        with self._lock:
            if self._closed:
                return
            self._hold_max_s = hold_max_s or self._hold_max_s
            lines = [line for line in (self._take(t, sample) for sample in samples) if line]
            if abs(t - self._written_at) >= len(lines) * self._row_s:
                self._written_at = t
                self._write(t, lines)

    def throttled(self, until: float) -> dict[str, dict[str, float]]:
        """Seconds of each device by throttle reason, up to ``until`` (epoch seconds), as far as readings show."""
        with self._lock:
            return {device: kept.seconds_until(until, self._hold_max_s) for device, kept in self._throttled.items()}

    def peaks(self) -> dict[str, dict[str, float]]:
        """Most seconds of each device within a minute by throttle reason, as far as readings show."""
        with self._lock:
            return {device: dict(kept.peaks) for device, kept in self._throttled.items()}

    def inlet(self) -> tuple[float | None, int]:
        """(median of the inlet temperatures so far in °C, None without any; number of readings)."""
        with self._lock:
            return statistics.median_low(self._inlet) if self._inlet else None, len(self._inlet)

    def close(self) -> TelemetryFile | None:
        """Ends the file; returns what it holds, None if there is none."""
        with self._lock:
            self._closed = True
            if self._gzip is not None:
                self._end_file()
            if self._left_out:
                self.notes.append(f"telemetry: {self._left_out} readings beyond {SERIES_MAX} series were dropped")
            if self._unusable:
                self.notes.append(f"telemetry: {self._unusable} readings with an unusable name or number were dropped")
            if self._raw is None:
                return None
            return TelemetryFile(self._path.name, self._raw.sha256.hexdigest(), self._rows, self._raw.size)

    def _take(self, t: float, sample: Sample) -> str:
        key = (sample.series, sample.device)
        head = self._heads.get(key)
        if head is None:
            if not (NAME.fullmatch(key[0]) and DEVICE.fullmatch(key[1]) and UNIT.fullmatch(sample.unit)):
                self._unusable += 1
                return ""
            if len(self._heads) >= SERIES_MAX:
                self._left_out += 1
                return ""
            head = self._heads[key] = f'"series":{json.dumps(key[0])},"device":{json.dumps(key[1])}'
        if sample.state is not None:
            if not NAME.fullmatch(sample.state):
                self._unusable += 1
                return ""
            if sample.series == "throttle":
                self._throttled.setdefault(sample.device, StateSeries()).add(t, sample.state, self._hold_max_s)
            return f'{{"t":{t:.2f},{head},"state":{json.dumps(sample.state)}}}\n'
        if sample.value is None:
            return ""
        value = float(sample.value)
        if not abs(value) <= NUMBER_MAX:
            self._unusable += 1
            return ""
        if key == INLET:
            self._inlet.append(value)
        return f'{{"t":{t:.2f},{head},"value":{value:.7g}}}\n'

    def _write(self, t: float, lines: list[str]) -> None:
        if self._gzip is None or self._raw is None or not lines:
            return
        try:
            self._gzip.write("".join(lines).encode())
            self._rows += len(lines)
            if abs(t - self._flushed_at) >= FLUSH_S:
                self._gzip.flush()
                self._flushed_at = t
            if self._raw.size > FILE_BYTES_MAX:
                self._end_file()
                self.notes.append(f"telemetry: the side file was ended at its limit of {FILE_BYTES_MAX} bytes")
        except OSError as error:
            self._stop_file(f"the telemetry file was cut short: {error}")

    def _end_file(self) -> None:
        try:
            if self._gzip is not None:
                self._gzip.close()
            if self._raw is not None:
                self._raw.close()
            self._gzip = None
        except OSError as error:
            self._stop_file(f"the telemetry file was cut short: {error}")

    def _stop_file(self, note: str) -> None:
        self.notes.append(note)
        self._gzip = None
        if self._raw is not None:
            self._raw.close()


class Sampler:
    """The thread that reads ``hardware.telemetry()`` every ``interval_s`` of the hardware's own clock.

    It only looks at that clock and waits in real time, so that it neither moves a simulated clock on nor depends on
    how fast one runs; it never reads more often than every 0.05 s of real time.
    """

    def __init__(self, hardware: Hardware, recorder: Recorder, interval_s: float) -> None:
        self._hardware = hardware
        self._recorder = recorder
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._reading_since: float | None = None
        self._spacing_s = interval_s
        self._last_at: float | None = None
        self._longest_s = 0.0
        self._failures = 0
        self._first_failure = ""
        self._thread = threading.Thread(target=self._loop, name="telemetry", daemon=True)

    def start(self) -> None:
        """Starts sampling."""
        self._thread.start()

    def stop(self, wait_s: float = 0.5) -> list[str]:
        """Ends sampling; a reading that hangs is not waited for longer than ``wait_s``. Returns what to note."""
        self._stop.set()
        self._thread.join(wait_s)
        notes = []
        since = self._reading_since
        if self._thread.is_alive() and since is not None:
            hung_s = time.monotonic() - since
            notes.append(f"telemetry: a sensor reading hung for the last {hung_s:.0f} s; the series end before it")
        slow_s = max(5.0, 5 * self._interval_s)
        if self._longest_s > slow_s:
            notes.append(f"telemetry: the slowest reading of the sensors took {self._longest_s:.0f} s")
        if self._failures:
            notes.append(f"telemetry: {self._failures} readings failed, the first with {self._first_failure}")
        return notes

    def _loop(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            real_start, clock_start = time.monotonic(), self._now()
            self._reading_since = real_start
            self._read()
            self._reading_since = None
            self._longest_s = max(self._longest_s, time.monotonic() - real_start)
            pause = self._pause(real_start, clock_start)

    def _read(self) -> None:
        # Errors of sensors become a note: telemetry supplements the measurements and never stops a job.
        try:
            samples = list(self._hardware.telemetry())
            at = self._hardware.clock.wall()
            if self._hardware.simulated and self._last_at is not None:
                # A simulated clock outruns the processor: how far apart its readings are says nothing about sensors.
                self._spacing_s = max(self._spacing_s, at - self._last_at)
            self._last_at = at
            self._recorder.add(at, samples, HOLD_SPACINGS * self._spacing_s)
        except Exception as error:
            self._failures += 1
            if not self._first_failure:
                self._first_failure = (f"{type(error).__name__}: {error}")[:200]

    def _now(self) -> float:
        try:
            return self._hardware.clock.now()
        except Exception:
            return time.monotonic()

    def _pause(self, real_start: float, clock_start: float) -> float:
        real_s = max(time.monotonic() - real_start, 1e-6)
        clock_s = max(self._now() - clock_start, 0.0)
        speed = max(clock_s / real_s, 1.0)
        pause = min(max((self._interval_s - clock_s) / speed, PAUSE_MIN_S), self._interval_s)
        self._spacing_s = max(self._interval_s, pause * speed)
        return pause
