"""Reads fans, inlet temperatures and power supplies from a BMC through Redfish, out of band from the controller.

OpenStack's client (sushy) logs in and sends the requests; ``redfish_documents`` reads what every chassis reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.errors import MusterError
from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.redfish_documents import Document, Found, of_chassis, paths_of
from muster.remote.redfish_limits import Exchange, LimitedAdapter
from muster_criteria.chassis import STAGES, Chassis, reading
from muster_criteria.measured import Measured

CHASSIS_MAX = 256
LIMIT_S = 60.0
"""Time limit (s) for all requests: a baseboard with eight GPUs lists some thirty chassis."""
ANSWER_S = 10.0
"""Time limit (s) for one answer of a BMC."""

INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What the client raises on documents of the wrong form, which it does not check."""


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
        return Chassis(tuple(read_chassis(bmc, who or login(bmc), timeout_s=ANSWER_S)))
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
        raise BmcSilent(f"the BMC at {bmc.url} reports no fan, inlet or power supply")
    return measured


def _read(bmc: Bmc, who: Login, exchange: Exchange, timeout_s: float) -> list[Found]:
    import sushy
    from sushy import auth, connector
    from sushy.exceptions import ResourceNotFoundError

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

    def get(path: str) -> Document | None:
        """The document at a path; None if there is none, as of drive bays and GPU boards that a BMC lists and lacks."""
        try:
            document = client.get(path).json()
        except ResourceNotFoundError:
            return None
        return document if isinstance(document, dict) else None

    try:
        listed = get(root.get_chassis_collection().path) or {}
        chassis = [get(path) or {} for path in paths_of(listed)[:CHASSIS_MAX]]
        return [found for member in chassis for found in of_chassis(member, get)]
    finally:
        session.close()


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


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
