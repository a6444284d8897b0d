"""The rounds of a block over real SSH servers and agents: all sides of a round at work at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import TaskDeferred

from muster import store
from muster.integration import logins
from muster.model.runs import RunKey
from muster.operators.testing import block, qualification, rounds
from muster.operators.testing.pair import MusterPairOperator, NotMeasured
from muster.remote.job import attempt as remote
from muster.remote.job.attempt import Attempt
from muster.remote.job.outcome import Kind
from muster.remote.job.zipapp import build_agent
from muster.settings import settings
from muster_criteria.cluster.fabric.decoding.parts import PartKind, Symptom
from muster_criteria.model import Severity, Verdict
from muster_reports import mail
from tests.dags import lanes
from tests.dags.blocks import Nodes
from tests.support.servers.live_airflow import HANGS_S
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.needs_sshd, pytest.mark.needs_iproute2, pytest.mark.early(7)]
needs_root = pytest.mark.skipif(not lanes.is_root, reason="a network of its own needs root")

RUN = RunKey("cluster_qualification", "rounds")
LEAVES, HOSTS = 4, 3
"""Of a slow uplink most cells of a round must be free, and three others of each leaf's."""
NAMES = tuple(f"n{at:02d}" for at in range(LEAVES * HOSTS))
DEAD, DEAD_RAIL = "n04", 1
SLOW_LEAF, SLOW_RAIL = 2, 0
NO_MACHINE = "192.0.2.9"
"""RFC 5737: no machine has this address, so nothing can be bound to it or sent there."""


@pytest.fixture
def nodes(fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, stack, monkeypatch)


class Sides:
    """Every side of a round, started by the operator's own code, and settled when its job is over."""

    def __init__(self) -> None:
        ti = SimpleNamespace(
            dag_id=RUN.dag_id, run_id=RUN.run_id, task_id="pairs", max_tries=0, try_number=1,
        )  # fmt: skip
        self.context = cast("Any", {"ti": ti})

    def run(self, members: list[str]) -> None:
        started = [self._start(name) for name in members]
        for operator, attempt in started:
            self._settle(operator, attempt)

    def _start(self, name: str) -> tuple[MusterPairOperator, Attempt]:
        operator = MusterPairOperator(task_id="pairs", member=name, retries=0)
        operator._take_round(self.context)
        attempt = operator._claim(self.context, begin=True)
        with logins.connect(attempt.node) as client:
            attempt, _ = remote.begin(attempt, client, build_agent(settings().home / "agents"))
        return operator, attempt

    def _settle(self, operator: MusterPairOperator, attempt: Attempt) -> None:
        def ended() -> bool:
            with contextlib.suppress(TaskDeferred, NotMeasured):
                operator._settle(self.context, attempt, Kind.DONE)
            return operator.member in store.rounds.sides(RUN, operator._number).get(operator._number, {})

        until(ended, what=lambda: f"{operator.member} did not end", limit_s=HANGS_S, step_s=0.5)


def _ports(network: lanes.Lanes, leaf: int, host: int) -> list[str]:
    """The addresses of a host's ports, each with the usual rate: what this machine's CPUs have left is no rate."""
    found = [lanes.address(leaf, host, rail) for rail in (0, 1)]
    for port in found:
        network.lane(lanes.RATE_MBIT, ("src", f"{port}/32"))
    return found


def _measure(nodes: Nodes, labels: dict[str, dict[str, str]]) -> None:
    """All rounds of a block of these nodes."""
    nodes.build(names=tuple(labels), labels=labels)
    block.claim(RUN, {"nodes": list(labels), "level": "demo", "reason": "a test"})
    sides = Sides()
    while planned := rounds.next_round(RUN):
        sides.run([each["member"] for each in planned])


def _slow_uplink(network: lanes.Lanes) -> None:
    leaf = f"127.{10 + SLOW_RAIL}.{SLOW_LEAF}.0/24"
    for host in range(HOSTS):
        within = f"{lanes.address(SLOW_LEAF, host, SLOW_RAIL)}/32"
        network.lane(lanes.RATE_MBIT, ("src", within, "dst", leaf))
    network.lane(lanes.SLOW_MBIT, ("src", leaf))
    network.lane(lanes.SLOW_MBIT, ("dst", leaf))


@needs_root
def test_a_dead_port_and_a_slow_uplink_are_named_and_the_ports_node_alone_fails(nodes: Nodes) -> None:
    """What a port of low rate looks like is held by tests/bench/test_fabric_links.py, over the same agents."""
    with lanes.own_network():
        network = lanes.Lanes()
        _slow_uplink(network)
        labels = {}
        for at, name in enumerate(NAMES):
            own = _ports(network, at // HOSTS, at % HOSTS)
            if name == DEAD:
                own[DEAD_RAIL] = NO_MACHINE
            labels[name] = {"leaf": f"leaf{at // HOSTS}", "rails": f"r0@{own[0]} r1@{own[1]}"}
        _measure(nodes, labels)
    made = store.rounds.planned(RUN)
    assert len(made) > 4, "three rounds of screening, and two partners chosen to confirm the dead port at least"
    assert all(set(store.rounds.sides(RUN)[each.number]) == set(each.members) for each in made)

    block.judge(RUN)
    parts = [part for part in store.rounds.parts(RUN) if part.confirmed]
    port = (PartKind.NIC, DEAD, f"r{DEAD_RAIL}")
    uplink = (PartKind.UPLINK, f"leaf{SLOW_LEAF}", f"r{SLOW_RAIL}")
    assert {(part.kind, part.where, part.rail) for part in parts} == {port, uplink}
    assert [part.node for part in parts if part.symptom is Symptom.DEAD] == [DEAD]
    (stage,) = store.reporting.run(RUN, node=DEAD).stages
    critical = [each for each in stage.judgement.findings if each.severity is Severity.CRITICAL]
    assert [(each.device, each.labels) for each in critical] == [("nic:r1", (("rail", "r1"),))]
    assert {name for name in NAMES if store.runs.get(RUN, node=name).verdict is Verdict.FAIL} == {DEAD}

    fabric = store.rounds.fabric(RUN)
    assert fabric is not None
    (matrix,) = (each for each in fabric.matrices if each.rail == "r1")
    assert {DEAD} == set.intersection(*({cell.sender, cell.receiver} for cell in matrix.cells if cell.rate == 0))
    text = " ".join(mail.render(store.reporting.run(RUN, node=NAMES[0], fabric=fabric)).text.split())
    assert [part.title for part in parts if part.title not in text] == []
    qualification.release(RUN)
    assert store.leases.live() == []
