"""The fault bench counts the verdicts, and draws only what can be seen."""

from __future__ import annotations

import dataclasses
import random

import pytest

from muster_criteria.model import Action, FaultClass, Finding, Severity, Verdict
from muster_simulator.defects import DEFECTS
from muster_simulator.models import MODELS
from tests.bench.faults import (
    FAULTS,
    Case,
    Fault,
    Outcome,
    _found,
    _has_failed,
    _wrongly_named,
    answer,
    draw,
    draw_pair,
    perfect,
    rows,
)

SLOW = Fault("slow_gemm", (("gpu", 3), ("share", 0.8)))
HEALTHY = Outcome(Case("h100-sxm-8", 1), Verdict.PASS, (), (), (), "")


def _finding(metric: str, device: str, severity: Severity = Severity.CRITICAL, **more: str) -> Finding:
    return Finding(
        rule=more.get("rule", "floor"),
        metric=metric,
        device=device,
        severity=severity,
        fault_class=FaultClass.GPU,
        action=Action.RMA,
        observed="",
        expected="",
        source="",
        summary="",
        labels=tuple((key, more[key]) for key in ("kind", "code") if key in more),
    )


def _outcome(
    found: str = "gemm_rate_per_clock (floor)", wrongly_named: tuple[str, ...] = (), warned: bool = False
) -> Outcome:
    failed = bool(found) and not warned
    return Outcome(Case("h100-sxm-8", 1, (SLOW,)), Verdict.FAIL, (found,), (failed,), wrongly_named, "")


def test_every_kind_of_defect_must_be_found_by_something() -> None:
    assert set(FAULTS) == set(DEFECTS)


def test_a_finding_names_a_fault_by_measurement_and_device() -> None:
    assert _found(SLOW, [_finding("burn_rate_per_clock", "gpu3", Severity.WARNING)])
    assert not _found(SLOW, [_finding("burn_rate_per_clock", "gpu2")])
    assert not _found(SLOW, [_finding("memory_bandwidth", "gpu3")])
    assert not _found(SLOW, [_finding("burn_rate_per_clock", "gpu3", Severity.INFO)])
    hang = Fault("processor_hang", (("gpu", 3),))
    assert _found(hang, [_finding("xid", "gpu3", rule="device_event", kind="xid", code="119")])
    assert not _found(hang, [_finding("xid", "gpu3", rule="device_event", kind="xid", code="79")])


def test_what_counts_as_found_of_a_fault_counts_against_a_device_without_one() -> None:
    findings = [
        _finding("gemm_rate", "gpu3"),
        _finding("gpu_count", "node"),
        _finding("gemm_rate", "gpu4", Severity.INFO),
    ]
    assert _wrongly_named([SLOW], findings) == set()
    warned, failed = _finding("gemm_rate", "gpu5", Severity.WARNING), _finding("gemm_rate", "gpu6")
    assert _wrongly_named([SLOW], [*findings, warned, failed]) == {"gpu5", "gpu6"}


def test_ports_and_fans_are_devices_too() -> None:
    assert Fault("nic_down", (("nic", 2),)).device == "nic:ib2"
    assert Fault("fan_fail", (("fan", 4),)).device == "fan4"
    assert Fault("hot_inlet", (("celsius", 36.0),)).device == "node"


@pytest.mark.parametrize(
    ("outcomes", "right", "missed"),
    [
        ([_outcome(), HEALTHY], True, []),
        ([_outcome(found=""), HEALTHY], False, ["slow_gemm on h100-sxm-8 gpu3"]),
        ([_outcome(wrongly_named=("gpu5",)), HEALTHY], False, []),
        ([_outcome(), Outcome(HEALTHY.case, Verdict.FAIL, (), (), (), "")], False, []),
        ([_outcome(), Outcome(HEALTHY.case, Verdict.INCONCLUSIVE, (), (), (), "")], False, []),
    ],
)
def test_the_bench_is_content_with_nothing_less_than_all(
    outcomes: list[Outcome], right: bool, missed: list[str]
) -> None:
    figures = answer(outcomes, 1.0)
    assert perfect(figures) is right
    assert figures["missed"] == missed
    assert (figures["planted"], figures["healthy"]) == (1, 1)


def test_a_warning_counts_as_found_and_is_distinguished_from_a_failure() -> None:
    warning, elsewhere = _finding("burn_rate_per_clock", "gpu3", Severity.WARNING), _finding("ecc_mode", "gpu3")
    assert not _has_failed(SLOW, [warning, elsewhere])
    assert _has_failed(SLOW, [warning, _finding("gemm_rate_per_clock", "gpu3")])
    figures = answer([_outcome(), _outcome(warned=True), _outcome(warned=True), _outcome(found=""), HEALTHY], 1.0)
    assert (figures["found"], figures["convicted"], figures["only_warned"]) == (3, 1, 2)
    assert "warned" in rows(_outcome(warned=True))[0]
    assert "failed" in rows(_outcome())[0]


def test_a_judge_that_only_warns_of_everything_is_not_perfect() -> None:
    warned = dataclasses.replace(HEALTHY, verdict=Verdict.WARN, wrongly_named=("gpu5",))
    figures = answer([_outcome(warned=True, wrongly_named=("gpu5",)), warned, HEALTHY], 1.0)
    assert (figures["found"], figures["right_device"], figures["healthy_failed"]) == (1, 0, 0)
    assert (figures["healthy_warned"], figures["healthy"]) == (1, 2)
    assert not perfect(figures)


def test_why_nothing_can_be_concluded_is_reported_in_the_table() -> None:
    lost = Outcome(
        Case("h100-sxm-8", 1, (SLOW,)), Verdict.INCONCLUSIVE, ("gemm_rate",), (False,), (), "a probe crashed"
    )
    assert rows(lost)[0].endswith("(a probe crashed)")


def test_a_seed_draws_the_same_again_and_every_kind_that_a_model_can_have() -> None:
    cases = draw(list(MODELS), 6, 4, 7)
    assert cases == draw(list(MODELS), 6, 4, 7) != draw(list(MODELS), 6, 4, 8)
    alone = {(case.model, case.faults[0].kind) for case in cases if len(case.faults) == 1}
    assert alone == {(model, kind) for model in MODELS for kind in DEFECTS if DEFECTS[kind].possible(MODELS[model])}
    assert sum(len(case.faults) == 2 for case in cases) == 6
    assert sum(not case.faults for case in cases) == 4


def test_nothing_is_planted_behind_a_gpu_that_is_not_there() -> None:
    dice = random.Random(3)
    pairs = [draw_pair("gb200-nvl72", dice) for _ in range(300)]
    same = [pair for pair in pairs if pair[0].device == pair[1].device]
    assert same
    assert not [pair for pair in same if any(FAULTS[fault.kind].hides for fault in pair)]
