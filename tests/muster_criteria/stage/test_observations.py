"""The observations of a judgement: each row with the limits that reports show."""

from __future__ import annotations

import pytest

from tests.muster_criteria.nodes import MakeCase


def test_observations_stand_beside_their_limits(case: MakeCase) -> None:
    judgement = case("performance").set("gemm_rate", "gpu6", value=500.0, dtype="bf16").judge()

    rates = {o.device: o for o in judgement.observations if (o.metric, o.labels) == ("gemm_rate", (("dtype", "bf16"),))}
    assert (rates["gpu6"].ok, rates["gpu6"].floor, rates["gpu6"].ceiling) == (False, 595.0, None)
    assert rates["gpu0"].ok
    assert "794.5" in rates["gpu0"].source


def test_a_physical_peak_is_no_bound_of_what_healthy_devices_reach(case: MakeCase) -> None:
    judgement = case("performance").set("memory_bandwidth", "gpu2", value=3400.0).judge()
    together = [each for each in judgement.observations if each.metric == "pcie_bandwidth_together"]
    assert {(each.floor, each.ceiling, each.source) for each in together} == {(None, None, "")}
    copied = {each.device: each for each in judgement.observations if each.labels == (("op", "copy"),)}
    assert [(copied[gpu].floor, copied[gpu].ceiling) for gpu in ("gpu1", "gpu2")] == [(2610.0, None), (2610.0, 3350.0)]


@pytest.mark.parametrize(
    ("stage", "metric", "bounds"),
    [("integrity", "memory_coverage", (95.0, None)), ("thermal", "load_share", (90.0, None))],
)
def test_another_bound_of_what_is_a_measurement_is_shown(
    case: MakeCase, stage: str, metric: str, bounds: tuple[float | None, float | None]
) -> None:
    seen = [each for each in case(stage).judge().observations if each.metric == metric]
    assert {(each.ok, each.floor, each.ceiling) for each in seen} == {(True, *bounds)}
