"""What is judged on boards of NVIDIA GPUs beyond rates: settings that explain them, and the fabric that they share."""

from __future__ import annotations

import pytest

from muster_criteria.model import FaultClass, Finding, Severity
from tests.muster_criteria.nodes import Case, healthy_raw, shipped


def of(case: Case, metric: str) -> list[Finding]:
    return [each for each in case.judge().findings if each.metric == metric]


@pytest.mark.parametrize("sku", ["h100-sxm-8", "h200-sxm-8", "b200-sxm-8", "gb200-nvl72"])
@pytest.mark.parametrize(("nvls", "found"), [(1.0, []), (0.0, [(Severity.WARNING, FaultClass.NVLINK)])])
def test_switches_that_do_not_reduce_are_a_warning(sku: str, nvls: float, found: list[object]) -> None:
    case = Case(shipped(sku), healthy_raw(shipped(sku), "performance", "standard"))
    case.add("collectives", "nvls", "node", nvls, "bool")
    assert [(each.severity, each.fault_class) for each in of(case, "nvls")] == found


def test_switches_that_cannot_reduce_are_none() -> None:
    case = Case(shipped("a100-sxm-80gb-8"), healthy_raw(shipped("a100-sxm-80gb-8"), "performance", "standard"))
    assert not of(case.add("collectives", "nvls", "node", 0.0, "bool"), "nvls")


@pytest.mark.parametrize(("sku", "nvls", "slow"), [("a100-sxm-80gb-8", "off", 200.0), ("gb200-nvl72", "off", 600.0)])
def test_exchanges_of_a_node_without_nvls_have_a_floor(sku: str, nvls: str, slow: float) -> None:
    labels = {"op": "all_reduce", "bytes": "8589934592", "nvls": nvls}
    for rate, found in ((slow, [FaultClass.NVLINK]), (1.2 * slow, [])):
        case = Case(shipped(sku), healthy_raw(shipped(sku), "performance", "standard"))
        case.add("collectives", "collective_busbw", "node", rate, "GB/s", labels=labels)
        assert [each.fault_class for each in of(case, "collective_busbw")] == found


@pytest.mark.parametrize(("domain", "clock"), [("sm", 1200.0), ("memory", 2000.0)])
def test_application_clocks_below_their_default_are_a_warning(domain: str, clock: float) -> None:
    for now, found in ((clock, [(Severity.WARNING, FaultClass.SOFTWARE)]), (2700.0, [])):
        case = Case(shipped("h100-sxm-8"), healthy_raw(shipped("h100-sxm-8"), "intake"))
        labels = {"domain": domain}
        case.add("inventory", "application_clock", "gpu3", now, "MHz", labels=labels)
        case.set("application_clock_default", value=None)
        assert not of(case, "application_clock")  # newer GPUs report no default
        case.set("application_clock_default", "gpu3", value=2619.0, domain=domain)
        assert [(each.severity, each.fault_class) for each in of(case, "application_clock")] == found


@pytest.mark.parametrize(("on", "found"), [(1.0, [FaultClass.SOFTWARE]), (0.0, [])])
def test_confidential_computing_is_named_for_what_it_is(on: float, found: list[FaultClass]) -> None:
    case = Case(shipped("h100-sxm-8"), healthy_raw(shipped("h100-sxm-8"), "intake"))
    case.add("inventory", "confidential_computing", "node", on, "bool")
    assert [each.fault_class for each in of(case, "confidential_computing")] == found


def test_what_all_gpus_of_a_tray_show_of_their_fabric_is_decided_with_the_rack() -> None:
    """And what one of them shows is its own."""

    def severities(*devices: str) -> set[Severity]:
        case = Case(shipped("gb200-nvl72"), healthy_raw(shipped("gb200-nvl72"), "intake"))
        for device in devices:
            case.set("fabric_healthy", device, value=0.0)
        return {each.severity for each in of(case, "fabric_healthy")}

    assert severities("gpu0", "gpu1", "gpu2", "gpu3") == {Severity.WARNING}
    assert Severity.CRITICAL in severities("gpu2")
    assert not severities()


@pytest.mark.parametrize(("active", "found"), [(0.0, [(Severity.WARNING, FaultClass.PCIE)]), (1.0, [])])
def test_a_link_to_the_cpu_that_is_not_active_is_a_warning(active: float, found: list[object]) -> None:
    case = Case(shipped("gb200-nvl72"), healthy_raw(shipped("gb200-nvl72"), "intake"))
    case.add("inventory", "c2c_state", "gpu1", active, "bool", labels={"link": "3"})
    assert [(each.severity, each.fault_class) for each in of(case, "c2c_state")] == found
