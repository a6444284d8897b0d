"""Retention takes what its settings say and nothing else; the outbox loses no mail and sends none twice."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from muster import store
from muster.errors import BadSettings
from muster.model.repairs import Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access, engine
from muster.store.database.digests import DigestRow, SuspectRow
from muster.store.database.engine import reading
from muster.store.database.models import (
    ArtifactRow,
    EventRow,
    FindingRow,
    MeasurementRow,
    PartRow,
    PlacementRow,
    StageRow,
)
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.support import lives

pytestmark = pytest.mark.usefixtures("fleet_db")

NOW = datetime.datetime.now(datetime.UTC)


def days(number: int) -> datetime.datetime:
    return NOW + datetime.timedelta(days=number)


def left() -> dict[str, int]:
    with reading() as session:
        tables = {"artifacts": ArtifactRow, "measurements": MeasurementRow, "findings": FindingRow, "stages": StageRow}
        return {name: session.scalar(select(func.count()).select_from(table)) or 0 for name, table in tables.items()}


def a_run() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    store.runs.begin_stage(lease.key, "intake")
    parsed, raw = fleet.result()
    judgement = fleet.judgement(verdict=Verdict.FAIL, findings=(fleet.FINDING,))
    fleet.record(lease.key, parsed, judgement, raw, fleet.telemetry(10))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")


def put_back(name: str = "gpu-0001") -> None:
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(name, state, "Ada", "looked at")


def deleted(now: datetime.datetime) -> dict[str, int]:
    """How many rows of each kind retention deletes by then, without the kinds of which it deletes none."""
    return {kind: count for kind, count in store.retention.apply(now).items() if count}


@pytest.mark.both_dialects
def test_each_kind_goes_when_its_time_has_come() -> None:
    a_run()
    put_back()
    assert deleted(days(89)) == {}
    assert deleted(days(91)) == {"telemetry": 1}
    assert deleted(days(366)) == {"results": 1}
    assert left() == {"artifacts": 0, "measurements": 1, "findings": 1, "stages": 1}
    assert deleted(days(731)) == {"measurements": 1}
    assert deleted(days(36500)) == {}
    assert left() == {"artifacts": 0, "measurements": 0, "findings": 1, "stages": 1}
    assert store.reporting.run(RunKey(fleet.DAG, "gpu-0001__new")).stages[0].telemetry


def _quarantined() -> None:
    a_run()


def _held() -> None:
    store.nodes.add(fleet.new_node())
    lives.in_production("gpu-0001")
    with pytest.MonkeyPatch.context() as breaker:
        breaker.setenv("MUSTER_BREAKER_FLEET", "1")
        fleet.fail(run_id="gpu-0001__bad")
    assert store.nodes.get("gpu-0001").held_run


def _with_an_incident() -> None:
    a_run()
    store.repairs.open_incident("gpu-0001", Fault("gpu", "gpu3"), "it is slow", ["intake"], "short")
    put_back()


@pytest.mark.both_dialects
@pytest.mark.parametrize("begin", [_quarantined, _held, _with_an_incident])
def test_what_was_measured_stays_until_the_case_is_closed(
    begin: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may be at its vendor's, and a decision may wait, for longer than any of it is kept."""
    begin()
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1000")
    before = left()
    assert deleted(days(36500)) == {}
    assert left() == before
    if store.nodes.get("gpu-0001").held_run:
        store.withdrawals.keep_in_service("gpu-0001", "Ada", "it is known")
    for incident in store.repairs.find(still_open=True):
        store.repairs.close(incident.id, "proved")
    if store.nodes.get("gpu-0001").state is State.QUARANTINE:
        put_back()
    store.retention.apply(days(36500))
    assert left()["artifacts"] == 0


@pytest.mark.both_dialects
def test_what_the_members_of_a_block_share_stays_while_the_case_of_one_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpu-0001", "gpu-0002"):
        store.nodes.add(fleet.new_node(name))
        lease = fleet.begin(name, "block")
        fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
        store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.", node=name)
        store.leases.release(lease.key, "over")
        if name == "gpu-0001":
            store.nodes.move(name, State.RETIRED, "Ada", "not worth it")
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1000")
    assert store.retention.apply(days(1001))["runs"] == 0
    store.nodes.move("gpu-0002", State.RETIRED, "Ada", "not worth it")
    assert store.retention.apply(days(1001))["runs"] == 2


def test_runs_go_only_if_a_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    a_run()
    store.nodes.move("gpu-0001", State.RETIRED, "Ada", "not worth it")
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1000")
    assert store.retention.apply(days(1001))["runs"] == 1
    assert left() == dict.fromkeys(left(), 0)
    assert len(store.nodes.events("gpu-0001")) == 4
    assert store.retention.apply(days(1001))["runs"] == 0


@pytest.mark.both_dialects
@pytest.mark.parametrize(("later", "level", "kept", "stages"), [
    (Verdict.PASS, "short", 0, 1), (Verdict.PASS, "demo", 1, 2),
    (Verdict.INCONCLUSIVE, "short", 1, 1), (None, "", 1, 1),
])  # fmt: skip
def test_what_stands_against_a_node_is_not_forgotten_by_its_age(
    later: Verdict | None, level: str, kept: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node whose thorough test failed would enter production after a short one, once enough time went by."""
    a_run()
    put_back()
    if later:
        lease = fleet.begin(run_id="again", level=level)
        fleet.do_stage(lease, "intake", later, level=level)
        store.runs.finish(lease.key, later, "again")
        store.leases.release(lease.key, "over")
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1000")
    store.retention.apply(days(1001))
    assert [each.verdict for each in store.verdicts.latest("gpu-0001") if each.verdict is Verdict.FAIL] == (
        [Verdict.FAIL] * kept
    )
    assert left()["stages"] == stages


@pytest.mark.both_dialects
def test_the_pass_that_replaced_a_fail_stays_as_long_as_the_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FAIL's run is kept since another of its stages still stands; without the PASS the FAIL would stand again."""
    store.nodes.add(fleet.new_node())
    first = {"intake": Verdict.WARN, "burn_in": Verdict.FAIL}
    repaired = {"intake": Verdict.INCONCLUSIVE, "burn_in": Verdict.PASS}
    revalidated = dict.fromkeys(first, Verdict.PASS)
    for run_id, level, verdicts in (
        ("first", "standard", first), ("repaired", "standard", repaired), ("revalidated", "short", revalidated),
    ):  # fmt: skip
        lease = fleet.begin(run_id=run_id, level=level)
        for stage, verdict in verdicts.items():
            fleet.do_stage(lease, stage, verdict, level=level)
        store.runs.finish(lease.key, Verdict.FAIL if run_id == "first" else Verdict.INCONCLUSIVE, run_id)
        store.leases.release(lease.key, "over")
        if run_id == "first":
            put_back()
    before = store.verdicts.latest("gpu-0001")
    monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "400")
    store.retention.apply(days(401))
    assert store.verdicts.latest("gpu-0001") == before


@pytest.mark.both_dialects
def test_retention_waits_for_no_writer_where_nothing_goes_and_deletes_few_files_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_run()
    put_back()
    store.nodes.add(fleet.new_node("gpu-0002"))
    fleet.qualify("gpu-0002", stages=("intake",))
    monkeypatch.setattr("muster.store.database.retention.FEW", 1)
    begun: list[int] = []

    def counted() -> contextlib.AbstractContextManager[Session]:
        begun.append(1)
        return engine.writing()

    monkeypatch.setattr("muster.store.database.retention.writing", counted)
    store.retention.apply(days(89))
    assert not begun
    assert store.retention.apply(days(366))["results"] == len(begun) - 1


def stored() -> dict[str, int]:
    with reading() as session:
        tables = {
            "digests": DigestRow,
            "suspects": SuspectRow,
            "parts": PartRow,
            "places": PlacementRow,
            "events": EventRow,
        }
        return {name: session.scalar(select(func.count()).select_from(table)) or 0 for name, table in tables.items()}


@pytest.fixture
def old(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two years ago a part of gpu-0001 that returned wrong bits was replaced, and one of gpu-0002 that still sits there
    did the same; today both nodes pass.
    """
    monkeypatch.setattr(access, "now", lambda: days(-730))
    corrupt = fleet.finding(metric="gemm_mismatches", device="gpu3")
    bits = [
        Measurement("full_entropy", "golden_key", "gpu3", "text", text="driver=1"),
        Measurement("full_entropy", "full_entropy_digest", "gpu3", "text", text="abc", labels={"op": "softmax"}),
    ]
    for node in ("gpu-0001", "gpu-0002"):
        store.nodes.add(fleet.new_node(node))
        lease = fleet.begin(node, f"{node}__old")
        sent, raw = fleet.result(node=node, serials={"system": node, "gpu3": f"{node}-OLD"}, measurements=bits)
        found = fleet.judgement(verdict=Verdict.FAIL, findings=(corrupt,))
        fleet.record(lease.key, sent, found, raw)
        store.leases.release(lease.key, "over")
    lease = fleet.begin("gpu-0001", "gpu-0001__swapped")
    sent, raw = fleet.result(node="gpu-0001", serials={"gpu3": "NEW"})
    fleet.record(lease.key, sent, fleet.judgement(), raw)
    store.leases.release(lease.key, "over")
    monkeypatch.setattr(access, "now", lambda: NOW)


@pytest.mark.both_dialects
@pytest.mark.usefixtures("old")
def test_parts_suspicions_and_events_stay_unless_a_setting_says_so_and_what_is_in_use_stays_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = stored()
    assert (before["digests"], before["suspects"], before["parts"], before["places"]) == (2, 2, 5, 5)
    assert store.retention.apply(NOW)["parts"] == 0
    assert stored() == before
    monkeypatch.setattr("muster.store.database.retention.DIGESTS_DAYS", 400)
    for kind in ("PARTS", "EVENTS"):
        monkeypatch.setenv(f"MUSTER_RETENTION_{kind}_DAYS", "400")
    planned = store.retention.apply(NOW, dry_run=True)
    assert stored() == before
    purged = store.retention.apply(NOW)
    assert (purged["digests"], purged["suspects"], purged["parts"]) == (2, 1, 1)
    assert [planned[kind] for kind in ("digests", "suspects", "events")] == [2, 1, purged["events"]]
    after = stored()
    assert (after["digests"], after["suspects"], after["parts"], after["places"], after["events"]) == (0, 1, 4, 4, 0)
    assert [each.finding.device for each in store.verdicts.open_findings("gpu-0002")][-1:] == ["gpu3"], (
        "it still sits there"
    )
    assert store.parts.history("gpu-0001-OLD") == []
    assert deleted(NOW) == {}


@pytest.mark.both_dialects
def test_a_node_that_entered_long_ago_and_was_tested_since_is_no_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RETENTION_EVENTS_DAYS", "365")
    with monkeypatch.context() as long_ago:
        long_ago.setattr(access, "now", lambda: days(-800))
        for name in ("tested", "adopted"):
            store.nodes.add(fleet.new_node(name))
        fleet.qualify("tested")
        store.nodes.move("tested", State.PRODUCTION, "Ada", "tested")
        store.adoption.adopt(["adopted"], "Ada", "it serves already")
    assert store.retention.apply(NOW)["events"] > 0
    for name in ("tested", "adopted"):
        store.nodes.move(name, State.QUARANTINE, "Ada", "it hangs")
        put_back(name)
        fleet.qualify(name, f"{name}__again")
        store.nodes.move(name, State.PRODUCTION, "Ada", "repaired")
    found = store.ledger.fleet(days(-7), days(1))
    assert (found.delivered, set(found.served)) == ({}, {"tested", "adopted"})
    assert found.served["tested"] < days(-365)


@contextlib.contextmanager
def _long_ago(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node is enrolled, and what happens within is older than events are kept."""
    monkeypatch.setenv("MUSTER_RETENTION_EVENTS_DAYS", "365")
    store.nodes.add(fleet.new_node())
    with monkeypatch.context() as clock:
        clock.setattr(access, "now", lambda: days(-800))
        yield


@pytest.mark.both_dialects
def test_since_when_a_replaced_machine_serves_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with _long_ago(monkeypatch):
        for machine in ("first", "second"):
            fleet.qualify(run_id=machine)
            store.nodes.move("gpu-0001", State.PRODUCTION, "Ada", "tested")
            if machine == "first":
                store.adoption.replace("gpu-0001", "Ada", "another one", host_key=fleet.host_key("other"))
    store.retention.apply(NOW)
    assert store.failures.served(NOW).keys() == {"gpu-0001"}
    entries = [each.to_state for each in store.nodes.events("gpu-0001") if each.from_state != each.to_state]
    assert entries == [State.PRODUCTION, State.PRODUCTION]


@pytest.mark.both_dialects
def test_how_a_node_came_into_its_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with _long_ago(monkeypatch):
        fleet.qualify()
        store.nodes.move("gpu-0001", State.PRODUCTION, "Ada", "tested")
        store.nodes.move("gpu-0001", State.RMA, "Ada", "its HBM fails")
    before = store.overview.rows()
    assert store.retention.apply(NOW)["events"] > 0
    assert store.overview.rows() == before
    assert before[0].moved_for == "its HBM fails"


@pytest.mark.parametrize("days_kept", ["30", "364", "-1"])
def test_events_are_kept_for_a_year_at_least(days_kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RETENTION_EVENTS_DAYS", days_kept)
    with pytest.raises(BadSettings):
        store.retention.apply(NOW)


def test_a_parked_mail_goes_after_its_time() -> None:
    store.outbox.add("run", b"mail")
    store.outbox.failed(store.outbox.pending()[0].id, b"mail", "554", park=True)
    assert store.retention.apply(days(29))["mails"] == 0
    assert store.retention.apply(days(31))["mails"] == 1


@pytest.mark.both_dialects
def test_many_batches_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.store.database.retention.BATCH", 2)
    for number in range(5):
        store.outbox.add(f"run-{number}", b"mail")
    for message in store.outbox.pending():
        store.outbox.sent(message.id, b"mail")
    assert store.retention.apply(days(31))["mails"] == 5


def test_a_mail_waits_until_it_is_sent_and_is_sent_once() -> None:
    assert store.outbox.add("run", b"first") == "added"
    assert store.outbox.add("run", b"second") == "replaced"
    (waiting,) = store.outbox.pending()
    assert store.outbox.message(waiting.id) == b"second"
    store.outbox.failed(waiting.id, b"second", "connection refused")
    (waiting,) = store.outbox.pending()
    assert (waiting.attempts, waiting.last_error) == (1, "connection refused")
    assert store.retention.apply(days(36500))["mails"] == 0
    store.outbox.sent(waiting.id, b"second")
    assert store.outbox.pending() == []
    assert store.outbox.message(waiting.id) == b""
    assert store.outbox.add("run", b"third") == "sent already"
    assert store.outbox.pending() == []
