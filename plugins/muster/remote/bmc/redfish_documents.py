"""What Redfish documents report of fans, inlets and power supplies. Pure: a BMC's documents are hostile input.

Older BMCs have ``Thermal`` and ``Power`` (deprecated in Redfish 2020.4), newer ones ``ThermalSubsystem`` and
``PowerSubsystem`` (DMTF DSP0268), some have both. They are read as they are, since clients refuse a whole
resource for one sensor that lacks a field (iLO 4 sends fans without ``MemberId``). A part is identified by the link
that leads to it and its place there: names and ids in a document are optional, and the document itself may be missing.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from muster.rules.identity import real_serials
from muster_criteria.text import one_line

Document = Mapping[str, Any]
Get = Callable[[str], Document | None]
"""Returns the document at a path; None if the BMC has none there."""

ROOT = "/redfish/v1/"
READING_MAX = 1e9
"""Greater than any temperature, fan speed or power in the units of Redfish; a comparison also excludes NaN."""
PARTS_MAX = 256
"""Fans, sensors or supplies of one resource, and members and pages of one collection, that are read."""
COMPLAINT_MAX = 200

INLET = "inlet_temperature"
_INLET_CONTEXT = "Intake"
_INLET_NAME = re.compile(r"inlet|intake|ambient", re.IGNORECASE)
_NOT_OF_THE_HALL = re.compile(
    r"(?<![a-z])(liquid|coolant|water|pcie?|nic|gpu|psu?|p/s|power ?supply)(?![a-z])", re.IGNORECASE
)
"""Names of parts that have an inlet of their own, and of what else may come in."""
_ELSEWHERE = frozenset({"PowerSupply", "LiquidInlet", "NetworkingDevice", "GPU"})
"""Redfish's PhysicalContext of the same."""
_NUMBER = re.compile(r"\s*[-+]?[0-9]{1,12}(\.[0-9]{0,12})?\s*")
_HEALTH = {"OK": "ok", "Warning": "warning", "Critical": "critical"}


@dataclasses.dataclass(frozen=True)
class Found:
    """One sensor. ``part``: the fan or supply that it belongs to; ``name``: the vendor's name of that part."""

    metric: str
    part: str
    name: str
    value: float | None = None
    text: str | None = None


def of_chassis(chassis: Document, get: Get) -> Iterator[Found]:
    """Yields the sensors of one chassis: the older resources', and the newer ones' of each kind that those lack."""
    older = [*_of_thermal(linked(chassis, "Thermal", get)), *_of_power(linked(chassis, "Power", get))]
    yield from (each for each in older if each.metric != INLET)
    kinds = {each.metric.partition("_")[0] for each in older}
    thermal, power = linked(chassis, "ThermalSubsystem", get), linked(chassis, "PowerSubsystem", get)
    if "fan" not in kinds:
        yield from _of_fans(_members(thermal, "Fans", get))
    inlets = [each for each in older if each.metric == INLET]
    if not _known(inlets):
        newer = list(_of_metrics(linked(thermal, "ThermalMetrics", get)))
        inlets = newer if _known(newer) else inlets or newer
    yield from inlets
    if "psu" not in kinds:
        for supply in _members(power, "PowerSupplies", get):
            metrics = linked(supply, "Metrics", get)
            yield from _of_supply(supply, _map(metrics.get("InputPowerWatts")).get("Reading"))


def leaks_of(chassis: Document, get: Get) -> Iterator[Found]:
    """Yields the leak detectors of one chassis (LeakDetector v1.0: ``DetectorState`` is a health)."""
    detection = linked(linked(chassis, "ThermalSubsystem", get), "LeakDetection", get)
    for detector in _members(detection, "LeakDetectors", get):
        state = detector.get("DetectorState")
        if _present(detector):
            text = _HEALTH.get(state) if isinstance(state, str) else None
            yield Found("leak_state", _path(detector), _name(detector), text=text)


def redundancy_of(chassis: Document, get: Get) -> Iterator[Found]:
    """Yields the groups of fans and supplies of one chassis that have a health: ok, or else a warning.

    All listed parts of a group may be well while one that the documents no longer list is gone.
    """
    for resources, keys, metric in (
        (("Thermal", "ThermalSubsystem"), ("Redundancy", "FanRedundancy"), "fan_state"),
        (("Power", "PowerSubsystem"), ("Redundancy", "PowerSupplyRedundancy"), "psu_state"),
    ):
        older, newer = (
            [
                Found(metric, f"{_path(of)}#redundancy{place}", _name(group, "Redundancy"), text=state)
                for place, group in enumerate(_maps(of.get(key)))
                if _present(group) and (state := _state(group))
            ]
            for of, key in zip((linked(chassis, resource, get) for resource in resources), keys, strict=True)
        )
        for each in older or newer:
            yield dataclasses.replace(each, text="ok" if each.text == "ok" else "warning")


def paths_of(collection: Document, get: Get) -> list[str]:
    """Returns the paths of a collection's members, of all its pages."""
    listed = (_maps(page.get("Members")) for page in itertools.islice(pages(collection, get), PARTS_MAX))
    paths = (each.get("@odata.id") for each in itertools.islice(itertools.chain.from_iterable(listed), PARTS_MAX))
    return [path for path in paths if isinstance(path, str)]


def pages(page: Document, get: Get) -> Iterator[Document]:
    """Yields a collection's pages, from the first on; ``Members@odata.nextLink`` joins them (DMTF DSP0266)."""
    seen: set[str] = set()
    while page:
        yield page
        following = page.get("Members@odata.nextLink")
        if not isinstance(following, str) or following in seen:
            return
        seen.add(following)
        page = get(following) or {}


def of_another(serial: str, get: Get) -> str:
    """Returns why a BMC is of another machine than the one with this serial; "" if it is not, or that is not known.

    A baseboard of GPUs is often a second system; a system without a real serial may be the machine.
    """
    if not serial.strip():
        return ""
    systems = [get(path) or {} for path in paths_of(linked(get(ROOT) or {}, "Systems", get), get)]
    numbers = real_serials({str(place): str(each.get("SerialNumber") or "") for place, each in enumerate(systems)})
    others = [other_machine(each, serial) if str(place) in numbers else "" for place, each in enumerate(systems)]
    return others[0] if others and all(others) else ""


def other_machine(system: Document, serial: str) -> str:
    """Returns why a BMC's system is not the one with this serial; "" if it is that one."""
    # Dell's SerialNumber is that of the board; what DMI reports, the service tag, is its SKU.
    reported = [str(system.get(name) or "").strip() for name in ("SerialNumber", "SKU")]
    if serial.strip().casefold() in (each.casefold() for each in reported):
        return ""
    return f"the BMC reports the system serial {one_line(reported[0])[:60]!r}, and the node has {serial!r}"


def _of_thermal(thermal: Document) -> Iterator[Found]:
    for place, fan in enumerate(_maps(thermal.get("Fans"))):
        part = f"{_path(thermal)}#{place}"
        if _present(fan):
            # iLO 4 has Units and CurrentReading.
            metric = "fan_duty" if fan.get("ReadingUnits", fan.get("Units")) == "Percent" else "fan_speed"
            yield Found(metric, part, _name(fan), _number(fan.get("Reading", fan.get("CurrentReading")), 0.0))
            yield Found("fan_state", part, _name(fan), text=_state(fan))
        elif _missed(fan):
            yield Found("fan_state", part, _name(fan), text=_missed(fan))
    present = [(_name(sensor), sensor) for sensor in _maps(thermal.get("Temperatures")) if _present(sensor)]
    yield from _inlets(present, "ReadingCelsius")


def _inlets(sensors: Sequence[tuple[str, Document]], key: str) -> list[Found]:
    """The sensors of the hall's air, whose reading is under ``key``: those that the BMC marks as such or, if none of
    them has a number, those with such a name.

    HPE's iLO also gives such names to the inlets of power supplies, which are behind the fans.
    """
    stated, named = list[Found](), list[Found]()
    for name, sensor in sensors:
        found = Found(INLET, "inlet", name, _number(sensor.get(key)))
        elsewhere = str(sensor.get("PhysicalContext")) in _ELSEWHERE or _NOT_OF_THE_HALL.search(name)
        if sensor.get("PhysicalContext") == _INLET_CONTEXT:
            stated.append(found)
        elif _INLET_NAME.search(name) and not elsewhere:
            named.append(found)
    return named if _known(named) and not _known(stated) else stated or named


def _known(found: Sequence[Found]) -> bool:
    return any(each.value is not None for each in found)


def _of_power(power: Document) -> Iterator[Found]:
    for place, supply in enumerate(_maps(power.get("PowerSupplies"))):
        yield from _of_supply(supply, supply.get("PowerInputWatts"), part=f"{_path(power)}#{place}")


def _of_fans(fans: Iterator[Document]) -> Iterator[Found]:
    for fan in fans:
        speed, part = _map(fan.get("SpeedPercent")), _path(fan)
        if not _present(fan):
            if missed := _missed(fan):
                yield Found("fan_state", part, _name(fan), text=missed)
            continue
        turns = _number(speed.get("SpeedRPM"), 0.0)
        if turns is None:
            yield Found("fan_duty", part, _name(fan), _number(speed.get("Reading"), 0.0))
        else:
            yield Found("fan_speed", part, _name(fan), turns)
        yield Found("fan_state", part, _name(fan), text=_state(fan))


def _of_metrics(metrics: Document) -> Iterator[Found]:
    intake = _map(_map(metrics.get("TemperatureSummaryCelsius")).get("Intake"))
    summary = [Found(INLET, "inlet", _name(intake, "Intake"), _number(intake.get("Reading")))] if intake else []
    listed = _maps(metrics.get("TemperatureReadingsCelsius"))
    inlets = _inlets([(_name(each, str(each.get("DeviceName") or "")), each) for each in listed], "Reading")
    yield from inlets if _known(inlets) and not _known(summary) else summary or inlets


def _of_supply(supply: Document, watts: object, part: str = "") -> Iterator[Found]:
    part = part or _path(supply)
    present = _present(supply)
    yield Found("psu_state", part, _name(supply), text=_state(supply) if present else _missed(supply))
    if present:
        yield Found("psu_input_power", part, _name(supply), _number(watts, 0.0))


def complaint_of(refusal: Document) -> str:
    """Returns what a BMC says of an action that it refuses: its first message (DMTF DSP0266, "Error responses"), or the
    message's name, which is all that iLO 4 gives; "" if there is none.
    """
    error = _map(refusal.get("error"))
    first = next(iter(_maps(error.get("@Message.ExtendedInfo"))), error)
    names = ("Message", "MessageId", "MessageID", "message")
    return one_line(next((said for name in names if isinstance(said := first.get(name), str)), ""))[:COMPLAINT_MAX]


def _members(resource: Document, key: str, get: Get) -> Iterator[Document]:
    for path in paths_of(linked(resource, key, get), get):
        yield _at(path, get)


def linked(resource: Document, key: str, get: Get) -> Document:
    """Returns the document that ``resource`` links to under ``key``, empty without one."""
    path = _map(resource.get(key)).get("@odata.id")
    return _at(path, get) if isinstance(path, str) else {}


def _at(path: str, get: Get) -> Document:
    """Returns the document that a link leads to, under that link: a listed part without a document is still a part."""
    return {**(get(path) or {}), "@odata.id": path}


def _map(value: object) -> Document:
    return value if isinstance(value, dict) else {}


def _maps(value: object) -> Sequence[Document]:
    listed = value if isinstance(value, list) else []
    return [each for each in listed if isinstance(each, dict)][:PARTS_MAX]


def _path(resource: Document) -> str:
    return str(resource.get("@odata.id") or "")


def _status(part: Document) -> Document:
    return _map(part.get("Status"))


def _present(part: Document) -> bool:
    return _status(part).get("State") != "Absent"


def _state(part: Document) -> str | None:
    """Returns ok, warning or critical; None if the BMC reports no health.

    A part that is present and cannot be used, which is what DMTF's schema Resource says of ``UnavailableOffline``, is
    never ok: a supply without mains is healthy in itself.
    """
    health = _status(part).get("Health")
    state = _HEALTH.get(health) if isinstance(health, str) else None
    return "warning" if state == "ok" and _status(part).get("State") == "UnavailableOffline" else state


def _missed(part: Document) -> str | None:
    """Returns warning or critical where the BMC itself complains that a part is absent; None for an empty place.

    OpenBMC of IBM's machines reports a missing supply as Critical and Absent.
    """
    state = _state(part)
    return state if not _present(part) and state != "ok" else None


def _name(part: Document, other: str = "") -> str:
    found = part.get("Name") or part.get("FanName") or part.get("MemberId") or other
    if not isinstance(found, str) or not found:
        found = _path(part).rpartition("/")[2]
    return found or "without a name"


def _number(value: object, least: float = -READING_MAX) -> float | None:
    """Returns a reading, also if the number is written as text; None if it is no number or out of range (``least``: the
    lowest of its kind).
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if least <= value <= READING_MAX else None
