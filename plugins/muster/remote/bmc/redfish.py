"""Reads fans, inlet temperatures and power supplies from a BMC through Redfish, out of band from the controller;
between tests its leak detectors and logs too.

``redfish_client`` logs in and sends the requests; ``redfish_documents`` reads what every chassis reports.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.remote.bmc import redfish_documents as documents
from muster.remote.bmc import redfish_logs
from muster.remote.bmc.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.bmc.redfish_client import BmcSilent, Client, Refused, refuse_another, without_refused
from muster.remote.bmc.redfish_documents import ROOT, Document, Found, Get, linked, paths_of
from muster_criteria.chassis import STAGES, UNITS, Chassis, reading
from muster_criteria.health.bmc import Sensor, Shown
from muster_criteria.measured import Measured
from muster_criteria.text import one_line

log = logging.getLogger(__name__)

NAME_MAX = 60
LIMIT_S, LAST_LIMIT_S = 60.0, 300.0
"""Time limits (s) for all requests: of a reading that a load or its watch waits for, and of the one after the load. A
baseboard with eight GPUs has some 200 documents, and a BMC may need half a second for one."""
CHASSIS_BYTES_MAX = 4 * 1024 * 1024
"""The limit for all documents other than logs; a baseboard with eight GPUs has less than one MiB of them."""
ANSWER_S = 10.0
"""Time limit (s) for each step of an answer of a BMC."""


def ask(
    described: Mapping[str, Any], stage: str, who: Login | None = None, *, serial: str, limit_s: float = LIMIT_S
) -> Chassis | None:
    """Returns the readings of the BMC in a node's record; None if it has no BMC or ``stage`` does not use it.

    ``who``: the BMC's login, if the caller has it; otherwise as ``read_chassis``.
    """
    if not described or stage not in STAGES:
        return None
    try:
        bmc = parse_bmc(described)
        return None if bmc is None else read_chassis(bmc, who or login(bmc), serial=serial, limit_s=limit_s)
    except BadBmc as error:
        return Chassis(trouble=str(error))
    except Exception as error:  # whatever a BMC sends may cost its own reading, but no verdict
        log.exception("a BMC cannot be read")
        return Chassis(trouble=f"the BMC could not be read: {type(error).__name__}")


def read_chassis(
    bmc: Bmc, who: Login, *, serial: str = "", timeout_s: float = ANSWER_S, limit_s: float = LIMIT_S
) -> Chassis:
    """Returns one reading of all fans, inlets and power supplies, of the machine with this serial if that is known.

    ``timeout_s`` limits each step of an answer, ``limit_s`` all answers. If an answer is missing, the other readings
    are kept and ``trouble`` says why. Raises nothing that a BMC causes.
    """
    limits = {"timeout_s": timeout_s, "limit_s": limit_s}
    client = functools.partial(Client, bmc, who, **limits, bytes_max=CHASSIS_BYTES_MAX)
    # Groups last, so that each part has its number with and without them.
    found, trouble = _walk(client, serial, (documents.of_chassis, documents.redundancy_of))
    if not found and not trouble:
        trouble = f"the BMC at {bmc.url} reports no fan, inlet or power supply"
    return Chassis(tuple(_as_devices(found)), trouble)


def read_health(
    bmc: Bmc, who: Login, *, serial: str = "", timeout_s: float = ANSWER_S, limit_s: float = LIMIT_S
) -> Shown:
    """Returns sensors and log entries; otherwise as ``read_chassis``."""
    client = functools.partial(Client, bmc, who, timeout_s=timeout_s, limit_s=limit_s)
    logs = redfish_logs.Logs()
    found, trouble = _walk(client, serial, (documents.of_chassis, documents.leaks_of), logs)
    if not (found or logs.services or trouble):
        trouble = f"the BMC at {bmc.url} shows neither a sensor nor a log"
    return Shown(tuple(_sensors(found)), tuple(logs.entries.values()), tuple(logs.read), tuple(logs.long), trouble)


def _walk(
    to_bmc: Callable[[], Client],
    serial: str,
    readers: Sequence[Callable[[Document, Get], Iterable[Found]]],
    logs: redfish_logs.Logs | None = None,
) -> tuple[list[Found], str]:
    """Returns what ``readers`` read of every chassis, and why something is missing: a document in error does not affect
    the others. Then adds to ``logs`` what the logs show.
    """
    found = list[Found]()
    refused = logs.refused if logs else []
    trouble = ""
    try:
        with to_bmc() as client:
            once = _once(client.get)
            get = without_refused(once, refused)
            client.log_in()
            refuse_another(serial, once)
            root = get(ROOT) or {}
            paths = paths_of(linked(root, "Chassis", get), get)
            for read, path in itertools.product(readers, paths):
                # Names repeat: those of one chassis keep their numbers, however many others there are.
                within = path.rstrip("/").rpartition("/")[2]
                parts = read(get(path) or {}, get)
                found.extend(dataclasses.replace(each, name=f"{within}/{each.name}") for each in parts)
            if logs:
                redfish_logs.read(root, get, logs)
    except BmcSilent as error:
        trouble = str(error)
    except Exception as error:  # whatever a BMC sends costs its own reading alone
        log.exception("a BMC cannot be read")
        trouble = f"the BMC could not be read: {type(error).__name__}"
    return found, trouble or next(iter(refused), "")


def _once(get: Get) -> Get:
    """Returns a ``get`` that fetches each document once, even one in error, however many links lead to it."""
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
