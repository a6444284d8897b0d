"""The agents of one round: a real agent in each host's namespace runs the probe pair_rails with its partner."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from muster_criteria.cluster.fabric.observed import PROBE, Place, Port, pair_params, round_result
from muster_criteria.cluster.fabric.rounds import Round, RoundResult
from muster_criteria.cluster.fabric.topology import Topology, from_groups
from muster_criteria.measured import BadResult, Measured, parse_result
from muster_node.contract import Plan, ProbeCall
from tests.bench.fabric.network import HOSTS_A_LEAF, LEAVES, RAILS, Network, die_with_parent

SETTINGS = {"seconds": 0.5, "warmup_s": 0.25, "streams": 2, "connect_s": 3.0, "join_timeout_s": 45.0}
ROUND_LIMIT_S = 480.0
DIES_AFTER_S = 1.5
"""After its agent began to measure."""


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What happens to hosts themselves: seconds by which one starts late in its first round, and one that dies.
    ``dies``: host → round in whose middle it dies.
    """

    late: Mapping[int, float] = dataclasses.field(default_factory=dict)
    dies: Mapping[int, int] = dataclasses.field(default_factory=dict)


def topology() -> Topology:
    """The network's topology by names."""
    leaf = {f"host{host}": f"leaf{host // HOSTS_A_LEAF}" for host in range(LEAVES * HOSTS_A_LEAF)}
    return from_groups(leaf, [f"r{rail}" for rail in range(RAILS)])


def places() -> dict[str, Place]:
    """The addresses of each host."""
    return {
        f"host{host}": Place(
            Network.management(host),
            tuple(Port(Network.address(host, rail), f"r{rail}") for rail in range(RAILS)),
        )
        for host in range(LEAVES * HOSTS_A_LEAF)
    }


class Agents:
    """Runs rounds on a network."""

    def __init__(self, network: Network, folder: Path, trouble: Trouble) -> None:
        self._network, self._folder, self._trouble = network, folder, trouble
        self._dead: set[int] = set()

    def measure(self, plan: Round) -> RoundResult:
        """One round on all hosts at once."""
        fabric = topology()
        params = pair_params(fabric, plan, places(), ports=[7001], session=f"round {plan.number}", settings=SETTINGS)
        returned: dict[str, list[Measured] | None] = {}

        def one(name: str, host: int) -> None:
            returned[name] = self._one(name, host, plan.number, params[name])

        threads = [threading.Thread(target=one, args=(name, fabric.index[name])) for name in params]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return round_result(fabric, plan, returned)

    def _one(self, name: str, host: int, number: int, params: Mapping[str, object]) -> list[Measured] | None:
        if host in self._dead:
            return None
        if number == 1:
            time.sleep(self._trouble.late.get(host, 0.0))
        folder = self._folder / name / f"round{number}"
        folder.mkdir(parents=True)
        call = ProbeCall(PROBE, ROUND_LIMIT_S, number, dict(params))
        force = "a bench on a machine that others use too"
        plan = Plan(f"round-{number}", name, "cluster_validation", "demo", number, ROUND_LIMIT_S, (call,), 5.0, force)
        (folder / "plan.json").write_text(plan.to_json())
        command = self._network.hosts[host].enter(
            [sys.executable, "-m", "muster_node", "run", str(folder / "plan.json")]
        )
        with (folder / "log").open("wb") as log:
            agent = subprocess.Popen(
                command,
                env={**os.environ, "MUSTER_WORK": str(self._folder / name / "work")},
                stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip
        if self._trouble.dies.get(host) == number:
            self._die(host, agent, folder)
            return None
        try:
            agent.wait(ROUND_LIMIT_S + 30.0)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        try:
            return list(parse_result((folder / "result.json").read_bytes()).measurements)
        except (OSError, BadResult):
            return None

    def _die(self, host: int, agent: subprocess.Popen[bytes], folder: Path) -> None:
        """The host loses power: all of its interfaces and processes go at once."""
        progress = folder / "progress.jsonl"
        until = time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < until and not (progress.exists() and "measuring" in progress.read_text()):
            time.sleep(0.1)
        time.sleep(DIES_AFTER_S)
        for interface in ("m0", *(f"r{rail}" for rail in range(RAILS))):
            self._network.hosts[host].run("ip", "link", "set", interface, "down")
        agent.kill()
        agent.wait()
        self._dead.add(host)
