"""Clocks that jump and differ: what is newer is decided by sequence, and a clock that is ahead deletes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import select

from muster import store
from muster.model.states import State
from muster.rules.lifecycle.gate import Admit, NeedsPerson
from muster.store.database import access, clock, retention
from muster.store.database.engine import writing
from muster.store.database.models import RevisionRow, RunRow, StageRow
from muster.store.testing import stages
from muster_criteria.model import Verdict
from muster_criteria.sku_files.work import sku_work
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.support.examples import examples

pytestmark = pytest.mark.usefixtures("fleet_db")

JUMPS = st.sampled_from([-400 * 24, -48, -2, 0, 2, 48, 400 * 24])
"""Hours by which the clock of whatever writes next is wrong."""
VERDICTS = st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.WARN])
numbers = itertools.count(1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(JUMPS, VERDICTS, st.booleans()), min_size=2, max_size=5))
def test_what_was_recorded_last_is_current_whatever_the_clocks_say(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, Verdict, bool]]
) -> None:
    """Each step another component with another clock: a test, after another machine has taken the name or not."""
    name = f"n{next(numbers)}"
    store.nodes.add(fleet.new_node(name))
    for number, (hours, verdict, replaced) in enumerate(steps):
        shifted = datetime.timedelta(hours=hours)
        monkeypatch.setattr(access, "now", lambda shifted=shifted: now() + shifted)
        if replaced:
            store.adoption.replace(name, "Ada", "another board", host_key=fleet.host_key(f"{name} {number}"))
            assert store.verdicts.latest(name) == []
            assert store.runs.last(name) is None
        lease = fleet.begin(name, f"{name}__{number}")
        found = (fleet.finding(),) if verdict is Verdict.FAIL else ()
        fleet.record(lease.key, None, fleet.judgement("intake", verdict, findings=found))
        ended = store.runs.finish(lease.key, verdict, "so it ended")
        store.leases.release(lease.key, "over")
        (current,) = store.verdicts.latest(name)
        assert (current.run_id, current.verdict) == (lease.run_id, verdict)
        last = store.runs.last(name)
        assert last is not None
        assert last.run_id == lease.run_id
        assert ended.ended_at is not None
        assert ended.ended_at >= ended.started_at
        if store.nodes.get(name).state is not State.REGISTERED:
            store.nodes.move(name, State.REGISTERED, "Ada", "the next one")
    monkeypatch.setattr(access, "now", now)


def test_a_run_that_was_cleared_and_ended_again_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("n1"))
    for run_id, hours in (("first", 0), ("second", 5), ("first", -5)):
        monkeypatch.setattr(access, "now", lambda hours=hours: now() + datetime.timedelta(hours=hours))
        lease = fleet.begin("n1", run_id)
        store.runs.begin_stage(lease.key, "intake")
        fleet.record(lease.key, None, fleet.judgement("intake", Verdict.PASS))
        store.runs.finish(lease.key, Verdict.PASS, "so it ended")
        store.leases.release(lease.key, "over")
        last = store.runs.last("n1")
        assert last is not None
        assert last.run_id == run_id
        store.nodes.move("n1", State.QUARANTINE, "Ada", "the next one")
        store.nodes.move("n1", State.REGISTERED, "Ada", "the next one")


def test_a_pass_dated_ahead_has_no_age_and_admits_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    store.nodes.add(fleet.new_node("n1"))
    with monkeypatch.context() as patch:
        patch.setattr(access, "now", lambda: now() + datetime.timedelta(days=300))
        fleet.qualify("n1")
        before = store.admission.decision("n1")
    after = store.admission.decision("n1")
    assert isinstance(after, NeedsPerson)
    assert len(after.reasons) > len(before.reasons if isinstance(before, NeedsPerson) else ())
    assert not isinstance(after, Admit)


@pytest.mark.parametrize("wrong", ["database", "both"])
def test_retention_deletes_nothing_by_a_clock_that_is_ahead(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    result, raw = fleet.result(node="n1")
    fleet.record(lease.key, result, fleet.judgement(), raw, fleet.telemetry(5))
    later = now() + datetime.timedelta(days=3000)
    monkeypatch.setattr(access, "now", lambda: later)
    if wrong == "both":
        monkeypatch.setattr(retention, "_machine_now", lambda: later)
    assert store.retention.apply() == store.retention.apply(now())


@pytest.mark.both_dialects
def test_a_component_whose_own_clock_is_wrong_stamps_by_the_databases(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fleet_db.startswith("sqlite"):
        assert abs(access.now() - now()) < datetime.timedelta(hours=1)
        return

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            raise AssertionError("this machine's clock is not asked")

    monkeypatch.setattr(
        clock, "datetime", SimpleNamespace(datetime=Ahead, UTC=datetime.UTC, timedelta=datetime.timedelta)
    )
    stamped = access.now()
    monkeypatch.undo()
    assert abs(stamped - now()) < datetime.timedelta(hours=1)


AHEAD = datetime.timedelta(hours=48)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The clock of whatever writes meanwhile is two days ahead."""

    @contextlib.contextmanager
    def shifted() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(access, "now", lambda: now() + AHEAD)
            yield

    return shifted


Ahead = Callable[[], contextlib.AbstractContextManager[None]]


def test_a_failure_of_a_machine_that_was_enrolled_ahead_counts_and_ends(ahead: Ahead) -> None:
    with ahead():
        store.nodes.add(fleet.new_node("n1"))
        fleet.qualify("n1")
        store.nodes.move("n1", State.PRODUCTION, "Ada", "tested")
    store.nodes.move("n1", State.QUARANTINE, "Ada", "it broke")
    (failure,) = store.failures.since(now() - AHEAD)
    assert failure.back is None
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("n1", state, "Ada", "repaired")
    fleet.qualify("n1", run_id="n1__again")
    store.nodes.move("n1", State.PRODUCTION, "Ada", "tested")
    (failure,) = store.failures.since(now() - AHEAD)
    assert failure.back is not None


def test_a_waiver_without_a_serial_is_about_the_machine_that_was_enrolled_ahead(ahead: Ahead) -> None:
    with ahead():
        store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.finding(),))
    (found,) = store.verdicts.open_findings("n1")
    store.waivers.give(found.finding.id, now() + AHEAD, "Ada", "known")
    assert len(store.waivers.find(node="n1")) == 1
    store.leases.release(lease.key, "over")
    store.adoption.replace("n1", "Ada", "another board", host_key=fleet.host_key("another"))
    assert store.waivers.find(node="n1") == []


def test_the_latest_result_is_the_last_that_was_recorded(ahead: Ahead) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with ahead():
        lease = fleet.begin("n1", "first")
        fleet.do_stage(lease, "intake", Verdict.WARN)
        store.leases.release(lease.key, "over")
    lease = fleet.begin("n1", "second")
    fleet.do_stage(lease, "intake", Verdict.PASS)
    (latest,) = store.latest.stages("cpu-generic", "intake", "short", simulated=False)
    assert latest.run_id == "second"


def test_what_is_measured_on_a_part_that_came_ahead_is_that_parts(ahead: Ahead) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with ahead():
        lease = fleet.begin("n1", "first")
        fleet.do_stage(lease, "intake", serials={"gpu0": "A"})
        store.leases.release(lease.key, "over")
    for run in ("second", "third"):
        lease = fleet.begin("n1", run)
        fleet.do_stage(lease, "intake", serials={"gpu0": "A" if run == "second" else "B"})
        store.leases.release(lease.key, "over")
    with writing() as session:
        content = fleet.sku().model_dump_json()
        session.add(RevisionRow(sku="cpu-generic", revision="1+abc", kept_at=access.now(), content=content))
    readings = store.measured.node_readings(
        "n1", "short", ["gemm_rate"], sku_work(fleet.sku(), "short"), run_id="", visits=5
    )
    assert [run.split("/")[1] for run in readings["run"]] == ["third"]
    assert {run.run_id for run in store.parts.runs_of("A")} == {"first", "second"}
    assert {run.run_id for run in store.parts.runs_of("B")} == {"third"}


def test_the_newest_certificate_ends_last_whatever_the_clock_said(ahead: Ahead) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with ahead():
        fleet.qualify("n1")
        store.nodes.move("n1", State.PRODUCTION, "Ada", "tested")
    store.nodes.move("n1", State.QUARANTINE, "Ada", "the next one")
    store.nodes.move("n1", State.REGISTERED, "Ada", "the next one")
    fleet.qualify("n1", run_id="n1__again")
    store.nodes.move("n1", State.PRODUCTION, "Ada", "tested")
    newest = store.certificates.newest("n1")
    assert newest is not None
    assert store.signs.certificate_ends()["n1"] == (newest.expires_at, None)


def test_what_a_machine_that_was_enrolled_ahead_answers_votes(ahead: Ahead) -> None:
    with ahead():
        store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    figures = [
        Measurement("full_entropy", "golden_key", "gpu0", "text", text="driver=570"),
        Measurement("full_entropy", "full_entropy_digest", "gpu0", "text", text="right", labels={"op": "attention"}),
    ]
    parsed, raw = fleet.result("integrity", node="n1", measurements=figures)
    fleet.record(lease.key, parsed, fleet.judgement("integrity"), raw)
    (waiting,) = store.goldens.find()
    assert (waiting.devices, waiting.nodes) == (1, 1)
    with ahead():
        store.goldens.withdraw(waiting.id, "Ada", "look again")
    store.leases.release(lease.key, "over")
    lease = fleet.begin("n1", "again")
    parsed, raw = fleet.result("integrity", node="n1", measurements=figures, note="again")
    fleet.record(lease.key, parsed, fleet.judgement("integrity"), raw)
    (waiting,) = store.goldens.find()
    assert waiting.devices == 1


def test_another_verdict_on_a_result_is_no_newer_test(ahead: Ahead) -> None:
    """Run 1 was PROVISIONAL, the part was swapped before run 2, and then run 1 was judged by newer statistics."""
    store.nodes.add(fleet.new_node("n1"))
    for run, serial in (("first", "A"), ("second", "B")):
        lease = fleet.begin("n1", run)
        fleet.do_stage(lease, "intake", serials={"gpu0": serial})
        store.leases.release(lease.key, "over")
    result, _ = fleet.result(serials={"gpu0": "A"}, node="n1")
    with writing() as session:
        former = session.scalars(select(StageRow).order_by(StageRow.id)).first()
        assert former is not None
        run_row = session.get(RunRow, former.run)
        assert run_row is not None
        stages.supersede(session, run_row, access.node_row(session, "n1"), former, result, fleet.judgement())
    assert {run.run_id for run in store.parts.runs_of("B")} == {"second"}
    (latest,) = store.latest.stages("cpu-generic", "intake", "short", simulated=False)
    assert latest.run_id == "second"


def test_a_test_that_ended_ahead_keeps_no_node_from_its_turn(ahead: Ahead) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with ahead():
        fleet.qualify("n1")
        assert "n1" in store.verdicts.stage_tests()
        assert "n1" in store.signs.last_tests()
    assert (store.verdicts.stage_tests(), store.signs.last_tests()) == ({}, {})
    lease = fleet.begin("n1", "again")
    fleet.do_stage(lease, "intake")
    store.runs.finish(lease.key, Verdict.PASS, "so it ended")
    assert list(store.verdicts.stage_tests()["n1"]) == ["intake"]
    assert "n1" in store.signs.last_tests()


def test_a_refusal_that_was_noted_ahead_holds_no_node_back(ahead: Ahead) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with ahead():
        store.signs.note_refusal("n1", "its owner has it")
    assert store.signs.refusals(now() - AHEAD) == {}
    store.signs.note_refusal("n1", "its disk is full")
    assert list(store.signs.refusals(now() - AHEAD)) == ["n1"]


def test_the_last_snapshot_that_was_made_is_the_one_to_judge_by(ahead: Ahead) -> None:
    for moment in (now() + AHEAD, now()):
        made = dataclasses.replace(fleet.peers(range(600, 610)), made_at=moment, version=f"{moment}")
        store.peers.keep(made, "cpu-generic", "short", simulated=False)
    latest = store.peers.latest("cpu-generic", "short", simulated=False)
    assert latest is not None
    assert latest.version == made.version


def test_a_mail_that_was_added_ahead_fills_no_hour_and_waits_no_longer_than_others(ahead: Ahead) -> None:
    with ahead():
        store.outbox.add("digest/weekly/1", b"")
        (mail,) = store.outbox.pending(due=True)
        assert store.outbox.take(mail)
        store.outbox.failed(mail.id, b"", "try again later")
    assert store.outbox.added("digest/weekly/", now() - AHEAD) == 0
    assert [each.key for each in store.outbox.pending(due=True)] == ["digest/weekly/1"]
