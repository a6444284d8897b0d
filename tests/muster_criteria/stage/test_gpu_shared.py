"""A GPU that others used while it was tested: what that explains fails none, and everything else still does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.model import Lack, Severity, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.retests import arranged, repeated_rows
from tests.muster_criteria.nodes import Case, MakeCase
from tests.muster_criteria.stage.test_retests import alone, judged, slowed

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


EVERY = tuple(f"gpu{number}" for number in range(8))
BUSBW = {"op": "all_reduce", "nvls": "on"}


def shared(made: Case, *devices: str) -> Case:
    for device in devices:
        made.set("foreign_processes", device, value=1.0)
    return made


@pytest.mark.parametrize("devices", [("gpu3",), EVERY])
@pytest.mark.parametrize(
    "metrics", [("memory_bandwidth",), ("pcie_bandwidth",), ("gemm_rate_per_clock",), ("gemm_rate", "gemm_clock")]
)
def test_what_the_fleet_computes_of_the_rates_of_a_shared_gpu_is_excused_too(
    case: MakeCase, references: References, metrics: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    """The index of a family of metrics, and the level of the whole node."""
    made = case("performance")
    for metric in metrics:
        for device in devices:
            slowed(made, 0.15, metric, device)
    failing = made.judge(references=references)
    computed = {each.metric for each in failing.findings if each.metric.endswith(("_index", "_level"))}
    assert (failing.verdict, bool(computed)) == (Verdict.FAIL, True)
    assert all(each.measurements for each in failing.findings if each.metric in computed)

    judgement = shared(made, *devices).judge(references=references)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {each.severity for each in judgement.findings} == {Severity.WARNING}
    assert judgement.repeat == ()


def test_what_is_derived_of_the_readings_of_a_shared_gpu_is_invalid_too(case: MakeCase, h100: Sku) -> None:
    derived = {each.metric for each in h100.programme.derive}
    assert derived.isdisjoint(metric for limit in h100.limits for metric in limit.invalidates)
    rows = repeated_rows(shared(case("thermal"), "gpu3").result(), h100)
    assert {row.device for row in rows if row.metric in derived} == set(EVERY) - {"gpu3"}


@pytest.mark.parametrize(
    ("stage", "metric", "value", "disturb"),
    [
        ("performance", "gemm_rate", 100.0, lambda made: shared(made, "gpu3")),
        ("performance", "memory_bandwidth", 100.0, lambda made: shared(made, "gpu3")),
        ("burn_in", "burn_rate", 100.0, lambda made: shared(made, "gpu3")),
        (
            "thermal",
            "soak_rate_drop",
            40.0,
            lambda made: made.add("gpu_watch", "inlet_temperature", "node", 40.0, "°C"),
        ),
        ("performance", "memory_bandwidth", 1e6, lambda made: made),  # no measurement, by its own value
    ],
)
def test_an_invalid_reading_of_an_earlier_attempt_is_forgotten(
    case: MakeCase,
    references: References,
    h100: Sku,
    stage: str,
    metric: str,
    value: float,
    disturb: Callable[[Case], Case],
) -> None:
    first = disturb(case(stage).set(metric, "gpu3", value=value))
    verdict = first.judge().verdict
    assert verdict is Verdict.INCONCLUSIVE
    _, others = arranged([(verdict, first.result())], case(stage).result())
    assert len(others) == 1
    after = judged(case(stage), references, h100, *others)
    expected = case(stage).judge(references=references)
    assert (after.verdict, after.findings) == (expected.verdict, expected.findings)


def test_an_invalid_second_reading_is_no_reading(case: MakeCase, references: References, h100: Sku) -> None:
    again = alone(shared(slowed(case("performance"), 0.3), "gpu3"), "memory_bandwidth")
    judgement = judged(slowed(case("performance"), 0.029), references, h100, again)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.repeat == (), "it is measured again with the whole stage"
    assert not [each for each in judgement.findings if each.severity is Severity.CRITICAL]


@pytest.mark.parametrize(
    ("first", "again", "runs", "repeat"),
    [
        ("valid", "shared", "1 of 1 runs failed", ()),
        ("valid", "valid", "2 of 2 runs failed", ()),
        ("shared", "", "", ()),
        ("valid", "", "1 of 1 runs failed", ("nccl_tests",)),
    ],
)
def test_only_valid_runs_of_a_noisy_test_are_weighed(
    case: MakeCase, references: References, h100: Sku, first: str, again: str, runs: str, repeat: tuple[str, ...]
) -> None:
    def run(how: str) -> Case:
        made = case("performance", level="short").add("nccl_tests", "nccl_busbw", "node", 200.0, "GB/s", labels=BUSBW)
        return shared(made, "gpu3") if how == "shared" else made

    repeats = [alone(run(again), "nccl_tests")] if again else []
    judgement = judged(run(first), references, h100, *repeats)
    (finding,) = (each for each in judgement.findings if each.metric == "nccl_busbw")
    assert runs in finding.observed
    assert ("runs failed" in finding.observed) is bool(runs)
    assert judgement.verdict is (Verdict.FAIL if runs.startswith("2") else Verdict.INCONCLUSIVE)
    assert judgement.repeat == repeat
