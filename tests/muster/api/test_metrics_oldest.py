"""Metrics of the node that has waited longest: for each since when, by what the records know of it."""

from __future__ import annotations

import datetime
import functools
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from muster import store
from muster.judging import policies
from muster.model.health import Cursor, Report
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow, StageRow
from muster.store.database.outgoing import PlaceRow
from tests.muster import fleet
from tests.muster.api.test_metrics import client as client
from tests.muster.api.test_metrics import read
from tests.support import node_list


@pytest.mark.both_dialects
def test_the_longest_that_is_uncertified_counts_since_its_certificate_ended(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_CERTIFICATE_DAYS", "30")
    metric = "muster_nodes_uncertified_oldest_timestamp_seconds"
    assert read(client)[metric] == {("false",): 0, ("true",): 0}
    now = store.clock.now().replace(microsecond=0)
    for name, days_ago in (("expired", 40), ("revoked", 20)):
        monkeypatch.setattr(access, "now", lambda at=now - datetime.timedelta(days=days_ago): at)
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name, environment={"driver": "580.1"})
        store.nodes.move(name, State.PRODUCTION, "Ada", "needed now")
    revoked = now - datetime.timedelta(days=15)
    monkeypatch.setattr(access, "now", lambda: revoked)
    assert read(client)[metric] == {("false",): 0, ("true",): 0}
    fleet.qualify("revoked", "idle", stages=("intake",), environment={"driver": "590.1"})
    assert read(client)[metric] == {("false",): revoked.timestamp(), ("true",): 0}
    monkeypatch.setattr(access, "now", lambda: now)
    assert read(client)[metric] == {("false",): revoked.timestamp(), ("true",): 0}
    store.nodes.move("revoked", State.QUARANTINE, "Ada", "its driver is another one")
    (end, _) = store.signs.certificate_ends()["expired"]
    assert revoked < end < now
    assert read(client)[metric] == {("false",): end.timestamp(), ("true",): 0}


def due_and_stale(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, since: datetime.datetime, days: float
) -> tuple[float, float]:
    """Of how many nodes a test is due, and the whole one for too long, so many days later."""
    monkeypatch.setattr(access, "now", lambda: since + datetime.timedelta(days=days))
    shown = read(client)
    return shown["muster_nodes_test_due"]["false",], shown["muster_nodes_stale"]["false",]


def test_a_test_is_due_after_a_rest_or_where_no_part_of_it_fits_with_the_whole_one(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("a"))
    fleet.qualify("a")
    store.nodes.move("a", State.PRODUCTION, "Ada", "needed now")
    passed = store.clock.now()

    seen = functools.partial(due_and_stale, client, monkeypatch, passed)
    assert [seen(1), seen(5), seen(41)] == [(0, 0), (1, 0), (1, 0)]
    fleet.qualify("a", "short", stages=("intake", "performance"))
    shown = read(client)["muster_node_last_pass_timestamp_seconds"]["a", "", "production"]
    assert [seen(42), seen(46), shown] == [(0, 1), (1, 1), pytest.approx(passed.timestamp(), abs=60)]
    monkeypatch.setenv("MUSTER_REVALIDATION_MINUTES", "1.5")
    assert [seen(15), seen(29), seen(43)] == [(0, 0), (1, 0), (1, 1)]
    with writing() as session:
        session.execute(update(StageRow).values(verdict="WARN"))
    assert [seen(15), seen(29)] == [(0, 0), (1, 0)]


def test_a_test_is_due_of_a_node_that_waits_in_revalidation(client: TestClient) -> None:
    """It does not serve until it passes, so a test that never begins must raise the alert."""
    store.nodes.add(fleet.new_node("a"))
    fleet.qualify("a")
    store.nodes.move("a", State.PRODUCTION, "Ada", "needed now")
    assert read(client)["muster_nodes_test_due"]["false",] == 0
    with writing() as session:
        session.get_one(NodeRow, "a").state = State.REVALIDATION
    assert read(client)["muster_nodes_test_due"]["false",] == 1


@pytest.mark.both_dialects
def test_a_node_without_tests_is_stale_so_long_after_it_entered_service_and_not_while_a_person_paused_them(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each adoption would call a person an hour later for tests that were never due."""
    store.nodes.add(fleet.new_node("a"))
    store.adoption.adopt(["a"], "Ada", "it served before")
    entered = store.clock.now()

    seen = functools.partial(due_and_stale, client, monkeypatch, entered)
    assert [seen(1), seen(41), seen(43)] == [(1, 0), (1, 0), (1, 1)]
    store.pauses.pause("a", entered + datetime.timedelta(days=50), "Ada", "ticket 4711")
    assert [seen(49), seen(51)] == [(0, 0), (1, 1)]


@pytest.mark.both_dialects
def test_a_node_counts_as_unswept_since_it_could_be_swept(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    start = store.clock.now().replace(microsecond=0)

    def after(hours: float) -> datetime.datetime:
        moment = start + datetime.timedelta(hours=hours)
        monkeypatch.setattr(access, "now", lambda: moment)
        return moment

    def swept(node: str, at: datetime.datetime) -> None:
        report = Report(node, "sweep", (), "b1", cursor=Cursor(node, "b1", swept_at=at))
        store.health.record([report], policies.health(), at)

    def oldest() -> float:
        return read(client)["muster_nodes_unswept_oldest_timestamp_seconds"]["false",]

    after(0)
    assert oldest() == 0
    for name in ("blind", "tested"):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    entered = after(1)
    for name in ("blind", "tested"):
        store.nodes.move(name, State.PRODUCTION, "Ada", "needed now")
    assert oldest() == entered.timestamp()
    first, second, later = after(2), after(3), after(9)
    swept("blind", first)
    swept("tested", second)
    assert oldest() == first.timestamp()
    swept("blind", later)
    assert oldest() == second.timestamp()
    held = fleet.begin("tested", "long").key
    assert oldest() == later.timestamp()  # a test holds the other one
    released = after(10)
    store.leases.release(held, "over")
    after(12)
    store.pauses.pause("blind", start + datetime.timedelta(hours=20), "Ada", "ticket 4711")
    assert oldest() == released.timestamp()  # the sweep leaves out the one whose tests are paused


@pytest.mark.both_dialects
def test_a_difference_counts_since_its_scheduler_shows_it_and_not_from_before_the_change(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metric = "muster_scheduler_differences_oldest_timestamp_seconds"
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"list": node_list.chosen(tmp_path / "list")}))
    start = store.clock.now().replace(microsecond=0) - datetime.timedelta(days=3)

    def after(hours: float) -> datetime.datetime:
        moment = start + datetime.timedelta(hours=hours)
        monkeypatch.setattr(access, "now", lambda: moment)
        return moment

    after(0)
    store.nodes.add(fleet.new_node("a"))
    store.schedulers.assign("a", "list", "a", "Ada", "it is in this cluster")
    shown = after(1)
    store.schedulers.note_seen("a", "open", "it is open")
    assert read(client)[metric] == {(): shown.timestamp()}
    change = store.schedulers.claim("a")
    assert change is not None
    done = after(3)
    store.schedulers.carried_out(change)
    assert read(client)[metric] == {(): 0}
    after(4)
    store.schedulers.note_seen("a", "open", "it is open")
    assert read(client)[metric] == {(): done.timestamp()}


@pytest.mark.both_dialects
def test_an_admission_that_is_marked_again_waits_since_then_and_gives_nothing_back(client: TestClient) -> None:
    long_ago = store.clock.now() - datetime.timedelta(days=90)
    store.nodes.add(fleet.new_node("a"))
    with writing() as session:
        there = {"cluster": "c1", "name": "a", "wanted": "admitted", "done": "admitted", "why": "it passed"}
        session.add(PlaceRow(node="a", wanted_at=long_ago, done_at=long_ago, **there))
    store.schedulers.mark_again("a")
    waiting = read(client)["muster_scheduler_changes_oldest_timestamp_seconds"]
    assert waiting["c1", "admitted"] > long_ago.timestamp()
    change = store.schedulers.claim("a")
    assert change is not None
    store.schedulers.carried_out(change)
    assert "muster_give_back_seconds_gcount" not in read(client)
