"""The hub's limits, on a clock that the test sets: real connections, no waiting."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.rendezvous import wire
from muster_node.cluster.rendezvous.block import PARAMS, block_of
from muster_node.cluster.rendezvous.hub import WAITING, WORKING, Hub, listen
from muster_node.cluster.rendezvous.member import Member, PeerGroup
from muster_node.cluster.rendezvous.wire import Link
from muster_node.hardware.seam import Clock
from tests.muster_node.cluster.blocks import rendezvous

NAMES = ("n0", "n1", "n2")
LIMITS = {"join_timeout_s": 60.0, "stall_timeout_s": 15.0, "progress_timeout_s": 120.0}
BEAT_S = 1.0


class SetClock(Clock):
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Rig:
    """A hub that is stepped by hand, and the connections of members that the test plays."""

    def __init__(self) -> None:
        params = {name: param.default for name, param in PARAMS.items()}
        self.block = block_of("p", {**params, **rendezvous(NAMES, **LIMITS), "rank": 0}, 1)
        self.clock = SetClock()
        self.hub = Hub(self.block, "secret", self.clock, listen(self.block.master_ports))
        self.links: dict[str, Link] = {}
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.marks = dict.fromkeys(NAMES, 0)

    def join(self, *names: str, **said: Any) -> None:
        for name in names:
            connection = socket.create_connection(("127.0.0.1", *self.block.master_ports))
            self.links[name], self.messages[name] = Link(connection), []
            hello = {"session": "secret", "name": name, "rank": NAMES.index(name), "terms": self.block.terms}
            self.links[name].send("hello", **hello, **said)
            while not self.received(name, "welcome"):
                self.hub._step()
            self.links[name].send("arrive", phase="join")

    def beat(self, name: str, state: str = WORKING, progress: bool = True) -> None:
        self.marks[name] += progress
        self.links[name].send("beat", phase="training", state=state, mark=self.marks[name], activity="step")

    def pass_time(self, seconds: float, **members: dict[str, Any]) -> None:
        """Moves the clock; the named members send a heartbeat each second, with these arguments."""
        for _ in range(int(seconds / BEAT_S)):
            for name, arguments in members.items():
                self.beat(name, **arguments)
            self._tick()

    def _tick(self) -> None:
        self.clock.sleep(BEAT_S)
        if not self.hub._over:
            self.hub._step()

    def received(self, name: str, kind: str) -> list[dict[str, Any]]:
        link = self.links[name]
        if select.select([link.socket], [], [], 0)[0]:
            self.messages[name] += link.receive()
        return [message for message in self.messages[name] if message["kind"] == kind]

    def end(self, name: str) -> dict[str, Any]:
        for _ in range(3):
            self._tick()
        (end,) = self.received(name, "end")
        return end

    def missing(self, name: str) -> dict[str, str]:
        return {lost: why for lost, why, _ in self.end(name)["missing"]}

    def close(self) -> None:
        for link in self.links.values():
            link.close()
        self.hub._listener.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_a_member_without_heartbeats_is_lost_after_the_stall_limit(rig: Rig) -> None:
    rig.join(*NAMES)
    rig.pass_time(14, n0={}, n2={})
    assert not rig.received("n0", "end")
    rig.pass_time(2, n0={}, n2={})
    missing = rig.missing("n0")
    assert set(missing) == {"n1"} == set(rig.missing("n2"))
    assert "15 s" in missing["n1"]


def test_a_member_that_does_not_join_is_left_out_and_named_to_those_that_begin(rig: Rig) -> None:
    rig.join("n0", "n1")
    rig.pass_time(58, n0={}, n1={})
    assert not rig.received("n0", "go")
    rig.pass_time(5, n0={}, n1={})
    for name in ("n0", "n1"):
        (go,) = rig.received(name, "go")
        assert [lost for lost, _, _ in go["absent"]] == ["n2"]
    assert not rig.received("n0", "end")


@pytest.mark.parametrize(
    "hello", [{"session": "\ud800"}, {"session": ["secret"]}, {"session": "secret", "name": ["n1"], "rank": 1}]
)
def test_a_stranger_s_odd_words_are_refused_and_end_no_block(rig: Rig, hello: dict[str, Any]) -> None:
    rig.join("n0")
    connection = socket.create_connection(("127.0.0.1", *rig.block.master_ports))
    rig.links["stranger"], rig.messages["stranger"] = Link(connection), []
    rig.links["stranger"].send("hello", **{"terms": rig.block.terms, **hello})
    while not rig.received("stranger", "refused"):
        rig.hub._step()
    rig.join("n1", "n2")


def test_a_message_that_is_too_long_ends_the_block_and_charges_no_member(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LINE_MAX", 2500)
    rig.join(*NAMES)
    rig.pass_time(1, n0={}, n1={}, n2={})
    for name in NAMES:
        rig.links[name].send("arrive", phase="collectives", payload="x" * 1000)
    end = rig.end("n1")
    assert end["missing"] == []
    assert "'go'" in end["broken"]
    assert "2500" in end["broken"]


def test_what_goes_to_all_members_is_encoded_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.join(*NAMES)
    encoded: list[object] = []
    monkeypatch.setattr(
        wire, "json", SimpleNamespace(loads=json.loads, dumps=lambda each: encoded.append(each) or json.dumps(each))
    )
    rig.hub._broadcast("go", phase="collectives", payloads={})
    assert len(encoded) == 1
    assert all(rig.received(name, "go") for name in NAMES)


@pytest.mark.parametrize(
    ("reached", "known"),
    [(["127.0.0.1", "127.0.0.1", "10.9.0.1"], "10.9.0.1"), (["127.0.0.1", "fd00:9::1", "::1"], "fd00:9::1"),
     (["127.0.0.1"] * 3, "127.0.0.1")],
)  # fmt: skip
def test_the_master_knows_the_address_at_which_others_reach_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, reached: list[str], known: str
) -> None:
    """It reaches its own hub by the loopback, and its /etc/hosts may map its own name to the loopback too."""
    addresses = iter(reached)
    monkeypatch.setattr(Link, "own_address", property(lambda link: next(addresses)))
    rig.join(*NAMES)
    rig.pass_time(1, n0={}, n1={}, n2={})
    (go,) = rig.received("n0", "go")
    member = Member(rig.block, "p", rig.clock, lambda text: None)
    member._handle(go, threading.Thread(target=print))
    assert member.group.local_address == known


@pytest.mark.parametrize("act", [lambda group: group.begin("training"), lambda group: group.arrive()])
def test_what_a_member_has_to_send_wakes_its_connection(rig: Rig, act: Callable[[PeerGroup], None]) -> None:
    group = PeerGroup(rig.block, print)
    act(group)
    assert select.select([group.bell], [], [], 0)[0]
    group.close()


def test_a_member_waits_for_what_it_has_to_send_and_sleeps_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bell that is not read rings on: the member would turn without pause on the cores that train."""
    member, waited = Member(rig.block, "p", rig.clock, print), list[socket.socket]()
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(member, "_link", Link(ours))
    monkeypatch.setattr(
        "muster_node.cluster.rendezvous.member.wait_for", lambda links, wait_s, *others: waited.extend(others)
    )
    member.group.ring()
    assert member._receive() == []
    assert waited == [member.group.bell]
    assert not select.select([member.group.bell], [], [], 0)[0]
    member.group.close()
    for each in (ours, theirs):
        each.close()


def test_no_member_s_word_shortens_the_time_that_the_others_have(rig: Rig) -> None:
    rig.join("n0")
    rig.join("n1", waited=1e9)
    rig.pass_time(58, n0={}, n1={})
    assert not rig.received("n0", "go")
    rig.join("n2")
    rig.pass_time(1, n0={}, n1={}, n2={})
    (go,) = rig.received("n2", "go")
    assert not go["absent"]


def test_one_member_alone_is_no_block(rig: Rig) -> None:
    rig.join("n0")
    rig.pass_time(63, n0={})
    assert set(rig.missing("n0")) == {"n1", "n2"}


def test_the_device_of_a_member_that_fails_is_named_to_the_others(rig: Rig) -> None:
    rig.join(*NAMES)
    rig.links["n1"].send("fault", own=True, sentence="DeviceFailed: gpu3: killed", device="gpu3")
    rig.pass_time(1, n0={}, n2={})
    ((name, _, device),) = rig.end("n2")["missing"]
    assert (name, device) == ("n1", "gpu3")


def test_a_member_that_beats_without_progress_is_stuck_and_those_that_wait_for_it_are_not(rig: Rig) -> None:
    rig.join(*NAMES)
    waits = {"state": WAITING, "progress": False}
    rig.pass_time(118, n0=waits, n1={"progress": False}, n2=waits)
    assert not rig.received("n0", "end")
    rig.pass_time(5, n0=waits, n1={"progress": False}, n2=waits)
    assert set(rig.missing("n2")) == {"n1"}


def test_when_all_wait_for_each_other_none_is_named(rig: Rig) -> None:
    rig.join(*NAMES)
    waits = {"state": WAITING, "progress": False}
    rig.pass_time(125, n0=waits, n1=waits, n2=waits)
    end = rig.end("n0")
    assert end["missing"] == []
    assert "120 s" in end["broken"]


def test_a_slow_member_that_makes_progress_is_waited_for(rig: Rig) -> None:
    rig.join(*NAMES)
    waits = {"state": WAITING, "progress": False}
    rig.pass_time(600, n0=waits, n1={}, n2=waits)
    assert not rig.received("n0", "end")


@pytest.mark.parametrize("where", ["_step", "_accept", "_broadcast"])
def test_a_hub_that_was_suspended_names_its_own_node(rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    rig.join(*NAMES)
    rig.pass_time(3, n0={}, n1={}, n2={})
    method = getattr(rig.hub, where)

    def suspended(*args: Any, **fields: Any) -> None:
        monkeypatch.setattr(rig.hub, where, method)
        rig.clock.sleep(20.0)
        for name in ("n1", "n2"):
            rig.links[name].close()
        method(*args, **fields)

    monkeypatch.setattr(rig.hub, where, suspended)
    rig.clock.sleep(BEAT_S)
    rig.hub._step()
    assert set(rig.missing("n0")) == {"n0"}
