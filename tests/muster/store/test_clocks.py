"""Clocks that jump and differ: what is newer is decided by sequence, and a clock that is ahead deletes nothing."""

from __future__ import annotations

import datetime
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster import store
from muster.model.states import State
from muster.rules.gate import Admit, NeedsPerson
from muster.store.database import access, clock, retention
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

JUMPS = st.sampled_from([-400 * 24, -48, -2, 0, 2, 48, 400 * 24])
"""Hours by which the clock of whatever writes next is wrong."""
VERDICTS = st.sampled_from([Verdict.PASS, Verdict.FAIL, Verdict.WARN])
numbers = itertools.count(1)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
