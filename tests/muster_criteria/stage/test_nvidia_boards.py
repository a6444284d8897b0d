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
