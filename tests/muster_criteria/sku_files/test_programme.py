"""Programmes: what is run with which parameters, limits and seeds."""

from __future__ import annotations

import pytest

from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.programme import (
    blocking,
    needs,
    stage_calls,
    stage_deadline_s,
)
from muster_criteria.sku_files.work import other_quantities, sku_work, work_of
from muster_criteria.stages import LEVELS, STAGES


def test_calls_have_parameters_of_their_level(cpu_generic: Sku) -> None:
    seconds = {
        level: {call.probe: call for call in stage_calls(cpu_generic, "burn_in", level, 1)}["cpu_burn"].params[
            "seconds"
        ]
        for level in LEVELS
    }

    assert seconds == {"demo": 6, "short": 300, "standard": 14400, "long": 172800}


def test_seeds_are_reproducible_and_differ_by_probe_stage_and_seed(h100: Sku) -> None:
    seeds = [call.seed for seed in (1, 2) for stage in STAGES for call in stage_calls(h100, stage, "demo", seed)]

    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert stage_calls(h100, "integrity", "demo", 1) == stage_calls(h100, "integrity", "demo", 1)


def test_the_deadline_covers_all_time_limits(h100: Sku) -> None:
    calls = stage_calls(h100, "performance", "demo", 1)

    assert stage_deadline_s(h100, "performance", "demo") == sum(call.timeout_s for call in calls) + 60.0


def test_the_first_three_stages_stop_the_burn(h100: Sku, cpu_generic: Sku) -> None:
    for sku in (h100, cpu_generic):
        assert [stage for stage in STAGES if blocking(sku, stage)] == ["intake", "burn_in", "integrity"]


def test_promised_sensors_are_needed(h100: Sku) -> None:
    thermal = {need.requirement.metric for need in needs(h100, "thermal", "demo")}

    assert {"temperature_max", "hbm_temperature_max", "throttle_time", "power_mean"} <= thermal


def test_a_label_with_several_values_is_several_needs(h100: Sku) -> None:
    labels = [need.labels for need in needs(h100, "performance", "demo") if need.requirement.metric == "gemm_rate"]

    assert labels == [(("dtype", "bf16"),), (("dtype", "tf32"),), (("dtype", "fp8"),)]


@pytest.mark.parametrize(("stage", "level"), [("warp", "demo"), ("intake", "forever")])
def test_a_stage_or_level_that_there_is_not(h100: Sku, stage: str, level: str) -> None:
    with pytest.raises(SkuError):
        stage_calls(h100, stage, level, 1)


def test_other_parameters_measure_other_quantities(h100: Sku) -> None:
    plain = h100.programme.model_dump(mode="json")
    plain["stages"]["performance"]["probes"]["gemm_rate"]["params"]["seconds"]["demo"] = 9.5
    plain["stages"]["performance"]["probes"]["transfers"]["timeout_s"] = 1.0
    now = {level: sku_work(h100, level) for level in LEVELS}
    changed = {level: other_quantities(h100, "performance", now[level], work_of(plain, level)) for level in LEVELS}

    assert {"gemm_rate", "gemm_rate_per_clock"} <= changed["demo"]
    assert "pcie_bandwidth" not in changed["demo"]
    assert not changed["short"]
    assert not other_quantities(h100, "thermal", now["demo"], work_of(plain, "demo"))
