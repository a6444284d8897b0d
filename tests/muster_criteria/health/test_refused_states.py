"""A GPU that answers who it is and refuses the rest: from NVML's stand-in through the sweep to both policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from muster_criteria import policy_file
from muster_criteria.health.policy import Facts, HealthAction, HealthPolicy, action_on
from muster_criteria.health.readings import Before, Reading, parse, read
from muster_criteria.repair.ladder import RepairPolicy, Rung
from muster_criteria.sku_files.skus import SHIPPED
from muster_node import sweep
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from tests.muster_node.hardware.nvml_standin import FakeNvml

HOUR_S = 3600.0
POLICIES = SHIPPED / "policies"
HEALTH = policy_file.parse(HealthPolicy, (POLICIES / "health.yaml").read_bytes(), "health.yaml")
REPAIR = policy_file.parse(RepairPolicy, (POLICIES / "repair.yaml").read_bytes(), "repair.yaml")


class Machine(HostHardware):
    """A machine with the GPUs of a stand-in, and a kernel log that says nothing."""

    def kernel_log(self) -> list[str] | None:
        return []


def seen(root: Path, nvml: FakeNvml) -> list[Reading]:
    """What two sweeps show of its GPUs, the first before anything was wrong."""
    refusing, nvml.only_identity = nvml.only_identity, {}
    before, found = Before(), []
    for refused in ({}, refusing):
        nvml.only_identity = refused
        machine = Machine(Files(root), NvidiaGpus(nvml))
        answer = parse(json.dumps(sweep.sweep(lambda machine=machine: machine, "", 0.0, Files(root))).encode())
        found, counters = read(answer, before, answer.wall or 0.0, policies=(), gpus=8)
        before = Before(answer.boot_id, 0.0, counters, 600.0)
    return [each for each in found if each.device.startswith("gpu")]


def board() -> FakeNvml:
    return FakeNvml(links=18, nvmlDeviceGetRemappedRows=(0, 0, 0, 0), nvmlDeviceGetCurrPcieLinkWidth=16)


def test_a_gpu_that_refuses_until_it_is_reset_leaves_service_and_is_reset(tmp_path: Path) -> None:
    nvml = board()
    nvml.only_identity[3] = pynvml.NVML_ERROR_RESET_REQUIRED  # NVML index 3 sits in slot 6
    bad = [each for each in seen(tmp_path, nvml) if each.bad]
    assert {(each.check, each.device) for each in bad} >= {("recovery_action", "gpu6"), ("gpu_lost", "gpu6")}
    assert {each.device for each in bad} == {"gpu6"}
    first = next(each for each in bad if action_on(Facts(each.check), HEALTH).leaves)
    ladder = REPAIR.ladder_for(first.check)  # of the one that is recorded first, which the node leaves for
    assert ladder is not None
    assert ladder.rungs[0] is Rung.RESET_GPU


def test_a_gpu_of_which_no_state_can_be_read_is_not_healthy_for_an_hour(tmp_path: Path) -> None:
    nvml = board()
    nvml.only_identity[3] = pynvml.NVML_ERROR_UNKNOWN
    (found,) = [each for each in seen(tmp_path, nvml) if each.bad]
    assert (found.check, found.device) == ("unread/states", "gpu6")
    actions = [action_on(Facts(found.check, bad_for_s=seconds), HEALTH) for seconds in (0.0, HOUR_S)]
    assert actions == [HealthAction.NOTE, HealthAction.TEST_SOONER]


def test_of_a_gpu_whose_states_are_read_again_it_is_over(tmp_path: Path) -> None:
    found = [each for each in seen(tmp_path, board()) if each.check == "unread/states"]
    assert {each.device: each.bad for each in found} == {f"gpu{slot}": False for slot in range(8)}


@pytest.mark.parametrize(
    ("fact", "bad"),
    [
        ({"name": "recovery_action", "note": "not supported"}, False),
        ({"name": "row_remap_pending", "note": "not supported by the NVML binding (nvmlDeviceGetRemappedRows)"}, False),
        ({"name": "row_remap_pending", "note": "NVML: Unknown Error (error 999)"}, True),
        ({"name": "fabric_healthy"}, True),
        ({"name": "recovery_action", "text": "none"}, False),
    ],
)
def test_what_a_gpu_does_not_have_is_not_refused(fact: dict[str, Any], bad: bool) -> None:
    answer = parse(json.dumps({"schema": 1, "facts": [{"device": "gpu3", **fact}], "kernel": {}}).encode())
    found, _ = read(answer, Before(), 0.0, policies=())
    assert [each.bad for each in found if each.check == "unread/states"] == [bad]
