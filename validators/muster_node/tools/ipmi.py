"""What ``ipmitool sdr elist`` says of fans, inlet and power supplies: text in, readings out. Tested by its own output.

A line is "name | sensor number | status | entity | reading". Entities are those of the IPMI specification (v2.0, table
43-13): 10 a power supply, 29 a fan, 55 and 64 air inlets; vendors also put fans and inlets under the system board, so a
reading in RPM is a fan, and a temperature whose name says inlet, intake or ambient is the air that comes in.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterator, List, Optional

_NUMBER = re.compile(r"^(-?[0-9]+(?:\.[0-9]+)?) (degrees C|RPM|Watts|percent)\b")
_INLET = re.compile(r"inlet|intake|ambient", re.IGNORECASE)
_INPUT = re.compile(r"(?<![a-z])(in|input|pin)(?![a-z])", re.IGNORECASE)
_FAILED = re.compile(r"failure detected|ac lost|input lost|out-of-range|config(uration)? error", re.IGNORECASE)
_PREDICTED = re.compile(r"predictive failure", re.IGNORECASE)
_PRESENT = re.compile(r"presence detected", re.IGNORECASE)

_STATES = {"ok": "ok", "nc": "warning", "unc": "warning", "lnc": "warning"}
_STATES.update(dict.fromkeys(("cr", "ucr", "lcr", "nr", "unr", "lnr"), "critical"))
"""What ipmitool's status column amounts to: non-critical, critical and non-recoverable thresholds, upper or lower."""

_POWER_SUPPLY, _FAN, _AIR_INLETS = 10, 29, (55, 64)
_LINE = re.compile(r"^(?P<name>[^|]*)\|[^|]*\|(?P<status>[^|]*)\|(?P<entity>[^|]*)\|(?P<reading>.*)$")


@dataclasses.dataclass(frozen=True)
class Reading:
    """One sensor. ``name`` is the vendor's; without value and text, the BMC has the sensor, but no reading of it."""

    metric: str
    name: str
    value: Optional[float] = None
    text: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _Sensor:
    name: str
    status: str
    entity: int
    reading: str

    @property
    def readable(self) -> bool:
        return self.status in _STATES

    def number(self, unit: str) -> Optional[float]:
        found = _NUMBER.match(self.reading)
        return float(found.group(1)) if self.readable and found and found.group(2) == unit else None


def parse_sdr(text: str) -> List[Reading]:
    """All fans, inlets and power supplies, in the order in which the BMC lists them."""
    found: List[Reading] = []
    for sensor in _sensors(text):
        if sensor.entity == _POWER_SUPPLY:
            found.extend(_of_supply(sensor))
        elif sensor.entity == _FAN or sensor.number("RPM") is not None:
            found.extend(_of_fan(sensor))
        elif sensor.entity in _AIR_INLETS or _INLET.search(sensor.name):
            found.extend(_of_inlet(sensor))
    return found


def _sensors(text: str) -> Iterator[_Sensor]:
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        number = match["entity"].strip().partition(".")[0]
        entity = int(number) if number.isdigit() else -1
        yield _Sensor(match["name"].strip(), match["status"].strip().lower(), entity, match["reading"].strip())


def _of_fan(sensor: _Sensor) -> Iterator[Reading]:
    speed, duty = sensor.number("RPM"), sensor.number("percent")
    if duty is not None:
        yield Reading("fan_duty", sensor.name, duty)
    elif speed is not None or not sensor.readable:
        yield Reading("fan_speed", sensor.name, speed)
    else:
        return  # a discrete sensor: presence or redundancy, which no threshold stands behind
    yield Reading("fan_state", sensor.name, text=_STATES.get(sensor.status))


def _of_inlet(sensor: _Sensor) -> Iterator[Reading]:
    celsius = sensor.number("degrees C")
    if celsius is not None or not sensor.readable:
        yield Reading("inlet_temperature", sensor.name, celsius)


def _of_supply(sensor: _Sensor) -> Iterator[Reading]:
    watts = sensor.number("Watts")
    if watts is not None and _INPUT.search(sensor.name):
        yield Reading("psu_input_power", sensor.name, watts)
    elif _FAILED.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="critical")
    elif _PREDICTED.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="warning")
    elif _PRESENT.search(sensor.reading):
        yield Reading("psu_state", sensor.name, text="ok" if sensor.readable else None)
