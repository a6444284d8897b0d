"""Errors of a GPU node's host under burn, from the node's counters to the verdict: what was there before is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster_criteria.model import FaultClass, Severity, Verdict
from muster_node.hardware.seam import Fact
from muster_node.probe import Context
from muster_node.workloads.under_load.counters import HOST, HOST_METRICS, Counters
from tests.muster_criteria.nodes import Case, MakeCase
from tests.muster_simulator.winding import WoundClock

THROTTLED = "cpu_throttle_events"
COUNTERS = (*HOST, THROTTLED)


class Host:
    """Counters that a test sets, on a clock that stands still."""

    def __init__(self, counts: dict[str, float]) -> None:
        self.clock, self.counts = WoundClock(), counts

    def counters(self) -> list[Fact]:
        return [Fact(name, "cpu0" if name == THROTTLED else "node", "count", n) for name, n in self.counts.items()]


def burnt(spoilt: Case, before: dict[str, float], after: dict[str, float]) -> Case:
    """The healthy burn with what the node side makes of these counters at its ends."""
    host: Any = Host(dict.fromkeys(COUNTERS, 0.0) | before)
    counters = Counters(host)
    host.counts |= after

    def emit(metric: str, device: str, **fields: Any) -> None:
        if metric in HOST_METRICS:
            spoilt.set(metric, device, value=fields["value"])

    counters.emit_host(Context(host, {}, 1, Path(), emit, lambda sentence: None))
    return spoilt


SKUS = ("h100-sxm-8", "cpu-generic")


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize(
    ("counter", "severity", "fault"),
    [
        ("machine_checks", Severity.CRITICAL, FaultClass.CPU),
        ("machine_checks_corrected", Severity.WARNING, FaultClass.CPU),
        ("edac_uncorrected", Severity.CRITICAL, FaultClass.DIMM),
        ("edac_corrected", Severity.WARNING, FaultClass.DIMM),
        (THROTTLED, Severity.WARNING, FaultClass.COOLING),
    ],
)
def test_one_more_during_the_burn_is_found(
    case: MakeCase, sku: str, counter: str, severity: Severity, fault: FaultClass
) -> None:
    judgement = burnt(case("burn_in", sku), {counter: 1.0}, {counter: 2.0}).judge()
    assert [(each.metric.removesuffix("_delta"), each.severity, each.fault_class) for each in judgement.findings] == [
        (counter, severity, fault)
    ]
    assert (judgement.verdict is Verdict.FAIL) == (severity is Severity.CRITICAL)


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize("counter", COUNTERS)
def test_one_before_the_burn_is_not(case: MakeCase, sku: str, counter: str) -> None:
    judgement, healthy = burnt(case("burn_in", sku), {counter: 1.0}, {}).judge(), case("burn_in", sku).judge()
    assert not judgement.findings
    assert (judgement.verdict, judgement.reason) == (healthy.verdict, healthy.reason)
