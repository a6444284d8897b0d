"""The rendezvous: all other members name a lost member, in every phase, for every cause, and none hangs.

The members are processes whose phases only sleep, so that every way to fail can be tried in every phase.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_demo.services import free_port
from tests.muster_node.agent.harness import wait_for
from tests.muster_node.cluster.blocks import rendezvous

pytestmark = pytest.mark.early(11)

MAIN = Path(__file__).parent / "fakes" / "member_main.py"
NAMES = ("n0", "n1", "n2")
PHASES = ("prepare", "same_batch", "collectives", "training", "finish")
LIMITS = {"join_timeout_s": 8.0, "stall_timeout_s": 2.0, "progress_timeout_s": 3.0}
SHORT = [(phase, 0.1) for phase in PHASES]


@dataclasses.dataclass
class Lot:
    """The processes of one block."""

    shared: dict[str, Any]
    processes: dict[str, subprocess.Popen[str]]
    folder: Path

    def messages(self, name: str) -> list[str]:
        lines = (self.folder / f"{name}.out").read_text().splitlines()
        return [json.loads(line)["message"] for line in lines if line.startswith('{"message"')]

    def await_phase(self, name: str, phase: str) -> None:
        wait_for(lambda: f"phase {phase}" in self.messages(name), limit_s=15.0)

    def await_all(self, phase: str) -> None:
        for name in self.processes:
            self.await_phase(name, phase)
        time.sleep(0.3)  # the hub receives the phase with the next heartbeat

    def end(self, name: str) -> dict[str, Any]:
        self.processes[name].wait(timeout=30)
        last = (self.folder / f"{name}.out").read_text().splitlines()[-1]
        return dict(json.loads(last)["end"])


Start = Callable[..., Lot]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(which members…, phases=[(name, seconds)], n1={"fails": phase}, …) -> Lot."""
    lots: list[Lot] = []

    def _start(*which: str, phases: Any = SHORT, limits: Any = (), **own: Any) -> Lot:
        folder = tmp_path / f"lot{len(lots)}"
        folder.mkdir()
        lot = Lot(rendezvous(NAMES, **{**LIMITS, **dict(limits)}), {}, folder)
        lots.append(lot)
        for name in which or NAMES:
            run_member(lot, name, {"phases": phases, **own.get(name, {})})
        return lot

    yield _start
    for lot in lots:
        for process in lot.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def run_member(lot: Lot, name: str, task: dict[str, Any]) -> None:
    params = {**lot.shared, "rank": NAMES.index(name), **task.pop("params", {})}
    with (lot.folder / f"{name}.out").open("w") as out:
        lot.processes[name] = subprocess.Popen(
            [sys.executable, str(MAIN), json.dumps({"params": params, **task})], stdout=out
        )


def with_long(phase: str, seconds: float = 60.0) -> list[tuple[str, float]]:
    """Every phase short but one, in which something can happen."""
    return [(name, seconds if name == phase else 0.1) for name in PHASES]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 is off"))],
)
def test_a_block_without_trouble_comes_to_its_end(start: Start, address: str) -> None:
    lot = start(limits={"master_addr": address})
    for name in NAMES:
        end = lot.end(name)
        assert (end["missing"], end["broken"], end["error"], end["phase"]) == ({}, "", "", "finish")
        assert end["met"] == [{member: {"rank": rank} for rank, member in enumerate(NAMES)}] * len(PHASES)


WAYS = {"killed": signal.SIGKILL, "hung": signal.SIGSTOP}


@pytest.mark.parametrize("way", WAYS)
def test_lost_in_any_phase_it_is_named_by_all_others(start: Start, way: str) -> None:
    lots = {phase: start(phases=with_long(phase)) for phase in ("prepare", "training")}
    for phase, lot in lots.items():
        lot.await_all(phase)
    for lot in lots.values():
        lot.processes["n1"].send_signal(WAYS[way])
    for phase, lot in lots.items():
        for name in ("n0", "n2"):
            missing = lot.end(name)["missing"]
            assert set(missing) == {"n1"}, phase
            assert phase in missing["n1"]


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_master_is_named_by_all_others(start: Start, way: str) -> None:
    lots = {phase: start(phases=with_long(phase)) for phase in ("prepare", "training")}
    for phase, lot in lots.items():
        lot.await_all(phase)
    for lot in lots.values():
        lot.processes["n0"].send_signal(WAYS[way])
    for phase, lot in lots.items():
        for name in ("n1", "n2"):
            missing = lot.end(name)["missing"]
            assert set(missing) == {"n0"}, phase
            assert phase in missing["n0"]
    if way == "hung":
        # When it resumes, all others have ended; it must name itself, not them.
        for lot in lots.values():
            lot.processes["n0"].send_signal(signal.SIGCONT)
            assert set(lot.end("n0")["missing"]) == {"n0"}


def test_lost_while_it_waits_for_others_to_join_it_is_named(start: Start) -> None:
    lots = {way: start("n0", "n1", limits={"join_timeout_s": 30.0}) for way in WAYS}
    for way, lot in lots.items():
        wait_for(functools.partial(let_in, lot))
        lot.processes["n1"].send_signal(WAYS[way])
    for lot in lots.values():
        missing = lot.end("n0")["missing"]
        assert set(missing) == {"n1"}
        assert "join" in missing["n1"]


def let_in(lot: Lot) -> bool:
    return all(any("joined" in message for message in lot.messages(name)) for name in lot.processes)


def test_a_master_that_never_comes_up_is_named(start: Start) -> None:
    limits = {"join_timeout_s": 4.0}
    lots = {absent: start(*[n for n in NAMES if n != absent], limits=limits) for absent in ("n0",)}
    for absent, lot in lots.items():
        for name in lot.processes:
            assert set(lot.end(name)["missing"]) == {absent}


def test_a_late_member_is_awaited_and_its_lag_reported(start: Start) -> None:
    lot = start("n0", "n1")
    wait_for(functools.partial(let_in, lot))
    time.sleep(1.0)
    run_member(lot, "n2", {"phases": SHORT})
    lags = {name: lot.end(name)["join_lag"] for name in NAMES}
    assert lags["n2"] > 0.9 > max(lags["n0"], lags["n1"])
    assert not any(lot.end(name)["missing"] for name in NAMES)


def test_a_member_that_comes_once_the_others_began_names_itself(start: Start) -> None:
    lot = start("n0", "n1", phases=with_long("training"), limits={"join_timeout_s": 3.0})
    lot.await_phase("n1", "training")
    run_member(lot, "n2", {"phases": SHORT})
    end = lot.end("n2")
    assert set(end["missing"]) == {"n2"}
    assert "the others began without it" in end["missing"]["n2"]


def test_a_slow_member_is_not_taken_for_lost(start: Start) -> None:
    """Slower in one phase than the limits for silence and progress: it sends heartbeats and makes progress."""
    limits = {"stall_timeout_s": 2.0, "progress_timeout_s": 2.0}
    lot = start(n1={"phases": with_long("training", 3.0)}, limits=limits)
    ends = [lot.end(name) for name in NAMES]
    assert not any(end["missing"] or end["broken"] for end in ends)


def test_a_member_that_fails_by_itself_is_named_with_its_reason(start: Start) -> None:
    lot = start(phases=with_long("training"), n2={"fails": "training"})
    for name in NAMES:
        assert "ValueError" in lot.end(name)["missing"]["n2"]
    assert lot.end("n2")["error"]
    assert lot.end("n0")["error"] == ""


def test_the_minority_is_named_and_without_a_majority_all_are(start: Start) -> None:
    gloo, nccl = {"agrees": "gloo"}, {"agrees": "nccl"}
    minority, apart = start(n0=gloo, n1=nccl, n2=gloo), start(n0=gloo, n1=nccl, n2={"agrees": "none"})
    for name in NAMES:
        missing = minority.end(name)["missing"]
        assert set(missing) == {"n1"}
        assert "n1: nccl" in missing["n1"]
        assert set(apart.end(name)["missing"]) == set(NAMES)


def test_a_collective_that_fails_with_all_members_present_names_no_member(start: Start) -> None:
    lot = start(phases=with_long("training"), n2={"collective_fails": "training"})
    for name in NAMES:
        end = lot.end(name)
        assert end["missing"] == {}
        assert "n2" in end["broken"]


def test_a_member_with_another_plan_is_not_let_in(start: Start) -> None:
    others = [
        ({"progress_timeout_s": 77.0}, "its plan, seed or agent is not the same"),
        ({"session": "of yesterday"}, "another session"),
    ]
    lots = [start(n2={"params": params}, limits={"join_timeout_s": 2.0}) for params, _ in others]
    for lot, (_, why) in zip(lots, others, strict=True):
        assert set(lot.end("n0")["missing"]) == set(lot.end("n1")["missing"]) == {"n2"}
        assert why in lot.end("n2")["missing"]["n0"]


def test_unknown_peers_on_the_port_disturb_no_member(start: Start) -> None:
    lot = start("n0", "n1", limits={"join_timeout_s": 20.0})
    wait_for(functools.partial(let_in, lot))
    (port,) = lot.shared["master_ports"]
    silent = socket.create_connection(("127.0.0.1", port))
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"kind": "hello"}\n',
        b"x" * 300_000,
        b"[" * 9999 + b"\n",
    ):
        with socket.create_connection(("127.0.0.1", port)) as unknown_peer:
            unknown_peer.sendall(garbage)
    claimed = {"kind": "hello", "session": "guessed", "name": "n2", "rank": 2}
    with socket.create_connection(("127.0.0.1", port)) as unknown_peer:
        unknown_peer.sendall(json.dumps(claimed).encode() + b"\n")
        unknown_peer.settimeout(5)
        assert json.loads(unknown_peer.makefile().readline())["kind"] == "refused"
    run_member(lot, "n2", {"phases": SHORT})
    assert not any(lot.end(name)["missing"] for name in NAMES)
    silent.close()


def test_of_ports_that_are_in_use_the_members_meet_at_the_next_one(start: Start) -> None:
    with socket.create_server(("", 0)) as silent, socket.create_server(("", 0)) as closed:
        taken = [silent.getsockname()[1], closed.getsockname()[1]]
        closed.close()
        lot = start(*NAMES, limits={"stall_timeout_s": 2.0, "master_ports": [*taken, free_port()]})
        assert not any(lot.end(name)["missing"] for name in NAMES)


def test_the_master_looks_for_its_hub_at_no_port_of_another_program(start: Start) -> None:
    """One that says nothing would keep it for as long as a member may be silent."""
    with socket.create_server(("", 0)) as silent:
        lot = start("n0", limits={"join_timeout_s": 2.0, "master_ports": [silent.getsockname()[1], free_port()]})
        assert set(lot.end("n0")["missing"]) == {"n1", "n2"}
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_port_in_use_is_reported_and_the_others_name_the_master(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        lot = start("n1", limits={"join_timeout_s": 2.0, "master_ports": [port]})
        task = {"params": {**lot.shared, "rank": 0}, "phases": []}
        master = subprocess.run(
            [sys.executable, str(MAIN), json.dumps(task)], capture_output=True, text=True, timeout=30
        )
    assert str(port) in master.stderr
    assert set(lot.end("n1")["missing"]) == {"n0"}
