"""Fans, inlet and power supplies by ipmitool: devices are numbered, missing readings reported, its time is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from muster_node.hardware.seam import RealClock
from muster_node.probe import Skip
from muster_node.probes.chassis import Chassis

DATA = Path(__file__).parent / "data" / "ipmi"


def recorded(name):
    return yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))["output"]


class Machine:
    """A machine with a BMC of its own."""

    simulated = False
    clock = RealClock()


@pytest.fixture
def ipmitool(tmp_path, monkeypatch):
    """``ipmitool(output)`` puts a program of that name, which prints ``output`` or runs ``script``, on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(output="", script=""):
        (folder / "output").write_text(output)
        (folder / "ipmitool").write_text(f"#!/bin/sh\n{script or f'exec cat {folder}/output'}\n")
        (folder / "ipmitool").chmod(0o755)

    return make


def values(run):
    return {(each.metric, each.device): each.value if each.text is None else each.text for each in run}


def test_fans_and_inlet_on_the_system_board_and_a_supply_that_failed(run_probe, ipmitool):
    ipmitool(recorded("dell"))
    run = run_probe(Chassis, Machine())
    assert values(run) == {
        ("inlet_temperature", "inlet"): 22.0,
        ("fan_speed", "fan0"): 8520.0, ("fan_state", "fan0"): "ok",
        ("fan_speed", "fan1"): 240.0, ("fan_state", "fan1"): "critical",
        ("fan_speed", "fan2"): None, ("fan_state", "fan2"): None,
        ("psu_state", "psu0"): "ok", ("psu_state", "psu1"): "critical",
    }  # fmt: skip
    assert {each.labels["source"] for each in run} == {"ipmi"}
    assert run.one("psu_state", "psu1").note == "PS2 Status"


def test_a_sensor_without_a_reading_is_not_supported_and_never_zero(run_probe, ipmitool):
    ipmitool(recorded("supermicro"))
    run = run_probe(Chassis, Machine())
    silent = {(each.metric, each.device) for each in run if each.value is None and each.text is None}
    assert silent == {
        ("fan_speed", "fan1"), ("fan_state", "fan1"), ("inlet_temperature", "inlet"), ("psu_state", "psu2")
    }  # fmt: skip
    assert all("not supported" in run.one(metric, device).note for metric, device in silent)
    assert values(run)["fan_state", "fan2"] == "warning"
    assert values(run)["fan_duty", "fan3"] == 62.5
    assert values(run)["psu_input_power", "psu0"] == 912.0, "what goes in, not what comes out"
    assert values(run)["psu_state", "psu1"] == "warning"


def test_where_a_sensor_is_an_air_inlets_no_other_is_by_its_name(run_probe, ipmitool):
    ipmitool("Temp_Ambient_FP | EEh | ok | 64.1 | 29 degrees C\nRiser Ambient | 05h | ok | 7.1 | 41 degrees C\n")
    assert values(run_probe(Chassis, Machine())) == {("inlet_temperature", "inlet"): 29.0}


@pytest.mark.parametrize("name", ["Liquid Inlet Temp", "PS1 Inlet Temp", "NIC Ambient", "P/S 2 Inlet"])
def test_what_a_part_draws_in_is_not_the_halls_air(run_probe, ipmitool, name):
    ipmitool(f"{name} | 05h | ok | 7.1 | 45 degrees C\nInlet Temp | 04h | ok | 7.1 | 22 degrees C\n")
    assert values(run_probe(Chassis, Machine())) == {("inlet_temperature", "inlet"): 22.0}


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("PS_RDNDNT_MODE   | ADh | ok  | 20.0 | Non-Redundant: Sufficient from Redundant", "psu2"),
        ("PS Redundancy    | 77h | ok  |  7.1 | Redundancy Lost", "psu2"),
        ("Power Supplies   | 06h | ok  | 10.3 | Redundancy Lost", "psu2"),
        ("Fan Redundancy   | 75h | ok  |  7.1 | Redundancy Degraded", "fan0"),
        ("PS Redundancy    | 77h | ok  |  7.1 | Fully Redundant", None),
        ("Memory Mirroring | 41h | ok  |  7.1 | Non-Redundant", None),
    ],
)
def test_redundancy_that_is_lost_warns(run_probe, ipmitool, line, device):
    """Listed first, it renumbers no other device."""
    ipmitool(f"""{line}
PSU1_STATUS      | 26h | ok  | 10.1 | Presence detected
PSU2_STATUS      | 2Ch | ok  | 10.2 |
PSU2_POUT        | 31h | ns  | 10.2 | No Reading
""")
    states = {each.device: each.text for each in run_probe(Chassis, Machine())}
    silent = None if "Fully" in line else "warning"
    assert states == {"psu0": "ok", "psu1": silent, **({device: "warning"} if device else {})}


@pytest.mark.parametrize("said", ["ok | 10.2 |", "ns | 10.2 | No Reading", "ns | 10.2 | Disabled"])
@pytest.mark.parametrize(
    ("redundancy", "state"), [("", "warning"), ("PS Redundancy | 77h | ok | 7.1 | Fully Redundant", None)]
)
def test_a_supply_that_says_nothing_keeps_its_number_and_warns(run_probe, ipmitool, said, redundancy, state):
    ipmitool(f"""{redundancy}
PSU1 Status | 51h | ok | 10.1 | Presence detected
PSU1 PIN    | 61h | ok | 10.1 | 900 Watts
PSU2 Status | 52h | {said}
PSU2 PIN    | 62h | ns | 10.2 | No Reading
PSU3 Status | 53h | ok | 10.3 | Presence detected
PSU3 PIN    | 63h | ok | 10.3 | 910 Watts
""")
    assert values(run_probe(Chassis, Machine())) == {
        ("psu_state", "psu0"): "ok", ("psu_state", "psu1"): state, ("psu_state", "psu2"): "ok",
        ("psu_input_power", "psu0"): 900.0, ("psu_input_power", "psu1"): None, ("psu_input_power", "psu2"): 910.0,
    }  # fmt: skip


def test_an_input_that_is_lost_is_critical_and_renumbers_none(run_probe, ipmitool):
    ipmitool("""
PSU1 Status | 51h | ok | 10.1 | Presence detected
PSU1 Input  | 61h | ok | 10.1 | 900 Watts
PSU2 Status | 52h | ok | 10.2 | Presence detected
PSU2 Input  | 62h | cr | 10.2 | Power Supply AC lost
PSU3 Status | 53h | ok | 10.3 | Presence detected
PSU3 Input  | 63h | ok | 10.3 | 910 Watts
""")
    assert values(run_probe(Chassis, Machine())) == {
        **{("psu_state", f"psu{at}"): "ok" for at in range(3)}, ("psu_state", "psu3"): "critical",
        ("psu_input_power", "psu0"): 900.0, ("psu_input_power", "psu1"): None, ("psu_input_power", "psu2"): 910.0,
    }  # fmt: skip


def test_without_a_bmc_the_probe_is_skipped_with_ipmitools_message(run_probe, ipmitool):
    ipmitool(script="echo 'Could not open device at /dev/ipmi0: No such file or directory' >&2; exit 1")
    with pytest.raises(Skip):
        run_probe(Chassis, Machine())
    ipmitool("System Board | 01h | ok | 7.1 | Present\n")
    with pytest.raises(Skip):
        run_probe(Chassis, Machine())


def test_what_ipmitool_lists_before_and_after_a_record_that_fails_is_reported_and_incomplete(run_probe, ipmitool):
    """As ``ipmi_sdr_print_sdr`` of ipmitool 1.8.18 ends: it prints all others, an error for the one, and gives 1."""
    ipmitool(
        script="""cat <<'END'
FAN1             | 41h | ok  | 29.1 | 9800 RPM
FAN2             | 42h | cr  | 29.2 | 0 RPM
END
echo 'ipmitool: ipmi_sdr_get_record() failed' >&2
echo 'PS2 Status | C9h | ok | 10.2 | Presence detected, Power Supply AC lost'
exit 1"""
    )
    listed = []
    with pytest.raises(Skip):
        run_probe(Chassis, Machine(), into=listed)
    assert values(listed) == {
        ("fan_speed", "fan0"): 9800.0, ("fan_state", "fan0"): "ok",
        ("fan_speed", "fan1"): 0.0, ("fan_state", "fan1"): "critical", ("psu_state", "psu0"): "critical",
    }  # fmt: skip


def test_a_bmc_that_hangs_is_an_error(run_probe, ipmitool):
    ipmitool(script="exec sleep 60")
    with pytest.raises(RuntimeError):
        run_probe(Chassis, Machine(), limit_s=0.5)


def test_a_simulated_machine_has_no_bmc_to_ask(run_probe, ipmitool):
    ipmitool(recorded("dell"))
    machine = Machine()
    machine.simulated = True
    with pytest.raises(Skip):
        run_probe(Chassis, machine)
