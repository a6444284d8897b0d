"""The shipped ladders: what a repair is tried for, the tests that prove it can see."""

from __future__ import annotations

import fnmatch

import pytest

from muster_criteria import policy_file
from muster_criteria.repair.ladder import DEFAULT, Ladder, RepairPolicy
from muster_criteria.sku_files.declarations import declared_probes
from muster_criteria.sku_files.programme import stage_probes
from muster_criteria.sku_files.skus import SHIPPED, load_sku

POLICY = policy_file.parse(RepairPolicy, (SHIPPED / "policies" / f"{DEFAULT}.yaml").read_bytes(), DEFAULT)
SEEN_AS = {
    "xid/*": "xid", "sxid/*": "xid", "kernel/*": "kernel_event", "gpu_missing": "gpu_count",
    "nvlink_down": "nvlink_active", "service/nvidia-fabricmanager": "fabric_manager",
    "reboot_needed": "recovery_action", "peer_drain": "recovery_action",
    "unreachable": "boot_id",  # whatever is measured
    "hung/*": "recovery_action",  # what a driver that hangs gives no more, as each reading
}  # fmt: skip
"""By check, the metric that shows it in a test; of others it has the check's name."""


def shown_by(check: str) -> str:
    return next((metric for known, metric in SEEN_AS.items() if fnmatch.fnmatchcase(check, known)), check)


@pytest.mark.parametrize("ladder", POLICY.ladders, ids=lambda each: each.fault)
def test_each_check_of_a_ladder_is_measured_by_a_stage_that_proves_its_repair(ladder: Ladder) -> None:
    sku, declared = load_sku("h100-sxm-8"), declared_probes()
    probes = {probe for stage in ladder.prove for probe in stage_probes(sku, stage, ladder.level)}
    measured = {metric for probe in probes if probe in declared for metric in declared[probe].units}
    assert {each for each in ladder.checks if shown_by(each) not in measured} == set()


def test_a_gpu_that_asks_for_a_reset_in_the_log_is_reset() -> None:
    ladder = POLICY.ladder_for("kernel/gpu-needs-reset")
    assert ladder is not None
    assert ladder.rungs[0] == "reset_gpu"
