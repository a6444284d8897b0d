"""Thins a stage's telemetry for charts, in one pass and bounded memory for any input."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import math
import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from muster_criteria.measured import DEVICE_NAME
from muster_reports.model import Series

CHARTED = {
    "temperature": "°C",
    "hbm_temperature": "°C",
    "power": "W",
    "clock": "MHz",
    "fan": "%",
    "inlet_temperature": "°C",
    "utilisation": "%",
    "load": "count",
}
"""The series that are charted, with the unit of each."""

POINTS = 300
"""Points that a series keeps: about as many as a chart in a mail can show."""

DEVICES = 16
"""Devices per series that a chart can show; if there are more, only the outliers are kept."""

TRACKS = 2048
"""Largest number of series that are read; the same as ``muster_node.agent.telemetry.SERIES_MAX``."""

BYTES = 1280 * 1024**2
"""Largest number of unpacked bytes that are read of a node's file; the largest valid file has 0.9 GB."""

SPARE_BYTES, PACKED_TIMES = 64 * 1024**2, 100
"""Unpacked bytes are also limited to ``SPARE_BYTES`` plus ``PACKED_TIMES`` times the packed size: real files unpack to
10 times their size, decompression bombs to 1,000 times."""

LINE_BYTES = 1024
NUMBER_MAX = 1e18
"""Largest absolute value that is read; sums of larger values may overflow."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,79}")


class Row(NamedTuple):
    """One reading, checked; ``value``: None for a state."""

    second: float
    series: str
    device: str
    value: float | None


class _Bucket(NamedTuple):
    """Neighbouring samples of one series: their mean second and value, and the extremes, which a mean would hide."""

    second: float
    least: float
    mean: float
    greatest: float

    @classmethod
    def of(cls, parts: Sequence[_Bucket]) -> _Bucket:
        """Merge several buckets of equal numbers of samples into one."""
        seconds, least, means, greatest = zip(*parts, strict=True)
        return cls(statistics.fmean(seconds), min(least), statistics.fmean(means), max(greatest))


@dataclasses.dataclass
class _Track:
    """One series in buckets of equal numbers of samples; when they are full, neighbours merge."""

    width: int = 1
    buckets: list[_Bucket] = dataclasses.field(default_factory=list)
    pending: list[_Bucket] = dataclasses.field(default_factory=list)

    def add(self, second: float, value: float) -> None:
        if len(self.buckets) == POINTS:
            self.width *= 2
            self.buckets = self._merged(2)
        self.pending.append(_Bucket(second, value, value, value))
        if len(self.pending) == self.width:
            self._close()

    def points(self) -> tuple[list[float], list[float]]:
        """At most ``POINTS`` (seconds, values): all samples, or least, mean and greatest of each bucket, so that the
        least and the greatest of the values are those of the series.
        """
        if self.pending:
            self._close()
        step = 1 if self.width == 1 else math.ceil(len(self.buckets) / (POINTS // 3))
        drawn = [
            (round(each.second, 2), round(value, 3))
            for each in self._merged(step)
            for value in dict.fromkeys((each.least, each.mean, each.greatest))
        ]
        return [second for second, _ in drawn], [value for _, value in drawn]

    def _merged(self, count: int) -> list[_Bucket]:
        return [_Bucket.of(self.buckets[at : at + count]) for at in range(0, len(self.buckets), count)]

    def _close(self) -> None:
        self.buckets.append(_Bucket.of(self.pending))
        self.pending.clear()


def chart_series(packed: bytes) -> list[Series]:
    """The charted series of a telemetry file (gzip of JSON lines, see ``muster_node.contract.TelemetryFile``).

    Seconds count from the first charted sample. Of a truncated or partly invalid file, what can be read is charted: no
    verdict rests on charts.
    """
    tracks: dict[tuple[str, str], _Track] = {}
    origin: float | None = None
    for row in telemetry_rows(packed):
        if row.series not in CHARTED or row.value is None:
            continue
        origin = row.second if origin is None else origin
        track = tracks.get((row.series, row.device))
        if track is None and len(tracks) < TRACKS:
            track = tracks[row.series, row.device] = _Track()
        if track is not None:
            track.add(row.second - origin, row.value)
    charted = []
    for (series, device), track in sorted(_outliers(tracks).items()):
        seconds, values = track.points()
        charted.append(Series(series, device, CHARTED[series], tuple(seconds), tuple(values)))
    return charted


def to_json(charts: list[Series]) -> list[dict[str, Any]]:
    """Charts as the records keep them."""
    return [dataclasses.asdict(each) for each in charts]


def from_json(charts: list[dict[str, Any]]) -> tuple[Series, ...]:
    """Charts as reports take them."""
    return tuple(
        Series(each["series"], each["device"], each["unit"], tuple(each["seconds"]), tuple(each["values"]))
        for each in charts
    )


def telemetry_rows(packed: bytes) -> Iterator[Row]:
    """Yields the valid rows of a telemetry file; stops where the file breaks off or exceeds the limits."""
    left = min(BYTES, SPARE_BYTES + PACKED_TIMES * len(packed))
    names: dict[tuple[Any, Any], bool] = {}
    try:
        with gzip.open(io.BytesIO(packed)) as lines:
            while (line := lines.readline(LINE_BYTES)) and (left := left - len(line)) >= 0:
                if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                    continue  # a part of a longer line, whose nesting could take long to refuse
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict) and (checked := _checked(row, names)):
                    yield checked
    except (OSError, EOFError, zlib.error):
        return


def _checked(row: dict[str, Any], names: dict[tuple[Any, Any], bool]) -> Row | None:
    """The row, None if it is invalid. ``names``: {(series, device): whether it is valid}, as found so far."""
    second, series, device = _number(row.get("t")), row.get("series"), row.get("device")
    if second is None or not isinstance(series, str) or not isinstance(device, str):
        return None
    known = names.get((series, device))
    if known is None:
        known = bool(NAME.fullmatch(series) and DEVICE_NAME.fullmatch(device))
        if len(names) < TRACKS:
            names[series, device] = known
    if not known:
        return None
    return Row(second, series, device, _number(row.get("value")))


def _number(number: Any) -> float | None:
    plain = isinstance(number, (int, float)) and not isinstance(number, bool)
    return float(number) if plain and abs(number) <= NUMBER_MAX else None


def _outliers(tracks: dict[tuple[str, str], _Track]) -> dict[tuple[str, str], _Track]:
    by_series: dict[str, list[str]] = defaultdict(list)
    for series, device in tracks:
        by_series[series].append(device)
    kept: dict[tuple[str, str], _Track] = {}
    for series, devices in by_series.items():
        means = {device: statistics.fmean(tracks[series, device].points()[1]) for device in devices}
        middle = statistics.median(means.values())
        for device in sorted(devices, key=lambda each: -abs(means[each] - middle))[:DEVICES]:
            kept[series, device] = tracks[series, device]
    return kept
