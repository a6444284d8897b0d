"""What a SKU revision or snapshot would change over the fleet, before it is adopted."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from muster import store
from muster.errors import MusterError, UnknownNode, UnknownRevision, UnknownSnapshot
from muster.judging import verdict
from muster.judging.case import Collected, fresh_case
from muster.judging.proposal import propose
from muster.model.states import State
from muster_criteria.measured import parse_result
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import SHIPPED, Sku
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.muster.cli.conftest import muster  # noqa: F401 - a fixture
from tests.muster.judging.test_reevaluate import (  # noqa: F401 - fixtures
    LEVEL,
    NODES,
    SKU,
    STAGE,
    Muster,
    judged,
    measured,
    sku,
    snapshot,
    template,
    visited,
)


@pytest.fixture
def stricter(tmp_path: Path) -> Path:
    """SKU files with a floor between the slow GPU and all others."""
    folder = tmp_path / "skus"
    shutil.copytree(SHIPPED, folder)
    file = folder / f"{SKU}.yaml"
    file.write_text(file.read_text().replace("floor: 2610", "floor: 2800"))
    return folder


def test_a_stricter_floor_changes_the_verdict_of_the_slow_node_alone(judged: str, stricter: Path) -> None:  # noqa: F811
    before = store.runs.by_id(judged)
    found = propose(skus=str(stricter))
    (change,) = found.changes
    assert (change.node, change.stage, change.level, change.recorded) == ("n0", STAGE, LEVEL, Verdict.WARN)
    assert (change.now, change.proposed) == (Verdict.WARN, Verdict.FAIL)
    assert "gpu3" in change.reason
    assert len(found.outcomes) == NODES
    assert {each.now for each in found.outcomes if each.node != "n0"} <= {
        Verdict.PASS,
        Verdict.WARN,
        Verdict.PROVISIONAL,
    }
    assert store.runs.by_id(judged) == before, "nothing is recorded"


def test_a_changed_policy_for_device_events_is_a_proposal_too(judged: str, sku: Sku, tmp_path: Path) -> None:  # noqa: F811
    """An XID that the policy in use ignores."""
    _, sent = measured(sku, "n3 remap", "n3", {})
    labels = {"kind": "xid", "code": "63", "pci": "0000:1b:00", "at": "12.5", "n": "0"}
    event = Measurement("device_events", "xid", "gpu3", "text", text="row remapped", labels=labels)
    raw = json.loads(sent)
    raw["measurements"].append(dataclasses.asdict(event))
    result = parse_result(json.dumps(raw).encode())
    lease = fleet.begin("n3", "n3__remap")
    begun = dataclasses.replace(store.runs.get(lease.key), level=LEVEL)
    case = fresh_case(begun, store.nodes.get("n3"), sku, STAGE, Collected(result))
    verdict.record(lease.key, case, store.stages.Sent(result, json.dumps(raw).encode()))
    shutil.copytree(SHIPPED / "policies", tmp_path / "policies")
    policy = tmp_path / "policies" / "nvidia-xid.yaml"
    ignored = "meaning: a memory row is to be remapped\n    severity: IGNORE"
    assert ignored in policy.read_text()
    policy.write_text(policy.read_text().replace(ignored, "meaning: a row\n    severity: REBOOT"))
    (change,) = propose(skus=str(tmp_path)).changes
    assert (change.node, change.proposed) == ("n3", Verdict.FAIL)
    assert change.now is not Verdict.FAIL


def test_another_snapshot_is_a_proposal_too(judged: str, sku: Sku) -> None:  # noqa: F811
    from muster.operators import statistics

    old = snapshot()
    visited("n1", sku, "again")
    statistics.recompute()
    assert snapshot() != old
    found = propose(as_of=old)
    assert len(found.outcomes) == NODES
    assert [each.node for each in propose(as_of=old, node="n3").outcomes] == ["n3"]


def test_a_proposal_that_proposes_nothing_is_refused(judged: str, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(MusterError):
        propose()
    with pytest.raises(MusterError):
        propose(skus=str(tmp_path))
    with pytest.raises(UnknownRevision):
        propose(skus="no/where")
    with pytest.raises(UnknownSnapshot):
        propose(as_of="x")


def test_a_node_or_a_stage_that_does_not_exist_is_no_proposal_without_changes(
    judged: str,  # noqa: F811
    stricter: Path,
) -> None:
    with pytest.raises(UnknownNode):
        propose(skus=str(stricter), node="none")
    with pytest.raises(MusterError) as refused:
        propose(skus=str(stricter), stage="perfomance")
    assert "perfomance" in str(refused.value)


@pytest.mark.parametrize("used", [False, True])
def test_a_wrong_sku_file_leaves_no_node_out(
    judged: str,  # noqa: F811
    stricter: Path,
    used: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.nodes.add(fleet.new_node("c1", sku="cpu-generic"))
    lease = fleet.begin("c1")
    parsed, raw = fleet.result("intake", node="c1")
    judgement = dataclasses.replace(fleet.judgement("intake", Verdict.PASS), sku="cpu-generic")
    fleet.record(lease.key, parsed, judgement, raw, node="c1")
    assert {each.node for each in propose(skus=str(stricter)).changes} == {"n0"}
    wrong = stricter / "cpu-generic.yaml"
    wrong.write_text(wrong.read_text().replace("devices:", "devics:"))
    if used:
        monkeypatch.setenv("MUSTER_SKU_PATH", str(stricter))
    with pytest.raises(MusterError) as refused:
        propose(skus=str(SHIPPED if used else stricter))
    assert wrong.name in str(refused.value)


@pytest.mark.parametrize("retired", [False, True])
def test_what_is_not_asked_about_refuses_nothing(judged: str, stricter: Path, retired: bool) -> None:  # noqa: F811
    """The SKU file of a node that is retired, or that is not the one that is named, may be gone."""
    store.nodes.add(fleet.new_node("x1", sku="gone"))
    lease = fleet.begin("x1")
    parsed, raw = fleet.result("intake", node="x1")
    judgement = dataclasses.replace(fleet.judgement("intake", Verdict.PASS), sku="gone")
    fleet.record(lease.key, parsed, judgement, raw, node="x1")
    with pytest.raises(MusterError):
        propose(skus=str(stricter))
    if retired:
        store.leases.release(lease.key, "over")
        store.nodes.move("x1", State.RETIRED, "Ada", "sold")
    found = propose(skus=str(stricter), node="" if retired else "n0")
    assert [each.node for each in found.changes] == ["n0"]


def test_results_that_are_kept_no_longer_are_named(judged: str, stricter: Path) -> None:  # noqa: F811
    store.retention.apply(store.peers.find()[0].made_at.replace(year=2100))
    found = propose(skus=str(stricter))
    assert (len(found.outcomes), len(found.without_result)) == (0, NODES)


def test_the_command_prints_changes_as_a_table_and_as_json(judged: str, stricter: Path, muster: Muster) -> None:  # noqa: F811
    status, out, _ = muster("judge", "--fleet", "--skus", str(stricter))
    assert status == 0
    assert "WARN" in out
    assert f"1 of {NODES} verdicts on {NODES} nodes would change." in out
    printed = json.loads(muster("judge", "--fleet", "--skus", str(stricter), "--json")[1])
    assert [(each["node"], each["proposed"]) for each in printed["changes"]] == [("n0", "FAIL")]
    for wrong in (["judge"], ["judge", "--fleet", judged]):
        status, _, err = muster(*wrong)
        assert status == 1
        assert "--fleet" in err
