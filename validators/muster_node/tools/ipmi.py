"""Output of ``ipmitool sdr elist all``: fans, inlet and power supplies.

A line is "name | sensor number | status | entity | reading". Entities are those of the IPMI specification (v2.0, table
43-13): 10 a power supply, 29 a fan, 55 and 64 air inlets. Vendors also put fans and inlets under the system board (7):
there a reading in RPM or a name with "fan" is a fan. Where no air inlet has a reading, a temperature named inlet,
intake or ambient is one, under the system board, the front panel (12), the chassis (23) or the external environment
(39): power supplies, PCIe slots and liquids have inlets too. Redundancy of fans or supplies that is lost is a state of
its own. What was never configured reads the same, so it warns at most; so does a supply that says nothing where its
siblings say that they are present, unless the supplies are fully redundant without it. 19 to 21 are power units,
modules and their management.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator

_NUMBER = re.compile(r"^(-?[0-9]+(?:[.,][0-9]+)?) (degrees C|RPM|Watts|percent)\b")
_FAN_NAME = re.compile(r"fan(?!.*redundan)", re.IGNORECASE)
_INLET = re.compile(r"inlet|intake|ambient", re.IGNORECASE)
_NOT_OF_THE_HALL = re.compile(
    r"(?<![a-z])(liquid|coolant|water|pcie?|nic|gpu|psu?|p/s|power ?supply)(?![a-z])", re.IGNORECASE
)
_INPUT = re.compile(r"(?<![a-z])(in|input|pin)(?![a-z])", re.IGNORECASE)
_FAILED = re.compile(r"failure detected|ac lost|input lost|out-of-range|config(uration)? error", re.IGNORECASE)
_PREDICTED = re.compile(r"predictive failure", re.IGNORECASE)
_REDUNDANCY = re.compile(r"redundancy (lost|degraded)|non-redundant", re.IGNORECASE)
_REDUNDANT = re.compile(r"fully redundant", re.IGNORECASE)
_PRESENT = re.compile(r"presence detected", re.IGNORECASE)

_STATES = {"ok": "ok", "nc": "warning", "unc": "warning", "lnc": "warning"}
_STATES.update(dict.fromkeys(("cr", "ucr", "lcr", "nr", "unr", "lnr"), "critical"))
"""By ipmitool's status: non-critical, critical and non-recoverable thresholds, upper or lower. "ns" is no reading."""

_POWER = (10, 19, 20, 21)
_POWER_NAME = re.compile(r"(?<![a-z])(psu?|pwr|power)(?![a-z])", re.IGNORECASE)
_POWER_SUPPLY, _FAN, _AIR_INLETS = 10, 29, (55, 64)
_WHOLE_MACHINE = (7, 12, 23, 39)
_LINE = re.compile(r"^(?P<name>[^|]*)\|[^|]*\|(?P<status>[^|]*)\|(?P<entity>[^|]*)\|(?P<reading>.*)$")


@dataclasses.dataclass(frozen=True)
class Reading:
    """One sensor, under the vendor's name. Neither value nor text: the BMC has no reading of the sensor."""

    metric: str
    name: str
    value: float | None = None
    text: str | None = None


@dataclasses.dataclass(frozen=True)
class _Sensor:
    name: str
    status: str
    entity: int
    reading: str

    @property
    def readable(self) -> bool:
        return self.status in _STATES

    def number(self, unit: str) -> float | None:
        found = _NUMBER.match(self.reading)
        matches = self.readable and found is not None and found.group(2) == unit
        value = float(found.group(1).replace(",", ".")) if found and matches else None
        return None if value is not None and value < 0 and unit != "degrees C" else value

    @property
    def fan(self) -> bool:
        """Under the system board, only what measures or should measure a speed: "Fans" may be a count or a state."""
        if self.entity == _FAN or self.number("RPM") is not None:
            return True
        named = _FAN_NAME.search(self.name) is not None
        return named and (not self.readable or self.number("percent") is not None)

    @property
    def group(self) -> str:
        """The metric of the state of the fans or supplies that it is about, "" for others: memory is redundant too."""
        if self.entity == _FAN or (self.entity != _POWER_SUPPLY and "fan" in self.name.lower()):
            return "fan_state"
        return "psu_state" if self.entity in _POWER or _POWER_NAME.search(self.name) else ""

    @property
    def stem(self) -> str:
        """What the sensors of one kind have in common: their name without digits."""
        return re.sub("[0-9]", "", self.name)

    @property
    def input_watts(self) -> float | None:
        """What goes into a supply."""
        return self.number("Watts") if _INPUT.search(self.name) else None

    @property
    def thermal(self) -> bool:
        """Whether it measures, or should measure, a temperature."""
        return self.number("degrees C") is not None or not self.readable

    @property
    def named_inlet(self) -> bool:
        """Whether it measures the hall's air by its name, of the machine as a whole."""
        named = _INLET.search(self.name) and not _NOT_OF_THE_HALL.search(self.name)
        return bool(named) and self.entity in _WHOLE_MACHINE


def parse_sdr(text: str) -> list[Reading]:
    """All fans, inlets and power supplies, in the order of the BMC; last, what has lost its redundancy or its input.

    Devices are numbered in this order, and a fault must not renumber them.
    """
    sensors = list(_sensors(text))
    fans = [sensor for sensor in sensors if sensor.fan and sensor.entity != _POWER_SUPPLY]
    in_percent = any(sensor.number("percent") is not None for sensor in fans)
    unknown = "fan_duty" if in_percent and not any(sensor.number("RPM") for sensor in fans) else "fan_speed"
    inlets = _inlets([sensor for sensor in sensors if sensor.thermal])
    supplies = [sensor for sensor in sensors if sensor.entity == _POWER_SUPPLY]
    inputs = {sensor.stem for sensor in supplies if sensor.input_watts is not None}
    states = {sensor.stem for sensor in supplies if _PRESENT.search(sensor.reading)} - inputs
    whole = any(sensor.group == "psu_state" and _REDUNDANT.search(sensor.reading) for sensor in sensors)
    found: list[Reading] = []
    groups: list[Reading] = []
    for sensor in sensors:
        if sensor.group and _REDUNDANCY.search(sensor.reading):
            groups.append(Reading(sensor.group, sensor.name, text="warning"))
        elif sensor.entity == _POWER_SUPPLY:
            if sensor.stem in inputs:
                found.append(Reading("psu_input_power", sensor.name, sensor.input_watts))
            of = groups if sensor.stem in inputs else found
            of.extend(_of_supply(sensor, states, None if whole else "warning"))
        elif sensor.fan:
            found.extend(_of_fan(sensor, unknown))
        elif sensor in inlets:
            found.append(Reading("inlet_temperature", sensor.name, sensor.number("degrees C")))
    return found + groups


def _inlets(sensors: list[_Sensor]) -> list[_Sensor]:
    """The air inlets by entity, or else by name: the first of them with a number, the first with a sensor if none."""
    kinds = (
        [sensor for sensor in sensors if sensor.entity in _AIR_INLETS],
        [sensor for sensor in sensors if sensor.named_inlet],
    )
    known = (kind for kind in kinds if any(sensor.number("degrees C") is not None for sensor in kind))
    return next(known, None) or kinds[0] or kinds[1]


def _sensors(text: str) -> Iterator[_Sensor]:
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match["reading"].strip().startswith("Logical FRU"):
            continue
        number = match["entity"].strip().partition(".")[0]
        entity = int(number) if number.isdigit() else -1
        yield _Sensor(match["name"].strip(), match["status"].strip().lower(), entity, match["reading"].strip())


def _of_fan(sensor: _Sensor, unknown: str) -> Iterator[Reading]:
    """``unknown``: the metric of a fan without a reading."""
    speed, duty = sensor.number("RPM"), sensor.number("percent")
    if duty is not None:
        yield Reading("fan_duty", sensor.name, duty)
    elif speed is not None:
        yield Reading("fan_speed", sensor.name, speed)
    elif not sensor.readable:
        yield Reading(unknown, sensor.name)
    else:
        return  # a discrete sensor: presence or redundancy, without a threshold
    yield Reading("fan_state", sensor.name, text=_STATES.get(sensor.status))


def _of_supply(sensor: _Sensor, states: Collection[str], silent: str | None) -> Iterator[Reading]:
    """``states``: stems of sensors of supplies' presence; ``silent``: the state of a supply that says neither that it
    is present nor what it lacks.
    """
    if _FAILED.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="critical")
    elif _PREDICTED.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="warning")
    elif _PRESENT.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="ok" if sensor.readable else None)
    elif sensor.stem in states:
        yield Reading("psu_state", sensor.name, text=silent)
