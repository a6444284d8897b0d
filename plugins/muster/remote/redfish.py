"""Reads fans, inlet temperatures and power supplies from a BMC through Redfish, out of band from the controller;
between tests its leak detectors and logs too.

``redfish_client`` logs in and sends the requests; ``redfish_documents`` reads what every chassis reports.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from muster.remote import redfish_logs
from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.redfish_client import ROOT, BmcSilent, Client, Refused, without_refused
from muster.remote.redfish_documents import Document, Found, Get, leaks_of, linked, of_chassis, paths_of, redundancy_of
from muster_criteria.chassis import STAGES, UNITS, Chassis, reading
from muster_criteria.health.bmc import Sensor, Shown
from muster_criteria.measured import Measured
from muster_criteria.text import one_line

log = logging.getLogger(__name__)

CHASSIS_MAX = 256
NAME_MAX = 60
LIMIT_S = 60.0
"""Time limit (s) for all requests: a baseboard with eight GPUs lists some thirty chassis."""
ANSWER_S = 10.0
"""Time limit (s) for each step of an answer of a BMC."""


def ask(described: Mapping[str, Any], stage: str, who: Login | None = None) -> Chassis | None:
    """Returns the readings of the BMC in a node's record; None if it has no BMC or ``stage`` does not use it.

    ``who``: the BMC's login, if the caller has it. Does not raise: the result holds the reason for a failure.
    """
    if not described or stage not in STAGES:
        return None
    try:
        bmc = parse_bmc(described)
        if bmc is None:
            return None
        return Chassis(tuple(read_chassis(bmc, who or login(bmc), timeout_s=ANSWER_S)))
    except (BadBmc, BmcSilent) as error:
        return Chassis(trouble=str(error))
    except Exception as error:  # whatever a BMC sends costs its own reading alone, and no verdict
        log.exception("a BMC cannot be read")
        return Chassis(trouble=f"the BMC could not be read: {type(error).__name__}")


def read_chassis(bmc: Bmc, who: Login, *, timeout_s: float, limit_s: float = LIMIT_S) -> list[Measured]:
    """Returns one reading of all fans, inlets and power supplies.

    ``timeout_s`` limits each step of an answer, ``limit_s`` all answers. Raises BmcSilent.
    """
    with Client(bmc, who, timeout_s=timeout_s, limit_s=limit_s) as client:
        get = _once(client.get)
        client.log_in()
        listed = linked(get(ROOT) or {}, "Chassis", get)
        chassis = [get(path) or {} for path in paths_of(listed)[:CHASSIS_MAX]]
        # Groups last, so that each part has its number with and without them.
        measured = _as_devices(
            [found for of in (of_chassis, redundancy_of) for member in chassis for found in of(member, get)]
        )
    if not measured:
        raise BmcSilent(f"the BMC at {bmc.url} reports no fan, inlet or power supply")
    return measured


def read_health(bmc: Bmc, who: Login, *, timeout_s: float = ANSWER_S, limit_s: float = LIMIT_S) -> Shown:
    """Returns sensors and log entries. What was read stays, where another answer is missing: ``trouble`` says why.

    Raises nothing that a BMC causes.
    """
    found: list[Found] = []
    refused: list[str] = []
    logs = redfish_logs.Logs(refused)
    trouble, chassis = "", []
    try:
        with Client(bmc, who, timeout_s=timeout_s, limit_s=limit_s) as client:
            get = _once(client.get)
            client.log_in()
            root = get(ROOT) or {}
            try:
                chassis = paths_of(linked(root, "Chassis", get))[:CHASSIS_MAX]
                for path in chassis:
                    member = get(path) or {}
                    found += [*of_chassis(member, get), *leaks_of(member, get)]
            except Refused as error:
                # Parts of one name are numbered in their order: those behind what is missing would have wrong numbers.
                refused.append(str(error))
            redfish_logs.read(root, without_refused(get, refused), logs)
        if not (chassis or logs.services or refused):
            trouble = f"the BMC at {bmc.url} lists neither a chassis nor a log"
    except BmcSilent as error:
        trouble = str(error)
    except Exception as error:  # whatever a BMC sends costs its own reading alone
        log.exception("the BMC at %s cannot be read", bmc.url)
        trouble = f"the BMC at {bmc.url} could not be read: {type(error).__name__}"
    trouble = trouble or next(iter(refused), "")
    return Shown(tuple(_sensors(found)), tuple(logs.entries.values()), tuple(logs.read), tuple(logs.long), trouble)


def _once(get: Get) -> Get:
    """A document is fetched once, however many links lead to it, also one in error."""
    known: dict[str, Document | Refused | None] = {}

    def found(path: str) -> Document | None:
        if path not in known:
            try:
                known[path] = get(path)
            except Refused as error:
                known[path] = error
        if isinstance(document := known[path], Refused):
            raise document
        return document

    return found


def _sensors(found: Sequence[Found]) -> list[Sensor]:
    """Returns the readings of one part as one sensor with the vendor's name, the second of a name as "Fan 1 #2"."""
    parts: dict[tuple[str, str], dict[str, Found]] = {}
    for each in found:
        parts.setdefault((each.metric.partition("_")[0], each.part), {})[each.metric] = each
    sensors: list[Sensor] = []
    names = collections.Counter[str]()
    for (kind, _), of_part in parts.items():
        name = f"{kind} {one_line(next(iter(of_part.values())).name)[:NAME_MAX]}"
        names[name] += 1
        device = name if names[name] == 1 else f"{name} #{names[name]}"
        state = next((each.text for each in of_part.values() if each.metric.endswith("_state")), None)
        if kind == "psu":
            # An empty bay has no power, not even an unknown one.
            sensors.append(Sensor("psu", device, state if "psu_input_power" in of_part else "absent"))
        elif kind == "leak":
            sensors.append(Sensor("leak", device, state))
        elif kind == "fan" and (speed := of_part.get("fan_speed") or of_part.get("fan_duty")):
            sensors.append(Sensor("fan", device, state, speed.value, UNITS[speed.metric]))
    inlets = [each.value for each in found if each.metric == "inlet_temperature" and each.value is not None]
    return [*sensors, Sensor("inlet", "inlet", value=max(inlets), unit="°C")] if inlets else sensors


def _as_devices(found: list[Found]) -> list[Measured]:
    """Returns measurements: fans and supplies numbered in the BMC's order, the highest inlet temperature as "inlet"."""
    numbers: dict[str, dict[str, int]] = {"fan": {}, "psu": {}}
    measured = []
    for each in found:
        kind = each.metric.partition("_")[0]
        if kind in numbers:
            device = f"{kind}{numbers[kind].setdefault(each.part, len(numbers[kind]))}"
            measured.append(reading(each.metric, device, each.value, each.text, each.name))
    inlets = [each for each in found if each.metric == "inlet_temperature"]
    if inlets:
        hottest = max(inlets, key=lambda each: float("-inf") if each.value is None else each.value)
        measured.append(reading("inlet_temperature", "inlet", hottest.value, None, hottest.name))
    return measured
