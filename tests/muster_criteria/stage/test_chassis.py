"""Fans, incoming air and power supplies under the judge: what fails, what only warns, and what says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from muster_criteria.model import FaultClass, Judgement, Lack, Severity, Verdict
from muster_criteria.sku_files.model import Sensor
from tests.muster_criteria.nodes import Case, MakeCase

SKUS = ["cpu-generic", "h100-sxm-8"]
REDFISH, IPMI = {"source": "redfish"}, {"source": "ipmi"}


def thermal(case: MakeCase, sku: str, metric: str, device: str, value: Any, unit: str, **labels: str) -> Judgement:
    return case("thermal", sku).add("chassis", metric, device, value, unit, labels=labels or REDFISH).judge()


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize(
    ("metric", "device", "unit", "well", "failed", "fault"),
    [
        ("fan_speed", "fan1", "RPM", 1.0, 0.999, FaultClass.COOLING),
        ("fan_duty", "fan1", "%", 1.0, 0.999, FaultClass.COOLING),
        ("fan_state", "fan1", "text", "ok", "critical", FaultClass.COOLING),
        ("psu_state", "psu0", "text", "ok", "critical", FaultClass.PSU),
        ("psu_state", "psu0", "text", "ok", "lost", FaultClass.PSU),
    ],
)
def test_a_failed_fan_or_supply_is_a_finding_on_that_device(
    case: MakeCase, sku: str, metric: str, device: str, unit: str, well: Any, failed: Any, fault: FaultClass
) -> None:
    assert thermal(case, sku, metric, device, well, unit).verdict is Verdict.PASS
    judgement = thermal(case, sku, metric, device, failed, unit)
    assert judgement.verdict is Verdict.FAIL
    (finding,) = judgement.findings
    assert (finding.device, finding.fault_class, dict(finding.labels)) == (device, fault, REDFISH)


def test_what_the_bmc_only_worries_about_warns(case: MakeCase) -> None:
    assert thermal(case, "cpu-generic", "psu_state", "psu1", "warning", "text").verdict is Verdict.WARN


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize(("rpm", "slow"), [(900.0, ["fan7"]), (4000.0, [])])
def test_a_fan_far_below_the_others_warns(case: MakeCase, sku: str, rpm: float, slow: list[str]) -> None:
    """Of two zones, one of which turns at two thirds."""
    fans = case("thermal", sku)
    for number, speed in enumerate([12000.0] * 5 + [8000.0] * 2 + [rpm]):
        fans.add("chassis", "fan_speed", f"fan{number}", speed, "RPM", labels=IPMI)
    judgement = fans.judge()
    assert [finding.device for finding in judgement.findings] == slow
    assert judgement.verdict is (Verdict.WARN if slow else Verdict.PASS)


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize("source", ["redfish", "ipmi"])
def test_a_hot_inlet_is_inconclusive_and_fails_none(case: MakeCase, sku: str, source: str) -> None:
    hot = case("thermal", sku)
    if sku != "cpu-generic":
        hot.set("temperature_max", "gpu3", value=95.0).add("thermal_soak", "hbm_margin", "gpu3", 2.0, "°C")
    warm = thermal(case, sku, "inlet_temperature", "inlet", 32.0, "°C", source=source)
    judgement = hot.add("chassis", "inlet_temperature", "inlet", 32.1, "°C", labels={"source": source}).judge()

    assert warm.verdict is Verdict.PASS
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {gap.code for gap in judgement.coverage.missing} == {Lack.INVALID}
    assert {str(finding.severity) for finding in judgement.findings} == {"warning"}


def test_a_loose_heat_sink_warns_without_an_inlet(case: MakeCase) -> None:
    """84 against 61 °C at 690 W, which cool to 29 and 26 °C at 75 W."""
    altered = case("thermal")
    for slot in range(8):
        for row in altered.rows("thermal_resistance", f"gpu{slot}"):
            row |= {"labels": {"method": "cool-down"}, "value": (84 - 29) / 615 if slot == 3 else (61 - 26) / 615}
    found = [(each.device, each.metric, each.severity) for each in altered.judge().findings]
    assert found == [("gpu3", "thermal_resistance", Severity.WARNING)]


def promised(case: MakeCase) -> Case:
    """A SKU that promises an inlet sensor."""
    made = case("thermal")
    sensor = Sensor(stage="thermal", probe="chassis", metric="inlet_temperature", devices="inlet", judged=False)
    made.sku = made.sku.model_copy(update={"sensors": (*made.sku.sensors, sensor)})
    return made


@pytest.mark.parametrize("source", [REDFISH, IPMI])
def test_a_promised_sensor_may_come_from_either_side(case: MakeCase, source: dict[str, str]) -> None:
    complete = promised(case).add("chassis", "inlet_temperature", "inlet", 24.0, "°C", labels=source)
    assert complete.judge().verdict is Verdict.PASS


def test_a_promised_sensor_without_a_reading_is_missing_for_the_true_reason(case: MakeCase) -> None:
    silent = promised(case).end("chassis", "skipped", "the BMC at https://b was not to be read: refused").judge()
    assert silent.verdict is Verdict.INCONCLUSIVE
    (gap,) = silent.coverage.missing
    assert (gap.code, gap.what, gap.device) == (Lack.PROBE_ENDED, "inlet_temperature", "inlet")


@pytest.mark.parametrize(("state", "verdict"), [("ok", Verdict.PASS), ("critical", Verdict.FAIL)])
def test_of_an_incomplete_list_what_it_has_counts_and_the_reason_is_reported(
    case: MakeCase, state: str, verdict: Verdict
) -> None:
    listed = promised(case).end("chassis", "skipped", "ipmitool ended with status 1")
    listed.add("chassis", "inlet_temperature", "inlet", 24.0, "°C", labels=IPMI)
    judgement = listed.add("chassis", "fan_state", "fan1", state, "text", labels=IPMI).judge()
    assert judgement.verdict is verdict
    assert any("status 1" in note for note in judgement.notes)


def test_a_sensor_that_is_not_promised_is_not_missed_but_reported(case: MakeCase) -> None:
    silent = case("thermal").end("chassis", "skipped", "the BMC at https://b was not to be read").judge()
    assert silent.verdict is Verdict.PASS
    assert any("https://b" in note for note in silent.notes)


def test_a_fan_without_a_reading_neither_passes_nor_fails(case: MakeCase) -> None:
    judgement = case("thermal").add("chassis", "fan_speed", "fan2", None, "RPM", note="not supported").judge()
    assert judgement.verdict is Verdict.PASS
    assert [seen.ok for seen in judgement.observations if seen.device == "fan2"] == [False]
