"""Fans, inlet and power supplies as ipmitool tells them: its lines read, its silences said, its slowness bounded."""

from __future__ import annotations

import os

import pytest

from muster_node.hardware.seam import RealClock
from muster_node.probe import Skip
from muster_node.probes.chassis import Chassis
from muster_node.tools.ipmi import parse_sdr

# In the form in which ipmitool 1.8 writes `sdr elist all` on machines of two vendors: analogue and discrete sensors,
# headers without a fan, a supply that failed, and a system board that carries fans and inlet.
DELL = """\
Inlet Temp       | 04h | ok  |  7.1 | 22 degrees C
Exhaust Temp     | 01h | ok  |  7.1 | 35 degrees C
Temp             | 0Eh | ok  |  3.1 | 45 degrees C
Fan1A RPM        | 30h | ok  |  7.1 | 8520 RPM
Fan1B RPM        | 31h | lcr |  7.1 | 240 RPM
Fan Redundancy   | 78h | ok  |  7.1 | Fully Redundant
Pwr Consumption  | 77h | ok  |  7.1 | 154 Watts
PS1 Status       | C8h | ok  | 10.1 | Presence detected
PS2 Status       | C9h | ok  | 10.2 | Presence detected, Failure detected, Power Supply AC lost
Voltage 1        | 6Ch | ok  | 10.1 | 230 Volts
"""
SUPERMICRO = """\
FAN1             | 41h | ok  | 29.1 | 11200 RPM
FAN2             | 42h | ns  | 29.2 | No Reading
FAN3             | 43h | lnc | 29.3 | 500 RPM
FAN_PWM          | 44h | ok  | 29.4 | 62.5 percent
Air In           | 50h | ns  | 55.1 | Disabled
PSU1 PIN         | 60h | ok  | 10.1 | 912 Watts
PSU1 POUT        | 61h | ok  | 10.1 | 840 Watts
PSU1 Status      | 62h | ok  | 10.1 | Presence detected
PSU2 Status      | 63h | ok  | 10.2 | Presence detected, Predictive failure
a line | that is | none
"""


class Machine:
    """A machine with a BMC of its own."""

    simulated = False
    clock = RealClock()


@pytest.fixture
def ipmitool(tmp_path, monkeypatch):
    """``ipmitool(says)`` puts a program of that name on the PATH; ``script`` is what it runs instead of telling."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(says="", script=""):
        (folder / "says").write_text(says)
        (folder / "ipmitool").write_text(f"#!/bin/sh\n{script or f'exec cat {folder}/says'}\n")
        (folder / "ipmitool").chmod(0o755)

    return make


def told(run):
    return {(each.metric, each.device): each.value if each.text is None else each.text for each in run}


def test_fans_and_inlet_on_the_system_board_and_a_supply_that_failed(run_probe, ipmitool):
    ipmitool(DELL)
    run = run_probe(Chassis, Machine())
    assert told(run) == {
        ("inlet_temperature", "inlet"): 22.0,
        ("fan_speed", "fan0"): 8520.0, ("fan_state", "fan0"): "ok",
        ("fan_speed", "fan1"): 240.0, ("fan_state", "fan1"): "critical",
        ("psu_state", "psu0"): "ok", ("psu_state", "psu1"): "critical",
    }  # fmt: skip
    assert {each.labels["source"] for each in run} == {"ipmi"}
    assert run.one("psu_state", "psu1").note == "PS2 Status"


def test_a_sensor_without_a_reading_is_not_supported_and_never_zero(run_probe, ipmitool):
    ipmitool(SUPERMICRO)
    run = run_probe(Chassis, Machine())
    silent = {(each.metric, each.device) for each in run if each.value is None and each.text is None}
    assert silent == {("fan_speed", "fan1"), ("fan_state", "fan1"), ("inlet_temperature", "inlet")}
    assert all("not supported" in run.one(metric, device).note for metric, device in silent)
    assert told(run)["fan_state", "fan2"] == "warning"
    assert told(run)["fan_duty", "fan3"] == 62.5
    assert told(run)["psu_input_power", "psu0"] == 912.0, "what goes in, not what comes out"
    assert told(run)["psu_state", "psu1"] == "warning"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("PS 1 | 32h | ok | 10.1 | 25 Watts, Presence detected", "ok"),
        ("PS 1 | 32h | ok | 10.1 | Presence detected, Config Error", "critical"),
        ("PS 1 | 32h | ns | 10.1 | Presence detected", None),
    ],
)
def test_a_supply_says_how_it_is(line, state):
    (found,) = parse_sdr(line)
    assert (found.metric, found.text, found.value) == ("psu_state", state, None)


def test_where_no_bmc_answers_the_probe_is_skipped_with_ipmitools_own_word(run_probe, ipmitool):
    ipmitool(script="echo 'Could not open device at /dev/ipmi0: No such file or directory' >&2; exit 1")
    with pytest.raises(Skip, match="no BMC answers ipmitool here: Could not open device"):
        run_probe(Chassis, Machine())
    ipmitool("System Board | 01h | ok | 7.1 | Present\n")
    with pytest.raises(Skip, match="tells of no fan, inlet or power supply"):
        run_probe(Chassis, Machine())


def test_a_bmc_that_hangs_is_ended_and_said(run_probe, ipmitool):
    ipmitool(script="exec sleep 60")
    with pytest.raises(RuntimeError, match=r"did not end within 0\.5 s"):
        run_probe(Chassis, Machine(), limit_s=0.5)


def test_a_simulated_machine_has_no_bmc_to_ask(run_probe, ipmitool):
    ipmitool(DELL)
    machine = Machine()
    machine.simulated = True
    with pytest.raises(Skip, match="simulated"):
        run_probe(Chassis, machine)
