"""Levels of the integrity stage are the reference's L0 to L3 (docs/science.md#levels), by the timed work of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import needs, stage_calls
from muster_criteria.stages import LEVELS
from muster_node.probe import resolve_params
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.workloads.products.pulses import PATTERNS

GPUS = 8
MINUTE, HOUR = 60.0, 3600.0
COOLING_S = 300.0


def _call(h100: Sku, level: str) -> Any:
    return {call.probe: call for call in stage_calls(h100, "integrity", level, 1)}["exact_gemm"]


def _timed_s(params: Mapping[str, Any]) -> float:
    return ExactGemm.timed_s(resolve_params(ExactGemm, params), GPUS)


@pytest.mark.parametrize(
    ("level", "least_s", "most_s"),
    [
        ("demo", 0.0, MINUTE),
        ("short", 8 * MINUTE, 10 * MINUTE),
        ("standard", 45 * MINUTE, 60 * MINUTE),
        ("long", 24 * HOUR, 48 * HOUR),
    ],
)
def test_exact_products_take_what_their_level_has_and_leave_room_for_the_memory(
    h100: Sku, level: str, least_s: float, most_s: float
) -> None:
    """Memory patterns are counted, not timed: at least a minute is left for them."""
    call = _call(h100, level)
    timed_s = _timed_s(call.params)
    assert least_s <= timed_s <= most_s - min(MINUTE, timed_s)
    assert call.timeout_s > 1.25 * (timed_s + COOLING_S)


@pytest.mark.parametrize("level", ["short", "standard", "long"])
def test_above_demo_all_conditions_are_there(h100: Sku, level: str) -> None:
    params = _call(h100, level).params
    assert set(params["modes"]) == {"alone", "together"}
    assert params["soak_s"] > 0
    assert params["pulse_s"] > 0


@pytest.mark.parametrize("metric", ["gemm_pulses", "pulse_share"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_that_pulses_asks_for_bursts_of_each_format_in_both_patterns(
    h100: Sku, level: str, metric: str
) -> None:
    """Other products clear a format too: without this, bursts that never came would go unnoticed."""
    params = _call(h100, level).params
    asked = {need.labels for need in needs(h100, "integrity", level) if need.requirement.metric == metric}
    pulsed = params["dtypes"] if params["pulse_s"] else ()
    assert asked == {(("dtype", dtype), ("pattern", pattern)) for dtype in pulsed for pattern in PATTERNS}


def test_pulses_are_timed_for_every_format_in_both_patterns() -> None:
    params = {"dtypes": ["bf16", "fp64", "fp8"], "modes": ["together"], "seconds": 2.0, "pulse_s": 5.0, "soak_s": 7.0}
    assert _timed_s(params) == 3 * (2.0 + 2 * 5.0) + 7.0
