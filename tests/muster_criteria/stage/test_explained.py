"""A GPU that a setting holds back is slow and not broken: what explains a finding is its fault, and is named."""

from __future__ import annotations

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.model import COMMON_CAUSE, SHARED_CAUSE, Action, FaultClass, Finding, Severity, Verdict
from tests.muster_criteria.nodes import Case, MakeCase

SLOW = 400.0
EVERY = tuple(f"gpu{number}" for number in range(8))


def _locked(made: Case, device: str, domain: str = "sm") -> Case:
    return made.add("gpu_watch", "clock_share", device, 53.2, "%", labels={"domain": domain})


def _of(made: Case, metric: str = "gemm_rate") -> dict[str, Finding]:
    return {
        each.device: each
        for each in made.judge().findings
        if (each.metric, each.severity) == (metric, Severity.CRITICAL)
    }


def test_a_locked_clock_by_itself_warns_and_says_what_undoes_it(case: MakeCase) -> None:
    judgement = _locked(case("thermal"), "gpu3").judge()
    (found,) = judgement.findings
    assert (judgement.verdict, found.severity, found.fault_class) == (
        Verdict.WARN,
        Severity.WARNING,
        FaultClass.SOFTWARE,
    )
    assert (found.action, "nvidia-smi -rgc" in found.summary) == (Action.FIX_SOFTWARE, True)


@pytest.mark.parametrize("setting", ["clock", "power"])
def test_a_slow_gpu_is_the_fault_of_the_setting_that_holds_it(case: MakeCase, setting: str) -> None:
    made = case("performance").set("gemm_rate", "gpu3", value=SLOW).set("gemm_rate", "gpu5", value=SLOW)
    assert {each.fault_class for each in _of(made).values()} == {FaultClass.GPU}
    if setting == "clock":
        _locked(made, "gpu3")
    else:
        made.add("inventory", "power_limit", "gpu3", 400.0, "W")
    found = _of(made)
    undone = {"clock": "nvidia-smi -rgc", "power": "nvidia-smi -pl"}[setting]
    assert (found["gpu3"].fault_class, found["gpu3"].action) == (FaultClass.SOFTWARE, Action.FIX_SOFTWARE)
    assert (found["gpu5"].fault_class, undone in found["gpu5"].summary) == (FaultClass.GPU, False)
    assert undone in found["gpu3"].summary


def test_a_memory_clock_explains_no_slow_products(case: MakeCase) -> None:
    made = _locked(case("performance").set("gemm_rate", "gpu3", value=SLOW), "gpu3", "memory")
    assert _of(made)["gpu3"].fault_class is FaultClass.GPU
    slow = _locked(case("performance").set("memory_bandwidth", "gpu3", value=1000.0), "gpu3", "memory")
    assert _of(slow, "memory_bandwidth")["gpu3"].fault_class is FaultClass.SOFTWARE


def test_the_reason_of_a_node_whose_gpus_are_all_locked_is_the_lock(case: MakeCase) -> None:
    """And not that its GPUs fail alike, for a cause that is not known."""
    made = case("performance")
    for device in EVERY:
        _locked(made.set("gemm_rate", device, value=SLOW), device)
    judgement = made.judge()
    assert judgement.verdict is Verdict.FAIL
    assert "nvidia-smi -rgc" in judgement.reason
    assert {each.device for each in judgement.findings} == {*EVERY}
    of_rates = [each for each in judgement.findings if each.metric == "gemm_rate"]
    assert max(each.confidence for each in of_rates) == SHARED_CAUSE  # no GPU is said to have failed before, later on


def test_gpus_that_fail_alike_have_a_common_cause_although_the_lock_of_some_was_not_seen(case: MakeCase) -> None:
    made = case("performance").set("gemm_rate", value=SLOW)
    for device in EVERY[:4]:
        _locked(made, device)
    judgement = made.judge()
    assert COMMON_CAUSE in {each.rule for each in judgement.findings}
    assert {each.action for each in judgement.findings if each.metric == "gemm_rate"} == {Action.FIX_SOFTWARE}


@pytest.mark.parametrize(
    ("domain", "metrics", "index"),
    [("sm", ("gemm_rate", "gemm_clock"), "clock_index"), ("memory", ("memory_bandwidth",), "hbm_index")],
)
def test_what_the_fleet_makes_of_the_rates_is_the_settings_fault_too(
    case: MakeCase, references: References, domain: str, metrics: tuple[str, ...], index: str
) -> None:
    """A memory clock that is locked must not send a GPU back."""
    made = _locked(case("performance"), "gpu3", domain)
    for row in (each for metric in metrics for each in made.rows(metric, "gpu3")):
        row["value"] *= 0.7
    found = made.judge(references=references).findings
    assert index in {each.metric for each in found}
    assert {(each.fault_class, each.action) for each in found} == {(FaultClass.SOFTWARE, Action.FIX_SOFTWARE)}


def test_a_drift_that_a_second_reading_decides_keeps_its_node_from_being_a_peer(
    case: MakeCase, references: References
) -> None:
    made = _locked(case("performance"), "gpu3", "memory")
    for row in made.rows("memory_bandwidth", "gpu3"):
        row["value"] *= 0.97
    drifts = [each for each in made.judge(references=references).findings if each.rule == "drift"]
    assert {each.action for each in drifts} == {Action.RETEST}
