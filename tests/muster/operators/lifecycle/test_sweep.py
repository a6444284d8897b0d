"""The health sweep's records: one node that cannot be recorded costs no other node of its batch."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import email
import itertools
import json
import time
import types
from pathlib import Path

import pytest

from muster import store
from muster.admission import service
from muster.admission.backend import Seen
from muster.admission.entry import move
from muster.admission.silence import silence
from muster.errors import DatabaseNotReady
from muster.judging import health, policies
from muster.judging import sweep as reading
from muster.model.attention import Cause
from muster.model.health import BMC, SWEEP, Cursor, Report
from muster.model.nodes import Node
from muster.model.states import State
from muster.operators.lifecycle import sweep
from muster.remote import sweeping
from muster.remote.sweeping import Answer
from muster.store.database.health import COUNT_MAX
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading
from tests.muster import copied, fleet
from tests.support import node_list, unrecorded

pytestmark = pytest.mark.usefixtures("fleet_db")


@pytest.mark.both_dialects
def test_a_node_that_cannot_be_recorded_costs_no_other_of_its_batch() -> None:
    """One was removed while the sweep read it, so the transaction of the whole batch fails."""
    nodes: list[Node] = []
    for name in ("a", "gone", "z"):
        store.nodes.add(fleet.new_node(name))
        nodes.append(store.nodes.get(name))
    nodes[1] = dataclasses.replace(nodes[1], name="never-enrolled")
    answers = [Answer(node, trouble="it does not answer") for node in nodes]
    tally = sweep.Tally()
    sweep.record(answers, {node.name: Cursor(node.name) for node in nodes}, tally)
    assert [each.check for name in ("a", "z") for each in store.health.of_node(name)] == ["unreachable"] * 2
    assert tally.new == 2


def test_no_number_that_a_node_sends_hides_the_rest_of_its_answer() -> None:
    store.nodes.add(fleet.new_node("a"))
    event = {"kind": "xid", "code": 13, "last": 4000, "count": 2**70}
    lost = {"name": "gpu_lost", "device": "gpu1", "value": 1}
    raw = json.dumps({"schema": 1, "boot_id": "b", "uptime_s": 5000, "facts": [lost], "kernel": {"events": [event]}})
    for _ in range(2):  # the second adds to the first
        sweep.record([Answer(store.nodes.get("a"), raw.encode())], {"a": Cursor("a")}, sweep.Tally())
    counts = {each.check: each.count for each in store.health.of_node("a")}
    assert (counts["gpu_lost"], counts["xid/13"]) == (2, COUNT_MAX)


@pytest.mark.parametrize("error", [OverflowError, DatabaseNotReady])
@pytest.mark.parametrize(("source", "check"), [(SWEEP, "unreadable_answer"), (BMC, "bmc_silent")])
def test_an_answer_that_cannot_be_recorded_is_a_state(
    monkeypatch: pytest.MonkeyPatch, source: str, check: str, error: type[Exception]
) -> None:
    unrecorded.refuse(monkeypatch, "odd", error)
    store.nodes.add(fleet.new_node("a"))
    found = [each.check for each in sweep.recorded([Report("a", source, (Reading("odd"),))], {})]
    assert found == [check] * (error is OverflowError)  # a fault of the records says nothing of the answer


def test_a_node_whose_node_side_fails_is_not_away() -> None:
    store.nodes.add(fleet.new_node("a"))
    tally = sweep.Tally()
    answer = Answer(store.nodes.get("a"), trouble="the node side ended with status 1", unreadable=True)
    sweep.record([answer], {"a": Cursor("a")}, tally)
    assert [each.check for each in store.health.of_node("a")] == ["unreadable_answer"]
    assert tally.unreachable == 0


def test_answers_that_wait_for_a_slow_node_make_no_clock_wrong() -> None:
    names, waited_s = ["a", "b", "c", "d", "slow"], 90.0
    for name in names:
        store.nodes.add(fleet.new_node(name))
    wall, arrived = store.clock.now().timestamp() - waited_s, time.monotonic() - waited_s
    raw = json.dumps({"schema": 1, "boot_id": "b1", "uptime_s": 9000, "wall": wall, "kernel": {}}).encode()
    answers = [Answer(store.nodes.get(name), raw, arrived=arrived) for name in names[:-1]]
    answers.append(Answer(store.nodes.get("slow"), trouble="it did not answer within 90 s"))
    sweep.record(answers, {name: Cursor(name) for name in names}, sweep.Tally())
    assert [each.check for name in names for each in store.health.of_node(name)] == ["unreachable"]


def test_a_pass_begins_no_node_after_its_time_and_each_pass_begins_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"a", "b", "c"}
    for name in names:
        store.nodes.add(fleet.new_node(name))
    admitted(*names)
    begun: list[str] = []

    async def hangs(node: Node, *_: object) -> Answer:
        begun.append(node.name)
        await asyncio.sleep(10 * sweep.PASS_S)
        return Answer(node, trouble="it did not answer")

    monkeypatch.setenv("MUSTER_SWEEP_NODES", "1")
    monkeypatch.setattr(sweep, "PASS_S", 0.01)
    monkeypatch.setattr(sweeping, "_read", hangs)
    monkeypatch.setattr(sweep.logins, "credentials", lambda _: types.SimpleNamespace(key=lambda: None))
    for _ in range(100):
        before = len(begun)
        sweep.sweep_nodes()
        assert len(begun) <= before + 1
        if set(begun) == names:
            break
    assert set(begun) == names


def in_list(path: Path, monkeypatch: pytest.MonkeyPatch, *names: str, rack: str = "") -> None:
    """Enrol nodes that belong to a scheduler which is a list of nodes at ``path``."""
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"list": node_list.chosen(path)}))
    for name in names:
        store.nodes.add(fleet.new_node(name, rack=rack))
        store.schedulers.assign(name, "list", name, "Ada", "it is in this cluster")


def admitted(*names: str) -> None:
    """Bring the nodes into production."""
    for name in names:
        fleet.qualify(name)
        move(name, State.PRODUCTION, "Ada", "needed now")


def _serving(*names: str) -> None:
    for name in names:
        store.nodes.add(fleet.new_node(name))
    admitted(*names)


def _in_a_rack(*names: str) -> None:
    for name in (*names, "n8"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
    admitted(*names)


def test_a_node_that_its_scheduler_has_not_opened_yet_leaves_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_list(tmp_path / "away" / "list", monkeypatch, "a")
    admitted("a")
    health.record([Report("a", "sweep", (Reading("row_remap_pending", "gpu3", bad=True),))], {"a": "h100-sxm-8"})
    (tmp_path / "away").mkdir()
    assert "it is to leave service: row_remap_pending" in service.carry_out("a")
    assert len(sweep.act()) == 1
    assert store.nodes.get("a").state is State.QUARANTINE


def test_a_node_that_somebody_else_has_drained_leaves_too_and_stays_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "list"
    there.write_text("")
    in_list(there, monkeypatch, "a")
    admitted("a")
    drained = "a # NHC: gpu3\n"
    there.write_text(drained)
    health.record([Report("a", "sweep", (Reading("row_remap_pending", "gpu3", bad=True),))], {"a": "h100-sxm-8"})
    assert len(sweep.act()) == 1
    assert store.nodes.get("a").state is State.QUARANTINE
    assert there.read_text() == drained


def test_an_admission_that_waited_opens_a_node_that_stays_for_what_its_rack_shows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_list(tmp_path / "away" / "list", monkeypatch, "a", "b", "c", "d", rack="r9")
    admitted("a", "b", "c", "d")
    down = Reading("port_down", "nic:mlx5_0", bad=True)
    now = store.clock.now()
    for minutes in (80, 60):  # and not read since: the tests of all are paused, or the sweep does not run
        at = now - datetime.timedelta(minutes=minutes)
        store.health.record([Report(name, "sweep", (down,)) for name in ("a", "b", "c", "d")], policies.health(), at)
    assert (health.leaving(), sweep.act()) == ({}, [])
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "list").write_text("")
    assert service.carry_out("a") == ""


BLIND = Reading("unread/kernel_log", bad=True)


def test_a_node_that_is_blind_for_an_hour_is_tested() -> None:
    store.nodes.add(fleet.new_node("a"))
    now = store.clock.now()
    for minutes in range(0, 61, 10):
        assert [each.action for each in store.health.of_node("a")] == [HealthAction.NOTE] * (minutes > 0)
        at = now + datetime.timedelta(minutes=minutes)
        store.health.record([Report("a", "sweep", (BLIND,), "b1")], policies.health(), at)
    assert [each.action for each in store.health.of_node("a")] == [HealthAction.TEST_SOONER]


def test_a_node_that_is_down_in_its_scheduler_leaves_service_after_an_hour_and_another_is_tested() -> None:
    """Its scheduler calls it down, so that no test of an idle node would take it, and it would serve once it is up."""
    copied.records(_serving, "down", "up")
    now = store.clock.now()
    for minutes in range(60, -1, -10):
        at = now - datetime.timedelta(minutes=minutes)
        reports = [
            reading.unreachable(store.nodes.get(name), Cursor(name), "timed out", down=name == "down")
            for name in ("down", "up")
        ]
        store.health.record(reports, policies.health(), at)
        assert len(sweep.act()) == (minutes == 0)
    states = {each.name: each.state for each in store.nodes.find()}
    assert states == {"down": State.QUARANTINE, "up": State.PRODUCTION}
    assert [each.action for each in store.health.of_node("up")] == [HealthAction.TEST_SOONER]


def test_a_node_that_its_scheduler_switched_off_or_does_not_tell_of_may_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "list"
    there.write_text("")
    in_list(there, monkeypatch, "a")
    assert silence(["a"]) == (set(), set())
    there.unlink()
    assert silence(["a"]) == ({"a"}, set())
    tally = sweep.Tally(away={"a"})
    sweep.record([Answer(store.nodes.get("a"), trouble="timed out")], {"a": Cursor("a")}, tally)
    assert (store.health.of_node("a"), tally.unreachable) == ([], 1)


@pytest.mark.parametrize(
    ("shown", "away", "down"),
    [
        (Seen(open=False, apart="powered down", worked_on="powered down"), {"a"}, set()),
        (Seen(open=False, apart="down"), set(), {"a"}),
        (Seen(open=True, apart="not responding"), set(), {"a"}),
        (Seen(open=False, apart="down", foreign="drained: a power supply is replaced"), set(), set()),
        (Seen(open=False, apart="blocked", kept="blocked"), set(), set()),
        (Seen(open=True, used_by="a job"), set(), set()),
    ],
)
def test_only_a_node_that_is_down_and_that_no_person_closed_is_down(
    shown: Seen, away: set[str], down: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_list(tmp_path / "list", monkeypatch, "a")
    monkeypatch.setattr(node_list.NodeList, "look", lambda _, names: dict.fromkeys(names, shown))
    assert silence(["a", "in no scheduler"]) == (away, down)


@pytest.mark.both_dialects
@pytest.mark.parametrize("shown", [BLIND, Reading("all_ports_down", bad=True)], ids=lambda each: each.check)
def test_what_half_a_fleet_shows_is_one_notice(monkeypatch: pytest.MonkeyPatch, shown: Reading) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    names = [f"n{each}" for each in range(6)]
    copied.records(_serving, *names)
    before = len(store.outbox.pending())
    reports = [Report(name, "sweep", (shown,), "b1") for name in names[:3]]
    store.health.record(reports, policies.health())
    assert sweep.act() == []
    assert len(store.outbox.pending()) == before + 1


@pytest.mark.parametrize("changed", ["a node leaves", "a node is added"])
def test_what_was_a_places_stays_so_whatever_nodes_serve_later_until_it_is_seen_again(
    changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    names = [f"n{each}" for each in range(8)]
    copied.records(_in_a_rack, *names)
    now = store.clock.now()

    def lost(*of: str) -> None:
        seen = Reading("kernel/network", "nic:mlx5_0", severity="ISOLATE")
        store.health.record([Report(name, "sweep", (seen,), "b1") for name in of], policies.health())

    def later(days: float) -> list[str]:
        monkeypatch.setattr(store.clock, "now", lambda: now + datetime.timedelta(days=days))
        return sweep.act()

    lost(*names[:4])
    before = len(store.outbox.pending())
    assert later(0) == []
    mails = len(store.outbox.pending())
    assert mails > before
    for days in (2, 40):
        assert later(days) == []
    assert len(store.outbox.pending()) == mails
    if changed == "a node leaves":
        move("n3", State.QUARANTINE, "Ada", "its riser is reseated")
    else:
        admitted("n8")
    assert (health.leaving(), later(40.01)) == ({}, [])
    lost("n0")
    assert [len(later(40.01)), store.nodes.get("n0").state] == [1, State.QUARANTINE]


def test_a_held_node_silences_no_other_and_a_simulated_one_no_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "0.01")
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    real, simulated = ("a", "b", "c", "d"), ("s", "t", "u")
    for name in (*real, *simulated):
        store.nodes.add(fleet.new_node(name, simulated=name in simulated))
    admitted(*real, *simulated)
    marked = []
    for names in (("s", "t", "u"), ("a", "b"), ("c",), ("d",), ()):
        before = len(store.outbox.pending())
        lost = Reading("row_remap_pending", "gpu3", bad=True)
        store.health.record([Report(name, "sweep", (lost,), "b1") for name in names], policies.health())
        sweep.act()
        mails = [email.message_from_bytes(store.outbox.message(each.id)) for each in store.outbox.pending()[before:]]
        marked.append(["[simulated]" in each["Subject"] for each in mails])
    assert marked == [[True], [False], [False], [False], []]


@pytest.mark.both_dialects
def test_what_a_node_had_is_forgotten_when_it_enters_service_again() -> None:
    store.nodes.add(fleet.new_node("a"))
    fleet.qualify("a")
    move("a", State.PRODUCTION, "Ada", "needed now")
    now = store.clock.now()
    had = Cursor("a", "b1", 5.0, {"up|nvme_state|disk:nvme3": 1.0, "ecc_corrected|gpu3": 2.0}, now)
    store.health.record([Report("a", "sweep", (), "b1", cursor=had)], policies.health(), now)
    move("a", State.QUARANTINE, "Ada", "a disk is taken out")
    assert store.health.cursors(["a"])["a"].counters == had.counters
    move("a", State.REGISTERED, "Ada", "it does without")
    fleet.qualify("a", "again")
    move("a", State.PRODUCTION, "Ada", "tested")
    assert store.health.cursors(["a"])["a"].counters == {"ecc_corrected|gpu3": 2.0}


DAY_AND_MORE = datetime.timedelta(hours=25)


def seen_a_day_ago(check: str, severity: str) -> None:
    """A node in production of which this was seen once, more than a day ago."""
    store.nodes.add(fleet.new_node("a"))
    fleet.qualify("a")
    move("a", State.PRODUCTION, "Ada", "needed now")
    report = Report("a", "sweep", (Reading(check, "gpu3", severity=severity),), "b1")
    store.health.record([report], policies.health(), store.clock.now() - DAY_AND_MORE)


def test_a_node_that_the_circuit_breaker_holds_for_days_leaves_once_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    seen_a_day_ago("xid/79", "ISOLATE")
    sweep.act()
    assert store.nodes.get("a").state is State.PRODUCTION
    (shown,) = store.attention.collect(leaving=health.leaving())
    assert (shown.node, shown.cause, shown.listed, shown.serving) == ("a", Cause.LEAVES, True, True)
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "20")
    sweep.act()
    assert store.nodes.get("a").state is State.QUARANTINE


@pytest.mark.both_dialects
def test_what_is_held_is_one_notice_a_day_and_in_shadow_mode_one_an_observation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "0.01")
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    for name in ("a", "b", "c"):
        store.nodes.add(fleet.new_node(name))
    admitted("a", "b", "c")
    store.adoption.adopt([], "Ada", "they serve", enrol=[("", fleet.new_node(name)) for name in ("s", "t")])
    now, mails = store.clock.now(), [len(store.outbox.pending())]
    for days in range(3):
        later = now + datetime.timedelta(days=days)
        monkeypatch.setattr(store.clock, "now", lambda at=later: at)
        for name in ("a", "b", "c", "s", "t"):
            lost = Reading("row_remap_pending", "gpu3", bad=True)
            store.health.record([Report(name, "sweep", (lost,), "b1")], policies.health())
        for _ in range(2):
            sweep.act()
        mails.append(len(store.outbox.pending()))
    assert [after - before for before, after in itertools.pairwise(mails)] == [2, 1, 1]


@pytest.mark.parametrize("tested", [True, False], ids=["by its test", "by a person alone"])
def test_what_was_seen_in_shadow_mode_before_the_node_was_verified_withdraws_it_no_more(tested: bool) -> None:
    store.adoption.adopt([], "Ada", "it serves", enrol=[("", fleet.new_node("a"))])
    report = Report("a", "sweep", (Reading("xid/79", "gpu3", severity="ISOLATE"),), "b1")
    store.health.record([report], policies.health(), store.clock.now() - DAY_AND_MORE)
    assert sweep.act() == []
    assert health.leaving() == {}
    if tested:
        fleet.qualify("a")
    store.adoption.verify("a", "Ada", "it is sound")
    assert sweep.act() == []
    assert store.nodes.get("a").state is State.PRODUCTION
