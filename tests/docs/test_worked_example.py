"""The figures of the worked example in docs/verdicts.md, read from the page and computed by the judge."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from muster_criteria.model import Severity, Verdict
from tests.muster_criteria.nodes import Case, healthy_raw, shipped

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def example() -> str:
    """The page's section with the worked example."""
    return PAGE.read_text().split("## A worked example\n")[1].split("\n## ")[0]


def rates(text: str) -> dict[str, float]:
    """TFLOPS by GPU, from the table."""
    names, _, figures = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {name.strip(): float(figure) for name, figure in zip(names, figures, strict=True)}


def test_the_worked_example() -> None:
    text = example()
    measured = rates(text)
    sku = shipped("h100-sxm-8")
    case = Case(sku, healthy_raw(sku, "performance", "demo"))
    for name, rate in measured.items():
        case.set("gemm_rate", name, value=rate, dtype="bf16")
    judged = case.judge()
    (floor,) = [finding for finding in judged.findings if finding.rule == "floor"]
    assert judged.verdict is Verdict.FAIL
    assert (floor.metric, floor.severity) == ("gemm_rate", Severity.CRITICAL)
    assert floor.device == min(measured, key=lambda name: measured[name])
    slow = measured[floor.device]
    least = float(floor.expected.split()[1])
    others = statistics.median(rate for name, rate in measured.items() if name != floor.device)
    stated = {(float(a), float(b)): float(share) for a, b, share in re.findall(r"(\d+) / (\d+) = (\d\.\d+)", text)}
    assert stated == {(slow, least): round(slow / least, 2), (slow, others): round(slow / others, 2)}
    (factors,) = re.findall(r"a floor of (\d+) TFLOPS: ([\d.]+) × ([\d.]+) TFLOPS", text)
    assert (float(factors[0]), int(float(factors[1]) * float(factors[2]))) == (least, least)
    assert f"{factors[1]} × {factors[2]} TFLOPS" in floor.source
    assert f'{floor.device}, {slow:.0f} TFLOPS, "{floor.expected}"' in text
    assert f"(`{floor.action}`)" in text
