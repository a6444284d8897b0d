"""The figures of the worked example in docs/verdicts.md, computed by the judge."""

from __future__ import annotations

import statistics

from muster_criteria.model import Severity, Verdict
from tests.muster_criteria.nodes import Case, healthy_raw, shipped

RATES = (690.0, 691.0, 692.0, 548.0, 694.0, 695.0, 696.0, 697.0)


def test_the_worked_example() -> None:
    sku = shipped("h100-sxm-8")
    case = Case(sku, healthy_raw(sku, "performance", "demo"))
    for slot, rate in enumerate(RATES):
        case.set("gemm_rate", f"gpu{slot}", value=rate, dtype="bf16")
    judged = case.judge()
    (floor,) = [finding for finding in judged.findings if finding.rule == "floor"]
    assert judged.verdict is Verdict.FAIL
    assert (floor.device, floor.metric, floor.severity) == ("gpu3", "gemm_rate", Severity.CRITICAL)
    assert "596 TFLOPS" in floor.expected
    assert "0.75 × 794.5 TFLOPS" in floor.source
    assert floor.action == "retest"
    others = statistics.median(rate for rate in RATES if rate != 548.0)
    assert (round(548 / 596, 2), others, round(548 / others, 2)) == (0.92, 694.0, 0.79)
    assert round(0.75 * 794.5) == 596
