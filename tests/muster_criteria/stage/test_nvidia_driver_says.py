"""What NVIDIA's driver says of a GPU means the same in a test, in its log, between tests, and to a repair."""

from __future__ import annotations

import json

import pytest

from muster_criteria import policy_file
from muster_criteria.device_events.policy import DeviceEvent, EventPolicy, EventSeverity, response_to
from muster_criteria.health.policy import Facts, HealthAction, HealthPolicy, action_on
from muster_criteria.health.readings import Before, Reading, parse, read
from muster_criteria.model import Action, FaultClass, Severity
from muster_criteria.repair.ladder import RepairPolicy, Rung
from muster_criteria.sku_files.skus import SHIPPED
from muster_node.hardware.nvidia.states import RECOVERY_ACTIONS
from muster_node.hardware.nvidia.throttling import HARMFUL_FIRST, UNKNOWN
from tests.muster_criteria.nodes import Case, healthy_raw, shipped

POLICIES = SHIPPED / "policies"
XID = policy_file.parse(EventPolicy, (POLICIES / "nvidia-xid.yaml").read_bytes(), "nvidia-xid.yaml")
HEALTH = policy_file.parse(HealthPolicy, (POLICIES / "health.yaml").read_bytes(), "health.yaml")
REPAIR = policy_file.parse(RepairPolicy, (POLICIES / "repair.yaml").read_bytes(), "repair.yaml")
LOGGED = {
    0: "None", 1: "GPU Reset Required", 2: "Node Reboot Required", 3: "Drain P2P", 4: "Drain and Reset",
    5: "Recover IMEX Domain", 6: "Bus Reset", 7: "System Reboot",
}  # fmt: skip
"""By NVML's code, what XID 154 calls it."""
GRAVE = {EventSeverity.RESET, EventSeverity.REBOOT, EventSeverity.ISOLATE}
HOUR_S = 3600.0


@pytest.mark.parametrize("code", RECOVERY_ACTIONS)
def test_the_state_is_judged_as_the_xid_that_announces_it(code: int) -> None:
    text = f"GPU recovery action changed from 0x0 (None) to {code:#x} ({LOGGED[code]})"
    said = response_to(DeviceEvent("xid", "gpu3", "", text, 154), XID)
    case = Case(shipped("h100-sxm-8"), healthy_raw(shipped("h100-sxm-8"), "intake"))
    findings = case.set("recovery_action", "gpu3", value=RECOVERY_ACTIONS[code]).judge().findings
    judged = [(each.severity, each.action) for each in findings if each.metric == "recovery_action"]
    severity = Severity.CRITICAL if said.severity in GRAVE else Severity.WARNING
    assert judged == ([] if said.severity is EventSeverity.IGNORE else [(severity, said.action)])


def test_an_imex_domain_to_be_recovered_is_no_fault_of_a_gpu() -> None:
    case = Case(shipped("gb200-nvl72"), healthy_raw(shipped("gb200-nvl72"), "intake"))
    for gpu in ("gpu0", "gpu1", "gpu2", "gpu3"):
        case.set("recovery_action", gpu, value="recovery of the IMEX domain")
    found = [each for each in case.judge().findings if each.metric == "recovery_action"]
    assert {(each.severity, each.fault_class) for each in found} == {(Severity.WARNING, FaultClass.SOFTWARE)}


def test_what_no_table_knows_is_no_clean_bill() -> None:
    case = Case(shipped("h100-sxm-8"), healthy_raw(shipped("h100-sxm-8"), "intake"))
    (found,) = case.set("recovery_action", "gpu3", value="action 9").judge().findings
    assert (found.severity, found.action) == (Severity.CRITICAL, Action.RESET)


def shown(text: str) -> list[Reading]:
    answer = {"schema": 1, "facts": [{"name": "recovery_action", "device": "gpu3", "text": text}], "kernel": {}}
    found, _ = read(parse(json.dumps(answer).encode()), Before(), 0.0, policies=())
    return [each for each in found if each.device == "gpu3" and each.bad is not None]


LEAVES, NOTE = HealthAction.LEAVE_WHEN_JOB_ENDS, HealthAction.NOTE
SEEN = {
    "none": None,
    "reset of the GPU": ("recovery_action", LEAVES, Rung.RESET_GPU),
    "reboot of the node": ("reboot_needed", LEAVES, Rung.REBOOT),
    "drain of peer traffic": ("peer_drain", NOTE, Rung.RESET_GPU),  # if it says so still when the traffic has ended
    "drain and reset": ("recovery_action", LEAVES, Rung.RESET_GPU),
    "recovery of the IMEX domain": ("imex_recovery", NOTE, None),  # of the rack, and it may pass
    "reset of the bus": ("recovery_action", LEAVES, Rung.RESET_GPU),
    "reboot of the system": ("reboot_needed", LEAVES, Rung.REBOOT),
}
"""By text: the check that is bad in a sweep, what follows at once, and the first repair."""


@pytest.mark.parametrize("text", RECOVERY_ACTIONS.values())
def test_a_sweep_sees_what_the_driver_asks_for_and_the_repair_is_that(text: str) -> None:
    bad = [each.check for each in shown(text) if each.bad]
    wanted = SEEN[text]
    assert bad == ([] if wanted is None else [wanted[0]])
    if wanted is not None:
        check, action, rung = wanted
        ladder = REPAIR.ladder_for(check)
        assert action_on(Facts(check), HEALTH) is action
        assert action_on(Facts(check, bad_for_s=HOUR_S), HEALTH) is LEAVES
        assert (ladder.rungs[0] if ladder else None) == rung


def test_what_the_driver_asked_for_is_over_when_it_asks_for_something_else() -> None:
    checks = {check for check, *_ in filter(None, SEEN.values())}
    for text in RECOVERY_ACTIONS.values():
        assert {each.check for each in shown(text) if each.check in checks} == checks


JUDGED = {
    "hw_thermal": Severity.CRITICAL, "hw_power_brake": Severity.CRITICAL, "hw_slowdown": Severity.WARNING,
    "sw_thermal": Severity.WARNING, "board_limit": Severity.WARNING, UNKNOWN: Severity.WARNING,
    "sw_power_cap": None, "reliability": None,
}  # fmt: skip
"""By reason, what it is at rest; under load, heat that the driver finds is as grave as the hardware's, and so is a
slowdown that lasts."""
UNDER_LOAD = JUDGED | dict.fromkeys(("sw_thermal", "hw_slowdown"), Severity.CRITICAL)


@pytest.mark.parametrize("reason", [*(name for name, _ in HARMFUL_FIRST), UNKNOWN])
def test_each_throttle_reason_has_its_rule(reason: str) -> None:
    sku = shipped("h100-sxm-8")
    for state in (reason, f"{reason}+sw_power_cap", f"{reason}+reliability"):
        rest = Case(sku, healthy_raw(sku, "intake")).set("throttle_reason", "gpu3", value=state)
        of_rest = {each.severity for each in rest.judge().findings if each.metric == "throttle_reason"}
        assert of_rest == {JUDGED[reason]} - {None}
    load = Case(sku, healthy_raw(sku, "burn_in"))
    if any(load.rows("throttle_time", "gpu3", reason=reason)):
        load.drop("throttle_time", "gpu3", reason=reason)
    for metric, seconds in (("throttle_time", 100.0), ("throttle_peak", 60.0)):
        load.add("gpu_watch", metric, "gpu3", seconds, "s", labels={"reason": reason})
    of_load = [each.severity for each in load.judge().findings if each.metric.startswith("throttle_")]
    assert min(of_load, key=lambda each: each.rank, default=None) == UNDER_LOAD[reason]


@pytest.mark.parametrize(("reason", "seconds", "peak"), [
    ("hw_thermal", 0.04, 1.0), ("hw_thermal", 0.05, 1.0), ("sw_thermal", 0.04, 1.0), ("thermal", 0.04, 1.0),
    ("hw_slowdown", 2.0, 2.0), ("hw_slowdown", 40.0, 3.0),  # forty moments in two days
])  # fmt: skip
def test_what_sound_gpus_show_for_a_moment_warns(reason: str, seconds: float, peak: float) -> None:
    """DCGM prints such heat as 0.0 s; nvml.h: a slowdown "may be also reported during PState or clock change"."""
    load = Case(shipped("h100-sxm-8"), healthy_raw(shipped("h100-sxm-8"), "burn_in"))
    if any(load.rows("throttle_time", "gpu3", reason=reason)):
        load.drop("throttle_time", "gpu3", reason=reason)
    load.add("gpu_watch", "throttle_time", "gpu3", seconds, "s", labels={"reason": reason})
    load.add("gpu_watch", "throttle_peak", "gpu3", peak, "s", labels={"reason": reason})
    found = [each.severity for each in load.judge().findings if each.metric.startswith("throttle_")]
    assert found == [Severity.WARNING]
