"""Retention takes what its settings say and nothing else; the outbox loses no mail and sends none twice."""

from __future__ import annotations

import datetime

import pytest
from sqlalchemy import func, select

from muster import records
from muster.records.database.engine import reading
from muster.records.database.models import Artifact, FindingRow, MeasurementRow, StageRecord
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NOW = datetime.datetime.now(datetime.UTC)


def days(number: int) -> datetime.datetime:
    return NOW + datetime.timedelta(days=number)


def left() -> dict[str, int]:
    with reading() as session:
        tables = {"artifacts": Artifact, "measurements": MeasurementRow, "findings": FindingRow, "stages": StageRecord}
        return {name: session.scalar(select(func.count()).select_from(table)) or 0 for name, table in tables.items()}


def a_run() -> None:
    records.add_node(fleet.new_node())
    lease = fleet.begin()
    records.begin_stage(lease.dag_id, lease.run_id, "intake")
    parsed, raw = fleet.result()
    said = fleet.judgement(verdict=Verdict.FAIL, findings=(fleet.FINDING,))
    records.record_stage(lease.dag_id, lease.run_id, parsed, said, raw, fleet.telemetry(10))
    records.finish_run(lease.dag_id, lease.run_id, Verdict.FAIL, "gpu3 is slow.")
    records.release_leases(lease.dag_id, lease.run_id, "over")


@pytest.mark.both_dialects
def test_each_kind_goes_when_its_time_has_come() -> None:
    a_run()
    assert records.apply_retention(days(89)) == records.Purged(0, 0, 0, 0, 0)
    assert records.apply_retention(days(91)) == records.Purged(1, 0, 0, 0, 0)
    assert records.apply_retention(days(366)) == records.Purged(0, 1, 0, 0, 0)
    assert left() == {"artifacts": 0, "measurements": 1, "findings": 1, "stages": 1}
    assert records.apply_retention(days(731)) == records.Purged(0, 0, 1, 0, 0)
    assert records.apply_retention(days(36500)) == records.Purged(0, 0, 0, 0, 0)
    assert left() == {"artifacts": 0, "measurements": 0, "findings": 1, "stages": 1}
    assert records.run_report(fleet.DAG, "gpu-0001__new").stages[0].telemetry


def test_runs_go_only_if_a_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    a_run()
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1000")
    assert records.apply_retention(days(1001)).runs == 1
    assert left() == dict.fromkeys(left(), 0)
    assert len(records.node_events("gpu-0001")) == 3
    assert records.apply_retention(days(1001)).runs == 0


@pytest.mark.both_dialects
def test_many_batches_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.records.database.retention.BATCH", 2)
    for number in range(5):
        records.outbox_add(f"run-{number}", b"mail")
    for message in records.outbox_pending():
        records.outbox_sent(message.id)
    assert records.apply_retention(days(31)).mails == 5


def test_a_mail_waits_until_it_is_sent_and_is_sent_once() -> None:
    assert records.outbox_add("run", b"first") == "added"
    assert records.outbox_add("run", b"second") == "replaced"
    (waiting,) = records.outbox_pending()
    assert waiting.message == b"second"
    records.outbox_failed(waiting.id, "connection refused")
    (waiting,) = records.outbox_pending()
    assert (waiting.attempts, waiting.last_error) == (1, "connection refused")
    assert records.apply_retention(days(36500)).mails == 0
    records.outbox_sent(waiting.id)
    assert records.outbox_pending() == []
    assert records.outbox_add("run", b"third") == "sent already"
    assert records.outbox_pending() == []
