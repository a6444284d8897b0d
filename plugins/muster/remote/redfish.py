"""A BMC asked through Redfish for fans, incoming air and power supplies: out of band, so from the controller.

By OpenStack's client. It reads the Thermal and Power resources of every chassis that the BMC lists; one that offers
only the newer ThermalSubsystem and PowerSubsystem tells nothing here, and that is said.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.errors import MusterError
from muster.judging.chassis import STAGES, Chassis, reading
from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.settings import settings
from muster_criteria.measured import Measured

if TYPE_CHECKING:
    from sushy.resources.chassis.chassis import Chassis as ChassisResource

LIMIT_S = 60.0
"""How long all of it may take: a baseboard with eight GPUs lists some thirty chassis."""

_INLET_CONTEXT = "Intake"
_INLET_NAME = re.compile(r"inlet|intake|ambient", re.IGNORECASE)


class BmcSilent(MusterError):
    """The BMC was not to be read; the message is one sentence that says why."""


def ask(described: Mapping[str, Any], stage: str, who: Login | None = None) -> Chassis | None:
    """What the node's BMC, ``described`` as in its record, tells in ``stage``; None where it has none, or need not.

    ``who``: its login, where the caller has it already. Never raises: why it did not tell is part of the answer.
    """
    if not described or stage not in STAGES:
        return None
    try:
        bmc = parse_bmc(described)
        if bmc is None:
            return None
        return Chassis(tuple(read_chassis(bmc, who or login(bmc), timeout_s=settings().bmc_timeout_s)))
    except (BadBmc, BmcSilent) as error:
        return Chassis(trouble=str(error))


def read_chassis(bmc: Bmc, who: Login, *, timeout_s: float, limit_s: float = LIMIT_S) -> list[Measured]:
    """One reading of all its fans, inlets and power supplies.

    ``timeout_s`` bounds each of its answers, ``limit_s`` all of them. Raises BmcSilent.
    """
    import sushy
    from sushy import auth
    from sushy.exceptions import SushyError

    until = time.monotonic() + limit_s
    session = (auth.SessionOrBasicAuth if who.user else auth.BasicAuth)(who.user, who.password)
    try:
        root = sushy.Sushy(
            bmc.url,
            verify=bmc.verify,
            auth=session,
            server_side_retries=1,
            server_side_retries_delay=1,
            read_timeout=timeout_s,
            connect_timeout=timeout_s,
        )
        try:
            found = [each for chassis in _chassis(root, until, bmc) for each in _of_chassis(chassis)]
        finally:
            session.close()
    except SushyError as error:
        raise BmcSilent(f"the BMC at {bmc.url} was not to be read: {_said(error)}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # the client takes documents as they come
        raise BmcSilent(f"the BMC at {bmc.url} answers what Redfish does not know: {_said(error)}") from None
    if not found:
        raise BmcSilent(f"the BMC at {bmc.url} tells of no fan, inlet or power supply (Thermal and Power resources)")
    return _as_devices(found)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


def _chassis(root: Any, until: float, bmc: Bmc) -> Iterator[ChassisResource]:
    collection = root.get_chassis_collection()
    for path in collection.members_identities:
        if time.monotonic() > until:
            raise BmcSilent(f"the BMC at {bmc.url} takes too long to answer")
        yield collection.get_member(path)


@dataclasses.dataclass(frozen=True)
class _Found:
    """One sensor. ``part``: which fan or supply it is of; ``name``: what the vendor calls that."""

    metric: str
    part: str
    name: str
    value: float | None = None
    text: str | None = None


def _of_chassis(chassis: ChassisResource) -> Iterator[_Found]:
    from sushy.exceptions import MissingAttributeError

    try:
        thermal = chassis.thermal
    except MissingAttributeError:  # it has no such resource: a drive bay, a GPU board
        thermal = None
    if thermal is not None:
        for place, fan in enumerate(thermal.fans):
            yield from _of_fan(fan, f"{thermal.path}#{place}")
        for sensor in thermal.temperatures:
            named = _INLET_NAME.search(sensor.name or "")
            if _present(sensor) and (sensor.physical_context == _INLET_CONTEXT or named):
                yield _Found("inlet_temperature", "inlet", _name(sensor), _number(sensor.reading_celsius))
    try:
        power = chassis.power
    except MissingAttributeError:
        return
    # The client has no field for the power that goes in, so that is taken from the document itself.
    documents = power.json.get("PowerSupplies") or ()
    for place, (supply, document) in enumerate(zip(power.power_supplies, documents, strict=True)):
        part = f"{power.path}#{place}"
        yield _Found("psu_state", part, _name(supply), text=_state(supply))
        if _present(supply):
            yield _Found("psu_input_power", part, _name(supply), _number(document.get("PowerInputWatts")))


def _of_fan(fan: Any, part: str) -> Iterator[_Found]:
    from sushy.resources.chassis.thermal.constants import FanReadingUnit

    if not _present(fan):
        return
    metric = "fan_duty" if fan.reading_units is FanReadingUnit.PERCENT else "fan_speed"
    yield _Found(metric, part, _name(fan), _number(fan.reading))
    yield _Found("fan_state", part, _name(fan), text=_state(fan))


def _present(part: Any) -> bool:
    from sushy.resources.constants import State

    return part.status is None or part.status.state is not State.ABSENT


def _state(part: Any) -> str | None:
    """ok, warning or critical; None where the BMC does not say, or where the bay is empty."""
    health = part.status.health if part.status is not None and _present(part) else None
    return None if health is None else str(health.value).lower()


def _name(part: Any) -> str:
    return str(part.name or part.identity or "without a name")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _as_devices(found: list[_Found]) -> list[Measured]:
    """As measurements: fans and supplies numbered as the BMC lists them, the hottest of the air as "inlet"."""
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
