"""What Redfish documents report, where they name nothing: the link that leads to a part is its identity."""

from __future__ import annotations

from typing import Any

import pytest

from muster.remote.bmc.redfish import _as_devices
from muster.remote.bmc.redfish_documents import of_chassis, redundancy_of

CHASSIS = "/redfish/v1/Chassis/c"


def fans(count: int, **documents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A chassis of the newer form with so many fans listed; those not given have no document (404)."""
    folder = f"{CHASSIS}/ThermalSubsystem/Fans"
    return {
        CHASSIS: {"ThermalSubsystem": {"@odata.id": f"{CHASSIS}/ThermalSubsystem"}},
        f"{CHASSIS}/ThermalSubsystem": {"Fans": {"@odata.id": folder}},
        folder: {"Members": [{"@odata.id": f"{folder}/fan{place}"} for place in range(count)]},
        **{f"{folder}/{name}": document for name, document in documents.items()},
    }


def read(documents: dict[str, dict[str, Any]]) -> dict[tuple[str, str], float | str | None]:
    found = _as_devices(list(of_chassis(documents[CHASSIS], documents.get)))
    return {(each.metric, each.device): each.text if each.text is not None else each.value for each in found}


def test_fans_that_are_listed_and_missing_are_as_many_fans_without_a_reading() -> None:
    readings = read(fans(6))
    assert {device for _, device in readings} == {f"fan{place}" for place in range(6)}
    assert set(readings.values()) == {None}


def test_fans_that_name_nothing_are_not_one_fan() -> None:
    spins = {f"fan{place}": {"SpeedPercent": {"SpeedRPM": 9000.0 + place}} for place in (0, 2)}
    readings = read(fans(3, **spins))
    speeds = {device: value for (metric, device), value in readings.items() if metric == "fan_speed"}
    assert speeds == {"fan0": 9000.0, "fan2": 9002.0}
    assert readings["fan_duty", "fan1"] is None


def test_supplies_of_two_chassis_without_ids_are_two_supplies() -> None:
    power = {"PowerSupplies": [{"PowerInputWatts": 800, "Status": {"Health": "OK"}}]}
    found = []
    for name in ("a", "b"):
        documents = {f"/c/{name}/Power": power}
        found += list(of_chassis({"Power": {"@odata.id": f"/c/{name}/Power"}}, documents.get))
    assert {each.device for each in _as_devices(found)} == {"psu0", "psu1"}


@pytest.mark.parametrize("reading", [-5, float("nan"), "fast", True, None])
def test_a_fan_speed_that_none_has_is_no_reading(reading: object) -> None:
    readings = read(fans(1, fan0={"SpeedPercent": {"Reading": reading, "SpeedRPM": reading}}))
    assert readings["fan_duty", "fan0"] is None


@pytest.mark.parametrize(("written", "value"), [
    ("0", 0.0), ("9000", 9000.0), (" 8.5 ", 8.5), ("-5", None), ("nan", None), ("1e400", None), ("9" * 400, None),
    ("N/A", None), ("", None),
])  # fmt: skip
def test_a_number_that_is_written_as_text_is_a_reading(written: str, value: float | None) -> None:
    readings = read(fans(1, fan0={"SpeedPercent": {"Reading": written, "SpeedRPM": written}}))
    assert readings.get(("fan_speed", "fan0")) == value


def test_ilo_4_has_names_of_its_own_for_a_fans_reading() -> None:
    fan = {"FanName": "Fan 1", "CurrentReading": 0, "Units": "Percent", "Status": {"Health": "OK"}}
    documents: dict[str, dict[str, Any]] = {CHASSIS: {"Thermal": {"@odata.id": "/t"}}, "/t": {"Fans": [fan]}}
    assert read(documents)["fan_duty", "fan0"] == 0.0


def air(name: str, celsius: float | None, context: str) -> dict[str, Any]:
    return {"Name": name, "PhysicalContext": context, "ReadingCelsius": celsius, "Reading": celsius}


ILO = [air("01-Inlet Ambient", 22, "Intake"), air("11-PS 1 Inlet", 40, "PowerSupply")]
IDRAC = [air("System Board Inlet Temp", 23, "SystemBoard"), air("PCI Inlet 1", 41, "SystemBoard")]


@pytest.mark.parametrize(("sensors", "celsius"), [
    (ILO, 22), ([air("System Ambient", 60, "SystemBoard"), *ILO], 22), (IDRAC, 23), ([*ILO[1:], *IDRAC], 23),
    ([air("Inlet", 45, "LiquidInlet"), air("P/S 2 Inlet", 38, "SystemBoard")], None),
    ([air("Front", None, "Intake"), *IDRAC], 23), ([air("Front", None, "Intake"), *ILO], 22),
])  # fmt: skip
@pytest.mark.parametrize("newer", [False, True])
def test_air_that_a_part_of_the_machine_draws_is_not_the_halls(
    sensors: list[dict[str, Any]], celsius: float | None, newer: bool
) -> None:
    subsystem = {"ThermalMetrics": {"@odata.id": "/metrics"}}
    documents = {
        CHASSIS: {"ThermalSubsystem" if newer else "Thermal": {"@odata.id": "/thermal"}},
        "/thermal": subsystem if newer else {"Temperatures": sensors},
        "/metrics": {"TemperatureReadingsCelsius": sensors},
    }
    assert read(documents).get(("inlet_temperature", "inlet")) == celsius


def test_an_older_inlet_or_a_summary_without_a_number_hides_no_newer_one_that_has_one() -> None:
    documents: dict[str, dict[str, Any]] = {
        CHASSIS: {"Thermal": {"@odata.id": "/old"}, "ThermalSubsystem": {"@odata.id": "/new"}},
        "/old": {"Temperatures": [{"Name": "Inlet", "PhysicalContext": "Intake", "ReadingCelsius": None}]},
        "/new": {"ThermalMetrics": {"@odata.id": "/metrics"}},
        "/metrics": {
            "TemperatureSummaryCelsius": {"Intake": {"Reading": None}},
            "TemperatureReadingsCelsius": [air("Inlet", 24, "Intake")],
        },
    }
    assert read(documents)["inlet_temperature", "inlet"] == 24
    documents["/metrics"] = {}
    assert read(documents) == {("inlet_temperature", "inlet"): None}


@pytest.mark.parametrize(("newer", "key"), [(False, "Redundancy"), (True, "PowerSupplyRedundancy")])
@pytest.mark.parametrize(("status", "state"), [
    ({"Health": "OK"}, ["ok"]), ({"Health": "Critical"}, ["warning"]), ({"Health": "Warning"}, ["warning"]),
    ({"State": "Absent", "Health": "Critical"}, []), ({"State": "Enabled"}, []),
])  # fmt: skip
def test_supplies_that_are_not_redundant_any_more_warn(
    status: dict[str, str], state: list[str], newer: bool, key: str
) -> None:
    documents = {"/power": {"PowerSupplies": [], key: [{"Name": "PS Redundancy", "Status": status}]}}
    chassis = {"PowerSubsystem" if newer else "Power": {"@odata.id": "/power"}}
    found = _as_devices(list(redundancy_of(chassis, documents.get)))
    assert [(each.metric, each.device, each.text) for each in found] == [("psu_state", "psu0", text) for text in state]
