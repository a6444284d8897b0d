"""Reads fans, inlet temperatures and power supplies from a BMC through Redfish, out of band from the controller.

``redfish_client`` logs in and sends the requests; ``redfish_documents`` reads what every chassis reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.redfish_client import ROOT, BmcSilent, Client
from muster.remote.redfish_documents import Found, linked, of_chassis, paths_of
from muster_criteria.chassis import STAGES, Chassis, reading
from muster_criteria.measured import Measured

CHASSIS_MAX = 256
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


def read_chassis(bmc: Bmc, who: Login, *, timeout_s: float, limit_s: float = LIMIT_S) -> list[Measured]:
    """Returns one reading of all fans, inlets and power supplies.

    ``timeout_s`` limits each step of an answer, ``limit_s`` all answers. Raises BmcSilent.
    """
    with Client(bmc, who, timeout_s=timeout_s, limit_s=limit_s) as client:
        client.log_in()
        listed = linked(client.get(ROOT) or {}, "Chassis", client.get)
        chassis = [client.get(path) or {} for path in paths_of(listed)[:CHASSIS_MAX]]
        measured = _as_devices([found for member in chassis for found in of_chassis(member, client.get)])
    if not measured:
        raise BmcSilent(f"the BMC at {bmc.url} reports no fan, inlet or power supply")
    return measured


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
