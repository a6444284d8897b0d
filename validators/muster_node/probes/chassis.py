"""Fans, inlet temperature and power supplies, as the machine's BMC reports them in band (ipmitool).

The controller adds the same readings out of band (Redfish) where a node's BMC is configured, under this probe's name;
the label ``source`` distinguishes them. Run it straight after a load, while fans are fast.
"""

from __future__ import annotations

import collections
import os

from muster_node import privilege
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.ipmi import Reading, parse_sdr
from muster_node.tools.run import ToolRun, real_only, run_tool

SOURCE = {"source": "ipmi"}
KINDS = {"fan_speed": "fan", "fan_duty": "fan", "fan_state": "fan", "psu_state": "psu", "psu_input_power": "psu"}


class Chassis(Probe):
    """Cooling and power supply of the chassis."""

    name = "chassis"
    stage = "thermal"
    doc = "Fans, inlet temperature and power supplies, by ipmitool"
    loads = False
    params = {"limit_s": Param(60.0, "seconds that ipmitool may take: some BMCs need one for each sensor")}
    metrics = {
        "fan_speed": Metric("RPM", "speed of a fan"),
        "fan_duty": Metric("%", "speed of a fan, where the BMC reports only a share of full speed"),
        "fan_state": Metric("text", "the BMC's state of a fan: ok, warning or critical"),
        "inlet_temperature": Metric("°C", "hottest inlet"),
        "psu_state": Metric("text", "the BMC's state of a power supply: ok, warning, critical or lost"),
        "psu_input_power": Metric("W", "power that a power supply draws"),
    }
    needs = ("tool:ipmitool",)

    def run(self, context: Context) -> None:
        """Read all sensors once. Raises Skip where no BMC answers, RuntimeError where ipmitool does not end.

        ipmitool prints what it reads and ends with an error if one record cannot be read (``ipmi_sdr_print_sdr`` of its
        ipmi_sdr.c), which some boards always have. What it prints counts, and the list is known to be incomplete: the
        reason is in the report, and a sensor that the SKU promises is missing for it.
        """
        real_only(context)
        done = _run(context)
        readings = parse_sdr(done.out)
        if done.status and not readings:
            raise Skip(f"no BMC answers ipmitool here: {done.last_line()}")
        if not readings:
            raise Skip("the BMC has no sensor of a fan, an inlet or a power supply")
        _emit_inlet(context, [each for each in readings if each.metric == "inlet_temperature"])
        for each, device in _numbered([each for each in readings if each.metric in KINDS]):
            readable = each.value is not None or each.text is not None
            note = each.name if readable else f"{each.name}: not supported (the BMC has no reading of it)"
            context.emit(each.metric, device, value=each.value, text=each.text, labels=SOURCE, note=note)
        if done.status:
            raise Skip(f"ipmitool ended with status {done.status}, so sensors may be missing: {done.last_line()}")


def _run(context: Context) -> ToolRun:
    limit_s = context.params["limit_s"]
    done = run_tool(context, privilege.IPMITOOL, limit_s)
    if done.status and not parse_sdr(done.out) and os.geteuid() != 0:  # /dev/ipmi0 belongs to root
        done = run_tool(context, privilege.as_root(privilege.IPMITOOL), limit_s)
    if done.status is None:
        raise RuntimeError(f"ipmitool did not end within {limit_s:g} s")
    return done


def _emit_inlet(context: Context, inlets: list[Reading]) -> None:
    known = [each for each in inlets if each.value is not None]
    names = ", ".join(each.name for each in known or inlets)
    if known:
        hottest = max(each.value for each in known if each.value is not None)
        context.emit("inlet_temperature", "inlet", value=hottest, labels=SOURCE, samples=len(known), note=names)
    elif inlets:
        context.emit("inlet_temperature", "inlet", labels=SOURCE, note=f"{names}: not supported")


def _numbered(readings: list[Reading]) -> list[tuple[Reading, str]]:
    """Each reading with its device. Fans and supplies are numbered in the BMC's order; a fan's state comes last."""
    numbers: dict[str, int] = collections.defaultdict(int)
    found = []
    for each in readings:
        kind = KINDS[each.metric]
        counted = "fan_state" if kind == "fan" else each.metric
        found.append((each, f"{kind}{numbers[counted]}"))
        if each.metric == counted:
            numbers[counted] += 1
    return found
