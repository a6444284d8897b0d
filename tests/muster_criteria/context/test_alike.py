"""Nodes that fail alike: the third of one rack is a common cause, just inside and just outside, and bits never wait."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster_criteria.context.alike import Neighbour, compared_with, groups_of, symptom, why_held
from muster_criteria.context.waivers import Machine, Waiver, waive
from muster_criteria.model import (
    COMMON_CAUSE,
    DEVICE_EVENT,
    EVIDENCE,
    Action,
    Coverage,
    FaultClass,
    Finding,
    Judgement,
    Severity,
    Verdict,
)

RACK = {"rack": "r1", "image": "kernel 6.8 driver 570"}
SLOW = Finding(
    rule="floor", metric="gemm_rate", device="gpu3", severity=Severity.CRITICAL, fault_class=FaultClass.GPU,
    action=Action.RMA, observed="480 TFLOPS", expected="≥ 600 TFLOPS", source="s", summary="gpu3 is slow.",
    measurements=("gemm_rate:gemm_rate@gpu3",),
)  # fmt: skip
WRONG = dataclasses.replace(SLOW, rule="exactly", metric="gemm_mismatches", device="gpu1")


LOST = dataclasses.replace(
    SLOW, rule=DEVICE_EVENT, metric="xid", labels=(("code", "79"), ("kind", "xid"), ("when", "during")), measurements=()
)


def judgement(*findings: Finding) -> Judgement:
    return Judgement(
        "performance", "short", Verdict.FAIL, "slow.", Coverage(1, 1, 1), findings or (SLOW,), (), False, "h100", "1"
    )


def neighbour(name: str, *failing: str, **groups: str) -> Neighbour:
    return Neighbour(name, groups or {"rack": "r1"}, frozenset(failing))


def others(alike: int, well: int) -> list[Neighbour]:
    return [
        *(neighbour(f"bad{number}", "gpu gemm_rate") for number in range(alike)),
        *(neighbour(f"good{number}") for number in range(well)),
    ]


@pytest.mark.parametrize(
    ("alike", "well", "held"),
    [
        (1, 0, False),  # two nodes are a coincidence
        (2, 0, True),
        (2, 3, True),  # three of six: half
        (2, 4, False),  # three of seven
        (3, 4, True),
        (0, 0, False),
    ],
)
def test_the_third_node_alike_is_a_common_cause_just_inside_and_just_outside(alike: int, well: int, held: bool) -> None:
    judged = compared_with(judgement(), "this", RACK, others(alike, well))
    assert bool(why_held(judged.findings)) is held
    assert judged.verdict is Verdict.FAIL, "the node does not pass"
    if held:
        cause, device = judged.findings
        assert (cause.rule, cause.fault_class, cause.action) == (COMMON_CAUSE, FaultClass.FACILITY, Action.ASK_FACILITY)
        assert device.action is Action.ASK_FACILITY
        assert device.confidence < SLOW.confidence
        assert cause.measurements == SLOW.measurements
    else:
        assert judged == judgement()


def test_nodes_of_another_rack_are_no_company_but_nodes_of_one_image_are_a_software_problem() -> None:
    elsewhere = [neighbour(f"n{number}", "gpu gemm_rate", rack="r2", image=RACK["image"]) for number in range(2)]
    assert compared_with(judgement(), "this", {"rack": "r1"}, elsewhere) == judgement()
    cause = compared_with(judgement(), "this", RACK, elsewhere).findings[0]
    assert (cause.fault_class, cause.action) == (FaultClass.SOFTWARE, Action.FIX_SOFTWARE)


def test_another_symptom_is_not_alike_and_a_fault_of_its_own_fails_the_node() -> None:
    company = others(2, 0)
    hot = dataclasses.replace(SLOW, rule="ceiling", metric="temperature_max", device="gpu5", measurements=("hot",))
    assert compared_with(judgement(hot), "this", RACK, company) == judgement(hot)
    both = compared_with(judgement(SLOW, hot), "this", RACK, company)
    assert [each.measurements for each in both.findings if each.rule == COMMON_CAUSE] == [SLOW.measurements]
    assert why_held(both.findings) == ""
    assert next(each for each in both.findings if each.device == "gpu5") == hot


def test_corrupted_data_waits_for_nothing() -> None:
    company = [neighbour(f"n{number}", "gpu gemm_mismatches", "gpu gemm_rate") for number in range(5)]
    assert compared_with(judgement(WRONG), "this", RACK, company) == judgement(WRONG)
    assert why_held(compared_with(judgement(SLOW, WRONG), "this", RACK, company).findings) == ""


@pytest.mark.parametrize(("alike", "accepted", "well", "held"), [(2, 4, 0, True), (2, 4, 6, True), (2, 4, 8, False),
                                                              (1, 4, 0, False)])  # fmt: skip
def test_a_node_whose_fault_is_waived_is_no_company_and_hides_no_cause_of_others(
    alike: int, accepted: int, well: int, held: bool
) -> None:
    known = [Neighbour(f"known{number}", RACK, frozenset(), frozenset(["gpu gemm_rate"])) for number in range(accepted)]
    judged = compared_with(judgement(), "this", RACK, [*others(alike, well), *known])
    assert bool(why_held(judged.findings)) is held


@pytest.mark.parametrize(("devices", "waived"), [(["gpu3"], True), (["gpu3", "gpu5"], False)])
@pytest.mark.parametrize("within", [False, True])
def test_a_common_cause_is_waived_with_all_that_it_explains(devices: list[str], waived: bool, within: bool) -> None:
    """Alone, what is waived fails no stage: it fails none where other nodes, or devices, have it too."""
    found = judgement(*(dataclasses.replace(SLOW, device=device) for device in devices))
    if within:
        cause = dataclasses.replace(SLOW, rule=COMMON_CAUSE, device="node")
        found = dataclasses.replace(found, findings=(cause, *found.findings))
    else:
        found = compared_with(found, "this", RACK, others(2, 0))
    now = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    until = now + datetime.timedelta(days=1)
    waiver = Waiver(1, "this", "", SLOW.rule, SLOW.metric, "gpu3", SLOW.labels, "Ada", "known", now, until)
    after = waive(found, [waiver], Machine("this", {}), now)
    assert [bool(each.waived) for each in after.findings][:2] == [waived, True]
    assert after.verdict is (Verdict.WARN if waived else Verdict.FAIL)
    assert bool(why_held(after.findings)) is not (waived or within)


def test_the_node_itself_is_not_its_own_company() -> None:
    again = [neighbour("this", "gpu gemm_rate"), *others(1, 0)]
    assert compared_with(judgement(), "this", RACK, again) == judgement()


def test_what_is_waived_or_only_warns_has_no_symptom() -> None:
    assert symptom(SLOW) == "gpu gemm_rate"
    assert symptom(dataclasses.replace(SLOW, waived="by ann")) == ""
    assert symptom(dataclasses.replace(SLOW, severity=Severity.WARNING)) == ""
    reboot = dataclasses.replace(SLOW, rule="uncommanded_reboot", metric="evidence", device="node")
    assert symptom(reboot) == "node uncommanded_reboot", "evidence of the controller is distinguished by its kind"


def test_devices_alike_within_a_node_are_no_group_and_hold_nothing_by_themselves() -> None:
    within = dataclasses.replace(SLOW, rule=COMMON_CAUSE, device="node")
    assert why_held([within, SLOW]) == ""


def test_groups_are_named_by_what_is_known() -> None:
    assert groups_of("r1", {"kernel": "6.8", "driver": "570", "torch": None}) == RACK
    assert groups_of("r1", {"kernel": "6.8", "driver": "570", "nccl": "2.27"})["image"] != RACK["image"]
    assert groups_of("", {}) == {}


def test_messages_of_a_driver_are_alike_by_their_code() -> None:
    """Two nodes that lost a GPU are no company for one whose memory failed."""
    memory = dataclasses.replace(LOST, labels=(("code", "48"), ("kind", "xid"), ("when", "during")))
    lost = [neighbour(name, symptom(LOST)) for name in ("a", "b")]

    assert not why_held(compared_with(judgement(memory), "this", RACK, lost).findings)
    held = compared_with(judgement(LOST), "this", RACK, lost)
    assert why_held(held.findings)


def throttled(reason: str, fault: FaultClass) -> Finding:
    return dataclasses.replace(
        SLOW, rule="exactly", metric="throttle_time", fault_class=fault, labels=(("reason", reason),)
    )


HOT, BRAKED = throttled("hw_thermal", FaultClass.COOLING), throttled("hw_power_brake", FaultClass.PSU)


def of(metric: str, device: str, **labels: str) -> Finding:
    return dataclasses.replace(SLOW, metric=metric, device=device, labels=tuple(labels.items()))


def returned(code: str) -> Finding:
    return dataclasses.replace(of(EVIDENCE, "gpu3", code=code, kind="xid"), rule="event_returns")


@pytest.mark.parametrize(
    ("others_have", "this_has", "held"),
    [
        (HOT, HOT, True),
        (HOT, BRAKED, False),
        (throttled("sw_thermal", FaultClass.COOLING), HOT, True),  # one overheated rack shows both
        (LOST, dataclasses.replace(LOST, device="node"), True),  # it was lost before it was named
        (returned("109"), returned("48"), False),
        (of("memory_bandwidth", "memory"), of("memory_bandwidth", "gpu3"), False),
        (of("memory_bandwidth", "gpu0"), of("memory_bandwidth", "gpu3"), True),
        (of("dcgm_failures", "gpu3", test="memory"), of("dcgm_failures", "gpu3", test="pcie"), False),
        (of("nvlink_errors_delta", "gpu3", kind="crc"), of("nvlink_errors_delta", "gpu3", kind="recovery"), False),
        (of("collective_busbw", "node", bytes="8"), of("collective_busbw", "node", bytes="1024"), True),
        (dataclasses.replace(HOT, rule="ceiling"), HOT, True),  # by another rule, the same symptom
    ],
)
def test_another_cause_of_the_same_metric_or_another_kind_of_device_is_not_alike(
    others_have: Finding, this_has: Finding, held: bool
) -> None:
    company = [neighbour(name, symptom(others_have)) for name in ("a", "b")]
    judged = compared_with(judgement(this_has), "this", RACK, company)
    assert bool(why_held(judged.findings)) is held
    assert (judged == judgement(this_has)) is not held


def test_a_common_cause_is_waived_with_what_has_its_cause_alone() -> None:
    """Of the node's two findings in one metric, one is what others have too: the other one's waiver is not its."""
    company = [neighbour(name, symptom(HOT)) for name in ("a", "b")]
    found = compared_with(judgement(HOT, dataclasses.replace(BRAKED, device="gpu5")), "this", RACK, company)
    now = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    known = Waiver(1, "this", "", HOT.rule, HOT.metric, HOT.device, HOT.labels, "Ada", "known", now,
                   now + datetime.timedelta(days=1))  # fmt: skip
    after = waive(found, [known], Machine("this", {}), now)
    assert [bool(each.waived) for each in after.findings] == [True, True, False]
    assert after.verdict is Verdict.FAIL
