"""Reads public fault records into the planner's own terms. Forms: each reader's docstring names the record's source.

Faults of one unit that overlap or follow a return within a day are one episode (``history.episodes``).
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import lzma
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from muster.rules.idle.history import GROUPS, Faults, Units, episodes

NOT_BACK = np.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """A fleet over some time: ``hours`` long. ``family``: the prefix of the file's name."""

    name: str
    family: str
    units: Units
    faults: Faults
    hours: float


class BadRecord(ValueError):
    """A file that does not have the form of its name; says what is wrong where."""


@dataclasses.dataclass(frozen=True)
class _Fault:
    unit: int
    group: str
    at: float
    back: float
    replaced: bool = False


def read_folder(folder: Path) -> Iterator[Record]:
    """Yields the record of each file whose name begins with a known prefix. Raises BadRecord, also if there is none."""
    files = (
        [path for path in sorted(folder.iterdir()) if path.is_file() and _reader(path.name)] if folder.is_dir() else []
    )
    if not files:
        raise BadRecord(f"{folder} has no file whose name begins with {', '.join(READERS)}")
    for path in files:
        yield read(path)


def read(path: Path) -> Record:
    """Returns the record of one file. Raises BadRecord."""
    prefix = _reader(path.name)
    if prefix is None:
        raise BadRecord(f"{path.name}: the name begins with none of {', '.join(READERS)}")
    try:
        with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
            units, faults, hours = READERS[prefix](file)
    except (KeyError, ValueError, TypeError, lzma.LZMAError) as error:
        raise BadRecord(f"{path.name} is not in the form of {prefix}* records: {error!r}") from error
    return Record(path.name.split(".")[0], prefix.rstrip("-"), units, episodes(faults), hours)


def _reader(name: str) -> str | None:
    return next((prefix for prefix in READERS if name.startswith(prefix)), None)


def _faults(units: Units, found: Sequence[_Fault]) -> Faults:
    unit = np.array([each.unit for each in found], dtype=np.int64)
    replaced = np.array([each.replaced for each in found], dtype=bool)
    return Faults(
        unit, np.array([GROUPS.index(each.group) for each in found], dtype=np.int64),
        np.array([each.at for each in found], dtype=np.float64),
        np.array([each.back for each in found], dtype=np.float64),
        np.where(replaced, -1, units.part[unit]), units.place[unit], units.rack[unit],
    )  # fmt: skip


def _nodes(count: int, hours: float, start: Sequence[float] | None = None, end: Sequence[float] | None = None) -> Units:
    number = np.arange(count, dtype=np.int64)
    return Units(
        np.zeros(count) if start is None else np.array(start, dtype=np.float64),
        np.full(count, hours) if end is None else np.array(end, dtype=np.float64),
        number, number, np.full(count, -1, dtype=np.int64), np.zeros((count, 0), dtype=np.int64),
    )  # fmt: skip


SERVERS = 400
"""Of the record; those without a fault are not in the file."""
SERVER_GROUPS: tuple[tuple[str, str, str], ...] = (
    ("GPU", "Silent Data Corruption", "corruption"), ("GPU", "(Double|Single) Bit ECC", "memory"),
    ("GPU", "PCI link width|P2P Bandwidth", "links"), ("GPU", "Temperature", "cooling"), ("GPU", "", "compute"),
    ("CPU", "", "compute"), ("Stress Test Failure", "", "compute"), ("Parameter Plane Cable|NIC", "", "links"),
    ("Change", "Optical|Y-cables", "links"), ("Power Supply", "", "power"), ("Fan", "", "fans"),
    ("Motherboard|RAID|Riser", "", "board"),
)  # fmt: skip
"""Class and description (patterns), and the group; a failed stress test counts with compute, as burn-in finds it."""


def servers(file: TextIO) -> tuple[Units, Faults, float]:
    """InfiniteHBD-Trace (stepfun-ai, Apache-2.0; SIGCOMM 2025): a list of starts and ends of faults, times in days."""
    events = sorted(json.load(file), key=lambda each: float(each["event_time"]))
    numbers: dict[str, int] = {}
    open_: dict[tuple[int, str], list[float]] = {}
    found: list[_Fault] = []
    last = 24.0 * float(events[-1]["event_time"])
    for event in events:
        unit = numbers.setdefault(event["node_id"], len(numbers))
        kind, at = event["fault_type"], 24.0 * float(event["event_time"])
        key = unit, json.dumps(kind, sort_keys=True)
        if event["event_type"] == "fault_start":
            open_.setdefault(key, []).append(at)
        elif open_.get(key):
            found.append(_Fault(unit, _server_group(kind), open_[key].pop(0), at))
    found += [
        _Fault(unit, _server_group(json.loads(kind)), at, NOT_BACK)
        for (unit, kind), begun in open_.items()
        for at in begun
    ]
    units = _nodes(max(SERVERS, len(numbers)), last)
    return units, _faults(units, found), last


def _server_group(kind: Mapping[str, str]) -> str:
    for of_class, description, group in SERVER_GROUPS:
        if re.search(of_class, kind["Class"]) and re.search(description, kind["Desc"]):
            return group
    return "unknown"


TITAN_GROUPS = {"DBE": "memory", "OTB": "links"}
"""Double-bit errors; GPUs that fell off the bus."""
STAYED_H = 1.0
"""Until a GPU that failed and was not taken out serves again."""


def titan(file: TextIO) -> tuple[Units, Faults, float]:
    """olcf/TitanGPULife (Ostrouchov et al., SC '20): stays of GPUs at places, each with its last event.

    A unit is one stay. A line without ``insert`` is an event of a GPU that stayed. Labels: the lot (week and year in
    the serial number), the cage, and the lot's year by cage. Places of a rack are those of a cage of 32.
    """
    rows = list(csv.DictReader(file))
    when = {text for row in rows for text in (row["insert"], row["remove"]) if text}
    moments = {text: _hours(datetime.datetime.fromisoformat(text)) for text in when}
    zero = min(moments.values())
    stays = [row for row in rows if row["insert"]]
    lots, cages, racks, parts, places, mixed = ({} for _ in range(6))  # type: tuple[dict[Any, int], ...]

    def number(of: dict[Any, int], key: object) -> int:
        return of.setdefault(key, len(of))

    spots = [re.fullmatch(r"(c\d+-\d+)c(\d+)s\d+n\d+", row["location"]) for row in stays]
    if not all(spots):
        raise ValueError("a location is not of the form cX-YcAsBnC")
    labels = [
        (number(lots, row["SN"][3:7]), number(cages, spot[2]), number(mixed, (row["SN"][5:7], spot[2])))
        for row, spot in zip(stays, spots, strict=True)
        if spot
    ]
    units = Units(
        np.array([moments[row["insert"]] - zero for row in stays]),
        np.array([moments[row["remove"]] - zero for row in stays]),
        np.array([number(parts, row["SN"]) for row in stays], dtype=np.int64),
        np.array([number(places, row["location"]) for row in stays], dtype=np.int64),
        np.array([number(racks, (spot[1], spot[2])) for spot in spots if spot], dtype=np.int64),
        np.array(labels, dtype=np.int64),
    )  # fmt: skip
    of_part: dict[str, list[int]] = {}
    of_place: dict[str, list[int]] = {}
    for at, row in enumerate(stays):
        of_part.setdefault(row["SN"], []).append(at)
        of_place.setdefault(row["location"], []).append(at)
    found = []
    for row in rows:
        if not row["event"]:
            continue
        at = moments[row["remove"]] - zero
        here = [each for each in of_part.get(row["SN"], ()) if units.start[each] <= at <= units.end[each] + 1.0]
        if not here:
            continue
        unit, out = here[0], row["out"] == "TRUE"
        stays_on = not row["insert"] and at < units.end[unit] - 1.0
        following = of_place[row["location"]] if out and row["location"] in of_place else of_part[row["SN"]]
        later = [units.start[each] for each in following if units.start[each] >= at]
        back = at + STAYED_H if stays_on else min(later, default=NOT_BACK)
        found.append(_Fault(unit, TITAN_GROUPS[row["event"]], at, back, replaced=out and not stays_on))
    return units, _faults(units, found), float(units.end.max())


LANL_GROUPS = (
    ("cpu", "compute"), ("memory|dimm", "memory"), ("power", "power"), ("fan|heatsink|cool", "fans"),
    ("interconnect|ethernet|fib(re|er)|switch|cable|nic|san |gbic", "links"),
    ("board|back|riser|mmb|pci|module", "board"),
)  # fmt: skip
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def lanl(file: TextIO) -> tuple[Units, Faults, float]:
    """LANL LA-UR-05-7318: outages of nodes with begin, end and cause; those of hardware count."""
    rows = list(csv.DictReader(file))
    began = [_lanl_time(row["Prob Started"]) for row in rows]
    ended = [_lanl_time(row["Prob Fixed"]) for row in rows]
    known = [each for each in began if each is not None]
    zero, last = min(known), max(max(known), *(each for each in ended if each is not None))
    numbers: dict[str, int] = {}
    spans: dict[int, tuple[float, float]] = {}
    found = []
    for row, begin, end in zip(rows, began, ended, strict=True):
        unit = numbers.setdefault(row["nodenum"], len(numbers))
        start, stop = _lanl_month(row["node prod"], zero), _lanl_month(row["node decom"], last)
        spans[unit] = max(0.0, start - zero), min(last, stop) - zero
        if begin is not None and row["Hardware"].strip():
            back = begin if end is None else max(begin, end)
            found.append(_Fault(unit, _lanl_group(row["Hardware"].lower()), begin - zero, back - zero))
    of_system = max(int(row["nodes"]) for row in rows)
    usual = sorted(spans.values())[len(spans) // 2]
    nodes = [spans.get(unit, usual) for unit in range(max(of_system, len(numbers)))]
    nodes = [(start, max(stop, start + 1.0)) for start, stop in nodes]
    units = _nodes(len(nodes), last - zero, *zip(*nodes, strict=True))
    inside = [each for each in found if nodes[each.unit][0] <= each.at <= nodes[each.unit][1]]
    return units, _faults(units, inside), last - zero


def _hours(moment: datetime.datetime) -> float:
    """Hours since 1970; the records name no time zone, so clocks that were set for summer are an hour off."""
    return moment.replace(tzinfo=datetime.UTC).timestamp() / 3600.0


def _lanl_time(text: str) -> float | None:
    try:
        return _hours(datetime.datetime.strptime(text.strip(), "%m/%d/%Y %H:%M"))
    except ValueError:
        return None


def _lanl_month(text: str, otherwise: float) -> float:
    """Hours of "2-May" (May 2002) or "Dec-96"; ``otherwise`` for "current", "before tracking" and the like."""
    found = re.fullmatch(r"(?:(\d{1,2})-([A-Za-z]{3})|([A-Za-z]{3})-(\d{1,2}))", text.strip())
    month = (found[2] or found[3]).lower() if found else ""
    if not found or month not in MONTHS:
        return otherwise
    year = int(found[1] or found[4])
    return _hours(datetime.datetime(year + (1900 if year > 50 else 2000), MONTHS.index(month) + 1, 1))


def _lanl_group(hardware: str) -> str:
    return next((group for pattern, group in LANL_GROUPS if re.search(pattern, hardware)), "unknown")


READERS: Mapping[str, Callable[[TextIO], tuple[Units, Faults, float]]] = {
    "infinitehbd-": servers, "titan-": titan, "lanl-": lanl,
}  # fmt: skip
