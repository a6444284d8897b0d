"""The wording of the room's refusals and of the sentences that enter a node's history."""

from __future__ import annotations

import datetime
import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.model.runs import Job, RunKey
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
    store.nodes.add(fleet.new_node())
    fleet.fail("gpu-0001", "failed")
    store.nodes.add(fleet.new_node("gpu-0002"))
    lease = store.leases.acquire("gpu-0002", RunKey(fleet.DAG, "r"))
    store.nodes.add(fleet.new_node("gpu-0003"))
    store.nodes.move("gpu-0003", State.RETIRED, "Ada", "old")
    store.adoption.adopt([], "Ada", "it serves", enrol=[("", fleet.new_node("gpu-0004", serials={"system": "S4"}))])
    (finding,) = store.verdicts.open_findings(NODE)
    waived = store.waivers.give(finding.finding.id, LATER, "Ada", "known").id
    store.waivers.revoke(waived, "Ada", "repaired")
    lost = (RunKey(fleet.DAG, "failed"), None, fleet.judgement())
    new = fleet.host_key("new")
    refusals = [
        refused(store.nodes.get, "gpu-0009"),
        refused(store.runs.get, RunKey(fleet.DAG, "gone")),
        refused(store.runs.by_id, "gone"),
        refused(store.revisions.load, "cpu-generic", "9"),
        refused(store.peers.load, "9", "cpu-generic", "short", simulated=False),
        refused(store.goldens.withdraw, "g-9", "Ada", "why"),
        refused(store.goldens.withdraw, "g-9", "root", "why"),
        refused(store.waivers.give, "f-9", LATER, "Ada", "why"),
        refused(store.waivers.give, "f-9", LATER, "", "why"),
        refused(store.waivers.give, finding.finding.id, EARLIER, "Ada", "why"),
        refused(store.waivers.revoke, 9, "Ada", "why"),
        refused(store.waivers.revoke, waived, "Ada", "why"),
        refused(store.pauses.pause, NODE, EARLIER, "Ada", "why"),
        refused(store.pauses.pause, NODE, LATER, "root", "why"),
        refused(store.pauses.resume, NODE, "Ada", "why"),
        refused(store.pauses.resume, NODE, "root", "why"),
        refused(store.waivers.end_of, "soon"),
        refused(store.withdrawals.keep_in_service, NODE, "Ada", "why"),
        refused(store.verdicts.record_approval, NODE, "root", "admit", "why"),
        refused(store.adoption.verify, NODE, "root", "why"),
        refused(store.adoption.adopt, [NODE, "gpu-0009"], "Ada", "why"),
        refused(store.adoption.replace, NODE, "Ada", "why", host_key=fleet.host_key(NODE)),
        refused(store.adoption.adopt, [], "root", "why", enrol=[("", fleet.new_node("gpu-0005"))]),
        refused(store.nodes.move, "gpu-0004", State.QUARANTINE, "muster", "found"),
        refused(store.adoption.replace, NODE, "root", "why", host_key=new),
        refused(store.adoption.replace, NODE, "Ada", "why", host_key="nonsense"),
        refused(store.adoption.replace, NODE, "Ada", "why", host_key=new, serials={"system": "S4"}),
        refused(store.nodes.add, fleet.new_node("gpu-0003")),
        refused(store.nodes.add, fleet.new_node("gpu-0003", host_key=new)),
        refused(store.nodes.add, fleet.new_node("gpu-0003", host_key=new, host="10.0.0.3")),
        refused(store.adoption.rekey, "gpu-0003", "Ada", "why", host_key=new),
        refused(store.contested.confirm, NODE, "G-1", "Ada", "why"),
        refused(store.contested.confirm, NODE, "G-1", "root", "why"),
        refused(store.leases.raise_fence, NODE, 2**60, "Ada", "why"),
        refused(store.leases.raise_fence, NODE, 7, "root", "why"),
        refused(store.runs.begin, RunKey(fleet.DAG, "again"), NODE, "short", "new"),
        refused(fleet.record, *lost),
        refused(store.nodes.move, NODE, State.PRODUCTION, "Ada", "why"),
        refused(store.nodes.move, NODE, State.TRIAGE, "root", "why"),
        refused(store.nodes.add, fleet.new_node(host_key=fleet.host_key("other"))),
        refused(store.nodes.add, fleet.new_node("gpu-0005", host_key=fleet.host_key(NODE))),
        refused(store.nodes.add, fleet.new_node(sku="other")),
        *(
            refused(store.nodes.add, fleet.new_node(**change))
            for change in ({"name": "a__b"}, {"host": "a b"}, {"port": 0}, {"host_key": "x"}, {"sku": " "})
        ),
    ]
    since = f"{lease.acquired_at:%Y-%m-%d %H:%M}"
    refusals.append(refused(store.leases.acquire, "gpu-0002", RunKey(fleet.DAG, "other")).replace(since, "SINCE"))
    store.pauses.pause("gpu-0004", LATER, "Ada", "a technician is there")
    refusals.append(refused(store.leases.acquire, "gpu-0004", RunKey(fleet.DAG, "other")))
    assert "\n".join(refusals) == snapshot


def test_wording_of_a_database_that_cannot_be_used(
    snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch, fleet_db: str
) -> None:
    refusals = []
    for version in ("0000", "9999"):
        with engine.engine().begin() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'"))
        refusals.append(refused(store.nodes.find).replace(engine.SCHEMA, "SCHEMA"))
    for url in UNUSABLE:
        store.engine.dispose()
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        refusals.append(refused(store.nodes.find))
    assert WITHIN.sub("(…)", "\n".join(refusals)) == snapshot


def test_wording_of_backups_that_are_refused(
    snapshot: SnapshotAssertion, fleet_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backup.save(tmp_path / "saved")
    (tmp_path / "text").write_text("no database")
    refusals = [
        refused(store.backup.save, tmp_path / "saved"),
        refused(store.backup.restore, tmp_path / "saved"),
        refused(store.backup.restore, tmp_path / "text"),
        refused(store.backup.restore, tmp_path / "none"),
        refused(store.backup.restore, Path(fleet_db.removeprefix("sqlite:///"))),
    ]
    with sqlite3.connect(tmp_path / "saved") as held:
        held.execute("UPDATE backup SET version = '9.0.0'")
        held.execute("UPDATE alembic_version SET version_num = '9999'")
    refusals.append(refused(store.backup.restore, tmp_path / "saved"))
    assert "\n".join(refusals).replace(str(tmp_path), "FOLDER") == snapshot


def test_wording_of_a_history(snapshot: SnapshotAssertion) -> None:
    store.nodes.add(fleet.new_node())
    store.nodes.add(fleet.new_node(rack="r1"))
    fleet.qualify()
    lease = fleet.begin(run_id="second")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    (found,) = store.verdicts.open_findings(NODE)
    waiver = store.waivers.give(found.finding.id, LATER, "Ada", "known")
    store.waivers.revoke(waiver.id, "Ada", "repaired")
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    store.verdicts.record_unanswered(NODE, "no answer", RunKey(fleet.DAG, "third"))
    store.verdicts.record_approval(NODE, "Ada", "repair", "a new part")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "a new part")
    store.adoption.adopt(["gpu-0002"], "Ada", "it serves", enrol=[("", fleet.new_node("gpu-0002"))])
    for name in (NODE, "gpu-0002"):
        lease, (sent, raw) = fleet.begin(name, f"{name}__parts"), fleet.result(node=name, serials={"gpu3": "G-1"})
        fleet.record(lease.key, sent, fleet.judgement(), raw)
    store.contested.confirm("gpu-0002", "G-1", "Ada", "moved there")
    events = [*store.nodes.events(NODE), *store.nodes.events("gpu-0002")]
    lines = [f"{each.from_state} -> {each.to_state}: {each.actor}: {each.reason}" for each in events]
    assert "\n".join(lines) == snapshot


def test_wording_of_what_runs_leave(snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    store.nodes.add(fleet.new_node())
    for attempt in range(3):
        inconclusive(f"run-{attempt}")
    for name in ("a", "b", "c"):
        visit(name)
    store.nodes.add(fleet.new_node("gpu-0002"))
    lease = fleet.begin("gpu-0002", "r")
    store.runs.record_job(Job(lease.dag_id, "r", "intake", "1", "lost", "/j", note="connection lost"))
    report = store.reporting.run(RunKey(lease.dag_id, "r"))
    taken = [fleet.new_node("gpu-0003"), fleet.new_node("gpu-0004")]
    for node in taken:
        store.nodes.add(node)
    store.leases.acquire_all(["gpu-0003", "gpu-0004"], RunKey("cluster", "one"))
    (tmp_path / "file").write_text("")
    lines = [
        *(each.reason for each in store.nodes.events(NODE)[-2:]),
        store.runs.get(RunKey(fleet.DAG, "c__new")).why_held,
        store.nodes.events("c")[-1].reason,
        *(f"{stage}: {why}" for stage, why in report.not_run[:2]),
        refused(store.leases.acquire_all, ["gpu-0003", "gpu-0004"], RunKey("cluster", "two")),
        refused(store.export.run, RunKey(lease.dag_id, "r"), tmp_path / "file"),
    ]
    assert DATED.sub("SINCE", "\n".join(lines).replace(str(tmp_path), "FOLDER")) == snapshot


def test_wording_of_goldens(snapshot: SnapshotAssertion) -> None:
    visited("a"), visited("b")
    lines = [only().why_not]
    visited("c", gpu5="wrong")
    lines.append(only().why_not)
    lines.append(store.goldens.withdraw(only().id, "Ada", "a driver in between")[0].why_not)
    assert "\n".join(lines) == snapshot
