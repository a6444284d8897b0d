"""The health policy: what a table says, and which tables are refused with one sentence."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml

from muster_criteria import policy_file
from muster_criteria.device_events.policy import DeviceEvent, EventPolicy, response_to
from muster_criteria.health.policy import Facts, HealthAction, HealthPolicy, action_on
from muster_criteria.health.readings import COUNTED, Before, parse, read
from muster_criteria.policy_file import BadPolicy, Table
from muster_criteria.repair.ladder import RepairPolicy
from muster_criteria.sku_files.skus import SHIPPED

PATH = SHIPPED / "policies" / "health.yaml"
A = HealthAction


def shipped() -> HealthPolicy:
    return policy_file.parse(HealthPolicy, PATH.read_bytes(), PATH.name)


@pytest.mark.parametrize(
    ("kind", "names"),
    [(HealthPolicy, {"health"}), (EventPolicy, {"kernel", "nvidia-xid"}), (RepairPolicy, {"repair"})],
)
def test_only_policies_of_the_asked_kind_are_known(kind: type[Table], names: set[str]) -> None:
    files = {path.stem: path for path in PATH.parent.glob("*.yaml")}
    with pytest.raises(BadPolicy) as unknown:
        policy_file.find(kind, "no-such", [SHIPPED])
    assert {name for name in files if re.search(rf"\b{name}\b", str(unknown.value))} == names
    for name in files.keys() - names:
        with pytest.raises(BadPolicy, match=kind.MARK):
            policy_file.parse(kind, files[name].read_bytes(), name)


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        (Facts("xid/79", "ISOLATE"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("xid/43", "IGNORE"), A.NOTE),
        (Facts("xid/13", "MONITOR"), A.NOTE),
        (Facts("kernel/machine-check", "ISOLATE"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("kernel/unknown", "MONITOR"), A.NOTE),
        (Facts("gpu_lost"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("row_remap_pending"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("channel_repair_pending"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("tpc_repair_pending"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("unrepairable_memory"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("ecc_corrected", rate=999.0), A.NOTE),
        (Facts("ecc_corrected", rate=1e6), A.TEST_SOONER),
        (Facts("ecc_corrected"), A.NOTE),
        (Facts("machine_checks_corrected", rate=1536.0), A.NOTE),  # one error within 10 minutes, to 256 CPUs
        (Facts("machine_checks_corrected", rate=1e6), A.TEST_SOONER),
        (Facts("machine_checks"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("port_down", bad_for_s=600), A.NOTE),
        (Facts("port_down", bad_for_s=600, flaps=3), A.TEST_SOONER),
        (Facts("port_down", bad_for_s=1200), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("unreachable", bad_for_s=3599), A.NOTE),
        (Facts("unreachable", bad_for_s=3600), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("rebooted", recent=((60.0, 1), (3600.0, 1))), A.NOTE),
        (Facts("rebooted", recent=((60.0, 1), (3600.0, 1), (80_000.0, 1))), A.TEST_SOONER),
        (Facts("clock_unsynchronised", bad_for_s=90_000.0), A.NOTE),
        (Facts("kernel_log_gap", recent=((0.0, 1), (600.0, 1))), A.NOTE),
        (Facts("kernel_log_gap", recent=((0.0, 1), (600.0, 1), (3600.0, 1))), A.TEST_SOONER),
        (Facts("corrupted_results"), A.AT_ONCE),
        (Facts("what_nobody_knows", "ISOLATE", count=10**6), A.NOTE),
        (Facts("acme/7", "ISOLATE"), A.LEAVE_WHEN_JOB_ENDS),
        (Facts("event/acme/7", "ISOLATE"), A.TEST_SOONER),
    ],
)
def test_the_shipped_table(facts: Facts, action: HealthAction) -> None:
    assert action_on(facts, shipped()) is action
    assert action_on(facts, shipped(), "watch") is A.NOTE


def test_each_counter_that_can_rise_has_an_entry_of_its_own() -> None:
    """What no entry knows is noted: a counter that was forgotten would never end a node's service."""
    labels = {"throttle_time": {"reason": "hw_thermal"}, "ib_errors": {"counter": "symbol_error"}}
    facts = [{"name": name, "device": "gpu0", "labels": labels.get(name, {})} for name in sorted(COUNTED)]
    seen: dict[str, float] = {}
    for value in (0.0, 300.0):
        answer = {"schema": 1, "boot_id": "b", "facts": [fact | {"value": value} for fact in facts]}
        before = Before("b", 0.0, seen, 600.0)
        found, seen = read(parse(json.dumps(answer).encode()), before, 0.0, policies=())
    checks = {each.check for each in found if each.device == "gpu0" and not each.check.startswith("unread/")}
    assert len(checks) == len(COUNTED)
    known = {check for check in checks for entry in shipped().entries if not entry.severity and entry.knows(check)}
    assert known == checks


def test_only_what_corrupts_is_done_at_once() -> None:
    assert all(entry.corrupts for entry in shipped().entries if entry.action is A.AT_ONCE)


@pytest.mark.parametrize(
    "check", ["disk_full", "kernel/network", "kernel/overheated", "bmc_log/critical", "imex_recovery"]
)
def test_what_half_of_a_place_shows_for_one_cause_is_not_its_nodes(check: str) -> None:
    assert shipped().is_place(check)


def test_a_task_that_waits_for_storage_ends_no_nodes_service() -> None:
    kernel = policy_file.parse(EventPolicy, (PATH.parent / "kernel.yaml").read_bytes(), "kernel.yaml")
    text = "INFO: task python3:4711 blocked for more than 120 seconds."
    said = response_to(DeviceEvent("kernel", "node", "", text, None, 3), kernel)
    assert action_on(Facts(f"kernel/{said.name}", str(said.severity)), shipped()) is A.NOTE


def test_groups_of_nodes_by_label() -> None:
    groups = [
        {"label": "pool", "value": "canary", "mode": "watch"},
        {"label": "team", "value": "a", "mode": "quarantine"},
    ]
    policy = changed(groups=groups)
    assert policy.mode_of({}) == policy.mode_of({"pool": "prod"}) == "quarantine"
    assert policy.mode_of({"pool": "canary"}) == policy.mode_of({"pool": "canary", "team": "a"}) == "watch"


def changed(**fields: Any) -> HealthPolicy:
    table = copy.deepcopy(yaml.safe_load(PATH.read_text()))
    return policy_file.parse(HealthPolicy, yaml.safe_dump(table | fields).encode(), "mine.yaml")


def entry(**fields: Any) -> dict[str, Any]:
    return {"checks": ["gpu_lost"], "action": "note", "source": "here"} | fields


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"entries": [entry(action="at_once")]}, "at_once"),
        ({"entries": [entry(checks=["*"]), entry(action="leave_when_job_ends")]}, "never counts"),
        ({"entries": [entry(at_least=2), entry(at_least=3, action="test_sooner")]}, "never counts"),
        ({"entries": [entry(), entry(severity=["ISOLATE"])]}, "never counts"),
        ({"entries": [entry(severity=["RESET"]), entry(severity=["RESET"])]}, "never counts"),
        ({"entries": [entry(at_least=2), entry(at_least=2, within_s=60)]}, "never counts"),
        ({"entries": [entry(at_least=2, within_s=90), entry(at_least=3, within_s=60)]}, "never counts"),
        ({"entries": [entry(within_s=60)]}, "without at_least"),
        ({"entries": [entry(at_least=2, within_s=90000)]}, "within_s"),
        ({"entries": [entry(source="nowhere")]}, "nowhere"),
        ({"entries": [entry(action="explode")]}, "entries.0.action"),
        ({"entries": [entry(checks=["No Such Check!"])]}, "entries.0.checks"),
        ({"stable_s": 0}, "stable_s"),
        ({"mode": "mend"}, "mode"),
        ({"groups": [{"label": "a", "value": "b", "mode": m} for m in ("watch", "quarantine")]}, "two modes"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused_with_one_sentence(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        changed(**fields)
    assert named in str(refused.value)
    assert str(refused.value).startswith("mine.yaml: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "only",
    [{"checks": ["leak"]}, {"severity": ["ISOLATE"]}, {"at_least": 2}, {"bad_for_s": 9}, {"flaps": 3}, {"per_hour": 2}],
)
def test_an_entry_for_some_observations_leaves_others_to_those_after_it(only: dict[str, Any]) -> None:
    assert len(changed(entries=[entry(**only), entry(action="test_sooner")]).entries) == 2
    others = [entry(severity=[each]) for each in ("RESET", "ISOLATE")]
    assert len(changed(entries=others).entries) == 2


def test_how_often_within_a_time() -> None:
    later = entry(at_least=3, action="test_sooner")
    policy = changed(entries=[entry(at_least=3, within_s=600, action="leave_when_job_ends"), later])
    recent = ((0.0, 1), (300.0, 1), (601.0, 5))
    assert action_on(Facts("gpu_lost", count=7, recent=recent), policy) is A.TEST_SOONER
    assert action_on(Facts("gpu_lost", count=7, recent=((0.0, 1), (600.0, 2))), policy) is A.LEAVE_WHEN_JOB_ENDS
    assert action_on(Facts("gpu_lost", count=2, recent=((0.0, 2),)), policy) is A.NOTE


def test_a_narrower_entry_may_come_before_a_wider_one() -> None:
    policy = changed(entries=[entry(checks=["xid/79"], action="leave_when_job_ends"), entry(checks=["xid/*"])])
    assert action_on(Facts("xid/79"), policy) is A.LEAVE_WHEN_JOB_ENDS
    assert action_on(Facts("xid/13"), policy) is A.NOTE
