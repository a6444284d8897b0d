"""A GPU that others used while it was tested: what that explains fails none, and everything else still does."""

from __future__ import annotations

import pytest

from muster_criteria.model import Lack, Verdict
from tests.muster_criteria.nodes import MakeCase

SLOW, HOT = 100.0, 99.0


@pytest.mark.parametrize(
    ("stage", "metric", "device", "value", "verdict"),
    [
        ("performance", "gemm_rate_per_clock", "gpu3", SLOW, Verdict.INCONCLUSIVE),
        ("performance", "memory_bandwidth", "gpu3", SLOW, Verdict.INCONCLUSIVE),
        ("thermal", "temperature_max", "gpu3", HOT, Verdict.INCONCLUSIVE),
        ("thermal", "throttle_time", "gpu3", 5.0, Verdict.INCONCLUSIVE),
        ("performance", "gemm_rate_per_clock", "gpu5", SLOW, Verdict.FAIL),
        ("performance", "ecc_uncorrected_delta", "gpu3", 1.0, Verdict.FAIL),
        ("integrity", "gemm_mismatches", "gpu3", 1.0, Verdict.FAIL),
        ("performance", "gpu_lost", "gpu3", 1.0, Verdict.FAIL),
    ],
)
def test_only_what_others_may_have_caused_is_excused(
    case: MakeCase, stage: str, metric: str, device: str, value: float, verdict: Verdict
) -> None:
    assert case(stage).set(metric, device, value=value).judge().verdict is Verdict.FAIL
    shared = case(stage).set(metric, device, value=value).set("foreign_processes", "gpu3", value=1.0)
    assert shared.judge().verdict is verdict


def test_what_all_gpus_do_together_is_excused_too(case: MakeCase) -> None:
    labels = {"op": "all_reduce", "bytes": "8589934592", "nvls": "on"}
    made = case("performance").add("collectives", "collective_busbw", "node", SLOW, "GB/s", labels=labels)
    assert made.judge().verdict is Verdict.FAIL
    assert made.set("foreign_processes", "gpu3", value=1.0).judge().verdict is Verdict.INCONCLUSIVE


def test_a_stage_without_rates_is_measured_again_too(case: MakeCase) -> None:
    judgement = case("integrity").set("foreign_processes", "gpu3", value=1.0).judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {gap.code for gap in judgement.coverage.missing} == {Lack.INVALID}
