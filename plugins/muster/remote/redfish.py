"""Reads fans, inlet temperatures and power supplies from a BMC through Redfish, out of band from the controller.

Uses OpenStack's client (sushy), which reads the Thermal and Power resources of every chassis that the BMC lists. A BMC
with only the newer ThermalSubsystem and PowerSubsystem has no readings here; that is reported as the reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from muster.errors import MusterError
from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.redfish_limits import Exchange, LimitedAdapter
from muster.settings import settings
from muster_criteria.chassis import STAGES, Chassis, reading
from muster_criteria.measured import Measured

if TYPE_CHECKING:
    from sushy.resources.chassis.chassis import Chassis as ChassisResource

LIMIT_S = 60.0
"""Time limit (s) for all requests: a baseboard with eight GPUs lists some thirty chassis."""

_INLET_CONTEXT = "Intake"
_INLET_NAME = re.compile(r"inlet|intake|ambient", re.IGNORECASE)


INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the client raises on documents of the wrong form, which it does not check."""

READING_MAX = 1e9
"""Beyond any temperature, fan speed or power in the units of Redfish; NaN is not below it either."""


class BmcSilent(MusterError):
    """The BMC could not be read; the message is one sentence with the reason."""


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
        return Chassis(tuple(read_chassis(bmc, who or login(bmc), timeout_s=settings().bmc_timeout_s)))
    except (BadBmc, BmcSilent) as error:
        return Chassis(trouble=str(error))


def read_chassis(bmc: Bmc, who: Login, *, timeout_s: float, limit_s: float = LIMIT_S) -> list[Measured]:
    """Returns one reading of all fans, inlets and power supplies.

    ``timeout_s`` limits each response, ``limit_s`` all of them, ``EXCHANGE_BYTES_MAX`` their size in bytes. Raises
    BmcSilent.
    """
    from sushy.exceptions import SushyError

    with Exchange(bmc.url, limit_s) as exchange:
        try:
            measured = _as_devices(_read(bmc, who, exchange, timeout_s))
        except SushyError as error:
            why = "it takes too long or sends too much" if exchange.over else _text(error)
            raise BmcSilent(f"the BMC at {bmc.url} could not be read: {why}") from None
        except INVALID as error:
            raise BmcSilent(f"the BMC at {bmc.url} sends an invalid Redfish document: {_text(error)}") from None
    if not measured:
        raise BmcSilent(f"the BMC at {bmc.url} reports no fan, inlet or power supply (Thermal and Power resources)")
    return measured


def _read(bmc: Bmc, who: Login, exchange: Exchange, timeout_s: float) -> list[_Found]:
    import sushy
    from sushy import auth, connector

    client = connector.Connector(
        bmc.url,
        verify=bmc.verify,
        server_side_retries=1,
        server_side_retries_delay=1,
        default_request_timeout=timeout_s,
        connect_timeout=timeout_s,
    )
    for scheme in ("http://", "https://"):
        client._session.mount(scheme, LimitedAdapter(exchange))
    session = (auth.SessionOrBasicAuth if who.user else auth.BasicAuth)(who.user, who.password)
    root = sushy.Sushy(bmc.url, auth=session, connector=client)
    try:
        collection = root.get_chassis_collection()
        chassis = [collection.get_member(path) for path in collection.members_identities]
        return [found for member in chassis for found in _of_chassis(member)]
    finally:
        session.close()


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


@dataclasses.dataclass(frozen=True)
class _Found:
    """One sensor. ``part``: the fan or supply that it belongs to; ``name``: the vendor's name of that part."""

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
    # The client has no field for the input power, so it is read from the document itself.
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
    """Returns ok, warning or critical; None if the BMC reports no health or the bay is empty."""
    health = part.status.health if part.status is not None and _present(part) else None
    return None if health is None else str(health.value).lower()


def _name(part: Any) -> str:
    return str(part.name or part.identity or "without a name")


def _number(value: Any) -> float | None:
    """Returns a reading; None if it is no number, or one that no sensor has."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= READING_MAX
    return float(value) if plain else None


def _as_devices(found: list[_Found]) -> list[Measured]:
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
