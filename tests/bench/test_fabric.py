"""The fabric bench: its relay keeps checksums right; as root, a slow link is named by a training, nothing is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster_criteria.cluster.fabric.decoding.parts import PartKind
from muster_criteria.cluster.model import TRAINING, MemberResult
from tests.bench.fabric.__main__ import KINDS, described, drawn, together
from tests.bench.fabric.agents import places, topology
from tests.bench.fabric.network import SLOW_MBIT, Network, die_with_parent
from tests.bench.fabric.proof import PARTS, needs_namespaces
from tests.bench.fabric.relay import PAYLOAD_AT, spoilt
from tests.muster_criteria.cluster_results import judge_block
from tests.muster_node.cluster.blocks import Block


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_a_spoilt_frame_is_different_and_has_the_same_checksum() -> None:
    frame = random.Random(1).randbytes(1000)
    assert spoilt(frame) != frame
    assert spoilt(frame)[:PAYLOAD_AT] == frame[:PAYLOAD_AT]
    assert checksum(spoilt(frame)) == checksum(frame)
    assert spoilt(bytes(1000)) == bytes(1000)


@pytest.mark.parametrize("seed", range(20))
def test_faults_are_drawn_in_places_of_the_network(seed: int) -> None:
    draw = random.Random(seed)
    for kind in KINDS:
        fault = drawn(kind, draw)
        assert (fault.part is None) == (kind == "late")
        assert fault.other != Network.leaf(fault.host)
        assert fault.part is None or described(fault.part)
    for kinds in ((), ("uplink", "path", "late")):
        faults = together(draw, kinds)
        one, other = (fault.part for fault in faults[:2])
        assert one != other
        assert [fault.kind for fault in faults[: len(kinds)]] == list(kinds)
        assert len({Network.leaf(fault.host) for fault in faults}) == len(faults) == max(2, len(kinds))
        assert faults[0].rail != faults[1].rail


def test_each_kind_is_planted_by_one_test_file() -> None:
    assert sorted(kind for part in PARTS.values() for group in part for kind in group.split("+")) == sorted(KINDS)


def test_addresses_are_those_of_the_topology() -> None:
    assert set(places()) == set(topology().nodes)
    assert all(len(place.ports) == len(topology().rails) for place in places().values())
    assert described(drawn("path", random.Random(3)).part).startswith(PartKind.PATH)


@pytest.mark.slow
@pytest.mark.early(7)
@pytest.mark.needs_iproute2
@pytest.mark.needs_torch
@needs_namespaces
def test_a_slow_link_is_named_by_a_real_training_over_it(tmp_path: Path) -> None:
    """Four hosts below three leaves train together by gloo, one through a port with a third of the others' rate."""
    hosts = dict(zip(("n0", "n1", "n2", "n3"), (0, 1, 3, 6), strict=True))
    params = {"same_steps": 2, "warm_steps": 1, "alone_steps": 2, "steps": 5, "layers": 1, "step_s": 0.3, "path_mib": 1}
    limits = {"master_addr": Network.address(0, 0), "stall_timeout_s": 120.0, "progress_timeout_s": 300.0}
    with Network() as network:
        network.limit_port(hosts["n2"], 0, SLOW_MBIT)
        inside = {name: network.hosts[host].enter([]) for name, host in hosts.items()}
        block = Block(
            tmp_path, list(hosts), [(TRAINING, params)], limits=limits, simulated=False, probe_s=600.0, inside=inside
        )
        try:
            block.start()
            ends = block.end(limit_s=700.0)
        finally:
            block.close()
    judgement = judge_block([MemberResult(name, end.result) for name, end in ends.items()])
    slow = {name: [f for f in member.findings if f.rule == "slow_path"] for name, member in judgement.members.items()}
    paths = {name: len(found) for name, found in slow.items()}
    assert paths == {"n0": 0, "n1": 1, "n2": 2, "n3": 1}, "both of its paths, and no others"
    # Four hosts share this machine's processors: one that other work holds up is slow indeed, and not by its link.
    assert {each.rule for found in judgement.failed.values() for each in found} <= {"straggler"}


@needs_namespaces
def test_a_relay_waits_for_no_other_work() -> None:
    """A cable that waits for a processor loses frames, and a corrupted path would look like a dead one."""
    script = (
        "import os; from tests.bench.fabric.relay import hurry; hurry(); "
        "print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    policy, nice = map(int, done.stdout.split())
    assert policy == os.SCHED_FIFO or nice < 0


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    parents = {int(own): int(parent) for own, parent in (line.split() for line in listed.splitlines())}
    found, more = set(), {pid}
    while more:
        found |= more
        more = {own for own, parent in parents.items() if parent in more} - found
    return found - {pid}


@pytest.mark.slow
@pytest.mark.needs_iproute2
@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_an_interrupted_run(number: int) -> None:
    command = [sys.executable, "-m", "tests.bench.fabric", "--twos", "0", "--kinds", "path"]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
    until = time.monotonic() + 600
    # Twelve hosts, the switches, a relay, and agents.
    while len(started := children(bench.pid)) < 18 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(started) >= 18
    os.kill(bench.pid, number)
    bench.wait(300)
    while (left := {pid for pid in started if os.path.exists(f"/proc/{pid}")}) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == set()
