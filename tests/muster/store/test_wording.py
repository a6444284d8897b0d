"""The wording of the room's refusals and of the sentences that enter a node's history."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from sqlalchemy import text
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.model.runs import Job
from muster.model.states import State
from muster.store.database import engine
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.store.database.test_engine import UNUSABLE
from tests.muster.store.fleet.test_goldens import only, visited
from tests.muster.store.testing.test_common_causes import visit
from tests.muster.store.testing.test_runs import inconclusive
from tests.support.wording import refused

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
LATER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
DATED = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d")
WITHIN = re.compile(r"\(.*\)")
"""Where a refusal quotes a database's path, or a library's words."""
EARLIER = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def test_wording_of_refusals(snapshot: SnapshotAssertion) -> None:
    store.add_node(fleet.new_node())
    fleet.fail("gpu-0001", "failed")
    store.add_node(fleet.new_node("gpu-0002"))
    lease = store.acquire_lease("gpu-0002", fleet.DAG, "r")
    store.add_node(fleet.new_node("gpu-0003"))
    store.move_node("gpu-0003", State.RETIRED, "Ada", "old")
    store.adopt_nodes([], "Ada", "it serves", enrol=[("", fleet.new_node("gpu-0004", serials={"system": "S4"}))])
    (finding,) = store.open_findings(NODE)
    waived = store.waive_finding(finding.finding.id, LATER, "Ada", "known").id
    store.revoke_waiver(waived, "Ada", "repaired")
    lost = (fleet.DAG, "failed", None, fleet.judgement())
    new = fleet.host_key("new")
    refusals = [
        refused(store.get_node, "gpu-0009"),
        refused(store.get_run, fleet.DAG, "gone"),
        refused(store.find_run, "gone"),
        refused(store.load_revision, "cpu-generic", "9"),
        refused(store.load_snapshot, "9", "cpu-generic", "short", simulated=False),
        refused(store.withdraw_golden, "g-9", "Ada", "why"),
        refused(store.withdraw_golden, "g-9", "root", "why"),
        refused(store.waive_finding, "f-9", LATER, "Ada", "why"),
        refused(store.waive_finding, "f-9", LATER, "", "why"),
        refused(store.waive_finding, finding.finding.id, EARLIER, "Ada", "why"),
        refused(store.revoke_waiver, 9, "Ada", "why"),
        refused(store.revoke_waiver, waived, "Ada", "why"),
        refused(store.pause_node, NODE, EARLIER, "Ada", "why"),
        refused(store.pause_node, NODE, LATER, "root", "why"),
        refused(store.resume_node, NODE, "Ada", "why"),
        refused(store.resume_node, NODE, "root", "why"),
        refused(store.end_of, "soon"),
        refused(store.keep_in_service, NODE, "Ada", "why"),
        refused(store.record_approval, NODE, "root", "admit", "why"),
        refused(store.verify_node, NODE, "root", "why"),
        refused(store.adopt_nodes, [NODE, "gpu-0009"], "Ada", "why"),
        refused(store.replace_node, NODE, "Ada", "why", host_key=fleet.host_key(NODE)),
        refused(store.adopt_nodes, [], "root", "why", enrol=[("", fleet.new_node("gpu-0005"))]),
        refused(store.move_node, "gpu-0004", State.QUARANTINE, "muster", "found"),
        refused(store.replace_node, NODE, "root", "why", host_key=new),
        refused(store.replace_node, NODE, "Ada", "why", host_key="nonsense"),
        refused(store.replace_node, NODE, "Ada", "why", host_key=new, serials={"system": "S4"}),
        refused(store.replace_node, "gpu-0003", "Ada", "why", host_key=new),
        refused(store.confirm_part, NODE, "G-1", "Ada", "why"),
        refused(store.confirm_part, NODE, "G-1", "root", "why"),
        refused(store.raise_fence, NODE, 2**60, "Ada", "why"),
        refused(store.raise_fence, NODE, 7, "root", "why"),
        refused(store.begin_run, fleet.DAG, "again", NODE, "short", "new"),
        refused(store.record_stage, *lost),
        refused(store.move_node, NODE, State.PRODUCTION, "Ada", "why"),
        refused(store.move_node, NODE, State.TRIAGE, "root", "why"),
        refused(store.add_node, fleet.new_node(host_key=fleet.host_key("other"))),
        refused(store.add_node, fleet.new_node("gpu-0005", host_key=fleet.host_key(NODE))),
        refused(store.add_node, fleet.new_node(sku="other")),
        *(
            refused(store.add_node, fleet.new_node(**change))
            for change in ({"name": "a__b"}, {"host": "a b"}, {"port": 0}, {"host_key": "x"}, {"sku": " "})
        ),
    ]
    since = f"{lease.acquired_at:%Y-%m-%d %H:%M}"
    refusals.append(refused(store.acquire_lease, "gpu-0002", fleet.DAG, "other").replace(since, "SINCE"))
    store.pause_node("gpu-0004", LATER, "Ada", "a technician is there")
    refusals.append(refused(store.acquire_lease, "gpu-0004", fleet.DAG, "other"))
    assert "\n".join(refusals) == snapshot


def test_wording_of_a_database_that_cannot_be_used(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, fleet_db: str
) -> None:
    refusals = []
    for version in ("0000", "9999"):
        with engine.engine().begin() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        refusals.append(refused(store.list_nodes).replace(engine.SCHEMA, "SCHEMA"))
    for url in UNUSABLE:
        store.dispose()
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        refusals.append(refused(store.list_nodes))
    assert WITHIN.sub("(…)", "\n".join(refusals)) == snapshot


def test_wording_of_a_history(snapshot: SnapshotAssertion) -> None:
    store.add_node(fleet.new_node())
    store.add_node(fleet.new_node(rack="r1"))
    fleet.qualify()
    lease = fleet.begin(run_id="second")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    (found,) = store.open_findings(NODE)
    waiver = store.waive_finding(found.finding.id, LATER, "Ada", "known")
    store.revoke_waiver(waiver.id, "Ada", "repaired")
    store.finish_run(lease.dag_id, lease.run_id, Verdict.FAIL, "gpu3 is slow.")
    store.release_leases(lease.dag_id, lease.run_id, "over")
    store.record_unanswered(NODE, "no answer", fleet.DAG, "third")
    store.record_approval(NODE, "Ada", "repair", "a new part")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.move_node(NODE, state, "Ada", "a new part")
    store.adopt_nodes(["gpu-0002"], "Ada", "it serves", enrol=[("", fleet.new_node("gpu-0002"))])
    for name in (NODE, "gpu-0002"):
        lease, (sent, raw) = fleet.begin(name, f"{name}__parts"), fleet.result(node=name, serials={"gpu3": "G-1"})
        store.record_stage(lease.dag_id, lease.run_id, sent, fleet.judgement(), raw)
    store.confirm_part("gpu-0002", "G-1", "Ada", "moved there")
    events = [*store.node_events(NODE), *store.node_events("gpu-0002")]
    lines = [f"{each.from_state} -> {each.to_state}: {each.actor}: {each.reason}" for each in events]
    assert "\n".join(lines) == snapshot


def test_wording_of_what_runs_leave(snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    store.add_node(fleet.new_node())
    for attempt in range(3):
        inconclusive(f"run-{attempt}")
    for name in ("a", "b", "c"):
        visit(name)
    store.add_node(fleet.new_node("gpu-0002"))
    lease = fleet.begin("gpu-0002", "r")
    store.record_job(Job(lease.dag_id, "r", "intake", "1", "lost", "/j", note="connection lost"))
    report = store.run_report(lease.dag_id, "r")
    taken = [fleet.new_node("gpu-0003"), fleet.new_node("gpu-0004")]
    for node in taken:
        store.add_node(node)
    store.acquire_leases(["gpu-0003", "gpu-0004"], "cluster", "one")
    (tmp_path / "file").write_text("")
    lines = [
        *(each.reason for each in store.node_events(NODE)[-2:]),
        store.get_run(fleet.DAG, "c__new").why_held,
        store.node_events("c")[-1].reason,
        *(f"{stage}: {why}" for stage, why in report.not_run[:2]),
        refused(store.acquire_leases, ["gpu-0003", "gpu-0004"], "cluster", "two"),
        refused(store.export_run, lease.dag_id, "r", tmp_path / "file"),
    ]
    assert DATED.sub("SINCE", "\n".join(lines).replace(str(tmp_path), "FOLDER")) == snapshot


def test_wording_of_goldens(snapshot: SnapshotAssertion) -> None:
    visited("a"), visited("b")
    lines = [only().why_not]
    visited("c", gpu5="wrong")
    lines.append(only().why_not)
    lines.append(store.withdraw_golden(only().id, "Ada", "a driver in between").why_not)
    assert "\n".join(lines) == snapshot
