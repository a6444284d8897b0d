"""A fleet at once on CeleryExecutor: how fast, at what cost, and what a killed worker and triggerer lose or repeat.

Run as ``python -m tests.bench.fleet --nodes N [--seed S]``. Everything is real but the hardware and how long it is
tested: Airflow with Redis and PostgreSQL, two workers, two triggerers, an SSH server for each node, the node side,
Great Expectations, mail. All nodes first wait at once; then one triggerer stalls, the other is killed, and a worker in
mid-run. What was tested how often is counted by the nodes themselves.
"""

from __future__ import annotations

from muster.model.runs import RunKey
from tests.support import airflow_home

assert airflow_home.HOME, "before anything imports Airflow"

import argparse  # noqa: E402
import collections  # noqa: E402
import contextlib  # noqa: E402
import dataclasses  # noqa: E402
import email  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterable, Iterator, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest import mock  # noqa: E402

import psutil  # noqa: E402

from muster import store  # noqa: E402
from muster.errors import UnknownRun  # noqa: E402
from muster.integration.airflow_api import AirflowClient  # noqa: E402
from muster_criteria.model import Verdict  # noqa: E402
from muster_demo import watchdog  # noqa: E402
from muster_demo.services import ServiceFailed, Supervisor, base_environment  # noqa: E402
from tests.bench.processes import cpu_seconds  # noqa: E402
from tests.support.servers import celery_airflow, postgresql, sshd  # noqa: E402
from tests.support.servers.celery_airflow import TRIGGERERS, WORKERS, CeleryStack  # noqa: E402
from tests.support.servers.postgresql import PostgreSQL  # noqa: E402
from tests.support.simulated_fleet import FILES, SERVICE, SimulatedFleet, Start  # noqa: E402

DAG_ID = "node_qualification"
FAULT = "missing_gpu"
IDLE_S = 15.0
TIME_LIMIT_S = 3600.0
WARM_NODES = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of the nodes. Each list names nodes; ``doubles`` has one entry for each test too many. ``waited``: to
    how many nodes each triggerer held a connection when it was frozen, or killed. ``interrupted``: tasks that the
    worker was at when it was killed.
    """

    waited: Mapping[str, int]
    interrupted: int
    retried: int
    lost: list[str]
    wrong: list[str]
    doubles: list[str]
    mailed_twice: list[str]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a batch took. CPU seconds are by component, without what it uses when nothing happens."""

    wall_s: float
    cpu_s: Mapping[str, float]
    mb_per_waiting_node: float


class Meter:
    """What the controller's processes use, databases included; a component that was killed keeps what it had used."""

    def __init__(self, stack: CeleryStack, database: int) -> None:
        services = stack.supervisor.services
        self.pids = {name: service.pid for name, service in services.items() if name not in (SERVICE, "mail")}
        self.pids["postgresql"] = database
        self._last: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """CPU seconds so far."""
        for name, pid in self.pids.items():
            self._last[name] = max(self._last.get(name, 0.0), cpu_seconds([pid]))
        return dict(self._last)

    def triggerers_mb(self) -> float:
        """Megabytes that belong to the triggerers alone."""
        total = 0
        for name in TRIGGERERS:
            root = psutil.Process(self.pids[name])
            total += root.memory_full_info().uss
            for child in root.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # one that ended since it was listed
                    total += child.memory_full_info().uss
        return total / 1e6


class Campaign:
    """One fleet taken through its qualification on one Airflow."""

    def __init__(
        self,
        stack: CeleryStack,
        fleet: SimulatedFleet,
        nodes: list[str],
        dice: random.Random,
        limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self.stack = stack
        self.fleet = fleet
        self.nodes = nodes
        self.dice = dice
        self.client = AirflowClient(stack.login.url, stack.login.username, stack.login.password)
        self.deadline = time.monotonic() + limit_s
        self.endless = 0
        """How many runs do not come to an end."""

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until it is done, watching that every component lives. Raises ServiceFailed."""

        def now() -> bool:
            time.sleep(1)
            return done()

        self.stack.supervisor.wait_until(what, now, self._left())

    def _left(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def trigger(self, nodes: list[str]) -> None:
        """Start a run for each of the nodes."""
        for node in nodes:
            conf = {"node": node, "level": "demo", "reason": "fleet", "force_reason": "a simulated node"}
            self.client.trigger(DAG_ID, run_id(node), conf)

    def settled(self) -> bool:
        """Whether no run is under way but the endless ones."""
        return self._count(f"/dags/{DAG_ID}/dagRuns", state=["running", "queued"]) <= self.endless

    def in_flight(self) -> bool:
        """Whether every node waits. Raises ServiceFailed once none can any more."""
        if self.settled():
            raise ServiceFailed(f"the runs ended before all nodes waited; see {self.stack.supervisor.logs.parent}")
        path = f"/dags/{DAG_ID}/dagRuns/~/taskInstances"
        if self._count(path, state="deferred") < len(self.nodes):
            return False
        deferred = self.client._all(path, "task_instances", state="deferred")
        return sum(task["triggerer_job"] is not None for task in deferred) == len(self.nodes)

    def _count(self, path: str, **params: Any) -> int:
        return int(self.client._request("GET", path, params={**params, "limit": 1}).json()["total_entries"])

    def lose_triggerers(self) -> dict[str, int]:
        """Freeze the triggerer in which most nodes wait until the other has them all, let it find out, kill the other.

        Gives to how many nodes each held a connection before, and the other when it was killed.
        """
        self.wait("every node to be awaited once", self._calm)
        slow, other = sorted(TRIGGERERS, key=self._held, reverse=True)
        held = {f"{slow}, frozen": self._held(slow), f"{other}, killed": 0}
        self.stack.freeze(slow)
        self.wait("the other triggerer to take over", lambda: self._held(other) >= len(self.nodes))
        self.stack.thaw(slow)
        self.wait("the slow triggerer to let go", lambda: not self._held(slow))
        held[f"{other}, killed"] = self._held(other)
        self.stack.kill(other)
        return held

    def _calm(self) -> bool:
        """Whether each node has been awaited by one triggerer for a while: the first imports may stall both."""
        before = [self._held(name) for name in TRIGGERERS]
        time.sleep(5)
        return sum(before) == len(self.nodes) and before == [self._held(name) for name in TRIGGERERS]

    def _held(self, triggerer: str) -> int:
        return self.stack.connections(triggerer, self.fleet.ports())

    def kill_worker(self, meter: Meter) -> int:
        """Kill a worker once a part of the fleet is past its first stage; gives how many tasks it was at."""
        part = self.dice.randint(len(self.nodes) // 4, len(self.nodes) // 2)
        self.wait("the middle", lambda: sum(start.stage == "burn_in" for start in self.starts()) > part)
        caught: list[str] = []
        self.stack.supervisor.wait_until("a busy worker", lambda: self._catch_busy(caught), self._left())
        meter.read()
        at_work = len(self.stack.task_processes(caught[0]))
        self.stack.kill(caught[0])
        return at_work

    def _catch_busy(self, caught: list[str]) -> bool:
        """Hold a worker that is at a task, so that the task cannot end before the worker is killed."""
        if self.settled():
            raise ServiceFailed(f"the runs ended before a worker died; see {self.stack.supervisor.logs.parent}")
        for worker in self.dice.sample(WORKERS, len(WORKERS)):
            self.stack.freeze(worker)
            if self.stack.task_processes(worker):
                caught.append(worker)
                return True
            self.stack.thaw(worker)
        return False

    def starts(self) -> list[Start]:
        """What the measured nodes wrote down."""
        return [start for start in self.fleet.starts() if start.node in self.nodes]

    def outcome(self, waited: Mapping[str, int], interrupted: int, mails: Path, faulty: set[str]) -> Outcome:
        """Count it all up."""
        reports = collections.Counter(mailed(mails))
        verdicts = {node: verdict_of(node) for node in self.nodes}
        expected = {node: Verdict.FAIL if node in faulty else Verdict.PASS for node in self.nodes}
        lost = [node for node, verdict in verdicts.items() if verdict is None or not reports[node]]
        return Outcome(
            waited=waited,
            interrupted=interrupted,
            retried=self._retried(),
            lost=lost,
            wrong=[f"{node}: {verdicts[node]}" for node in self.nodes if verdicts[node] is not expected[node]],
            doubles=repeated(self.starts()),
            mailed_twice=[node for node in self.nodes if reports[node] > 1],
        )

    def _retried(self) -> int:
        tasks = self.client._all(f"/dags/{DAG_ID}/dagRuns/~/taskInstances", "task_instances")
        return sum(task["try_number"] > 1 for task in tasks)


def repeated(starts: Iterable[Start]) -> list[str]:
    """Each start too many: a stage of a node is tested once."""
    tested = collections.Counter((start.node, start.stage) for start in starts)
    return [f"{node} {stage}" for (node, stage), times in tested.items() for _ in range(times - 1)]


def run_id(node: str) -> str:
    """The run of a node."""
    return f"{node}__fleet"


def verdict_of(node: str) -> Verdict | None:
    """The verdict in the records of the node's run once it has ended; INCONCLUSIVE is no verdict."""
    try:
        run = store.runs.get(RunKey(DAG_ID, run_id(node)))
    except UnknownRun:
        return None
    return None if run.ended_at is None or run.verdict is Verdict.INCONCLUSIVE else run.verdict


def mailed(folder: Path) -> list[str]:
    """The node of each report that has arrived."""
    return [str(email.message_from_bytes(path.read_bytes())["X-Muster-Node"]) for path in folder.glob("*.eml")]


def start_mail(supervisor: Supervisor, folder: Path, environment: Mapping[str, str]) -> str:
    """Start a mail sink; gives the Airflow connection to it."""
    port = folder / "mail.port"
    command = [sys.executable, "-m", "muster_demo.mailsink", str(folder / "mails"), str(port)]
    supervisor.start("mail", command, environment)
    supervisor.wait_until("the mail sink", port.exists, 30)
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    return json.dumps({"conn_type": "smtp", "host": "127.0.0.1", "port": int(port.read_text()), "extra": extra})


def measure(
    folder: Path, nodes: int, seed: int, *, warm_nodes: int = WARM_NODES, idle_s: float = IDLE_S
) -> tuple[Outcome, Cost]:
    """Take so many nodes through it, in a new folder. Raises ServiceFailed if a component dies that was not killed.

    Before them go ``warm_nodes``, which are not counted, and ``idle_s`` seconds that show what Airflow uses by itself.
    """
    dice = random.Random(seed)
    names = [f"node-{number:03d}" for number in range(nodes)]
    warm = [f"warm-{number}" for number in range(warm_nodes)]
    faulty = set(dice.sample(names, max(1, nodes // 10)))
    fleet = SimulatedFleet(folder / "fleet", [*names, *warm], seed, dict.fromkeys(faulty, FAULT))
    with running(folder, fleet, warm) as (stack, database):
        campaign, meter = Campaign(stack, fleet, names, dice), Meter(stack, database.pid)
        cost, waited, interrupted = _measured(campaign, meter, idle_s)
        return campaign.outcome(waited, interrupted, folder / "mails", faulty), cost


@contextlib.contextmanager
def running(
    folder: Path, fleet: SimulatedFleet, warm: list[str], more: Mapping[str, str] | None = None
) -> Iterator[tuple[CeleryStack, PostgreSQL]]:
    """Airflow with the fleet in its records, after the runs of the ``warm`` nodes. ``more``: further settings.

    Ends with the block. Raises ServiceFailed.
    """
    with postgresql.running(connections=200) as database, mock.patch.dict(os.environ):
        supervisor = Supervisor(folder / "logs")
        try:
            settings = _enrolled(supervisor, folder, fleet, database.create("muster"))
            with celery_airflow.running(supervisor, folder, database, {**settings, **(more or {})}) as stack:
                stack.wait_ready(DAG_ID)
                first = Campaign(stack, fleet, warm, random.Random())
                first.trigger(warm)
                first.wait("the first nodes", first.settled)
                yield stack, database
        finally:
            fleet.gate.open()
            supervisor.stop()
            store.engine.dispose()


def _enrolled(supervisor: Supervisor, folder: Path, fleet: SimulatedFleet, records_url: str) -> dict[str, str]:
    """Start the nodes and the mail sink and enrol the nodes; gives the environment for Airflow's components."""
    environment = base_environment({})
    fleet.start(supervisor, environment)
    settings = {
        "MUSTER_HOME": str(folder / "muster"),
        "MUSTER_DATABASE_URL": records_url,
        "MUSTER_SKU_PATH": str(FILES),
        sshd.CONNECTION: sshd.connection(fleet.keys.private),
        "MUSTER_POLL_SECONDS": "2",
        "MUSTER_MAIL_TO": "fleet@example.org",
        "AIRFLOW_CONN_SMTP_DEFAULT": start_mail(supervisor, folder, environment),
    }
    os.environ.update(settings)
    store.engine.upgrade()
    fleet.enrol("fleet-node")
    return {**environment, **settings}


def _measured(campaign: Campaign, meter: Meter, idle_s: float) -> tuple[Cost, Mapping[str, int], int]:
    """Take the nodes through it; gives what it cost, who waited where, and what the killed worker was at."""
    nodes = campaign.nodes
    before = meter.read()
    time.sleep(idle_s)
    idle = {name: (value - before[name]) / idle_s for name, value in meter.read().items()}
    memory, before, began = meter.triggerers_mb(), meter.read(), time.monotonic()
    campaign.fleet.gate.shut()
    campaign.trigger(nodes)
    campaign.wait("all nodes in flight", campaign.in_flight)
    grown = meter.triggerers_mb() - memory
    meter.read()
    waited = campaign.lose_triggerers()
    campaign.fleet.gate.open()
    interrupted = campaign.kill_worker(meter)
    campaign.wait("the end", campaign.settled)
    wall = time.monotonic() - began
    used = {name: max(0.0, value - before[name] - idle[name] * wall) for name, value in meter.read().items()}
    return Cost(wall, used, grown / len(nodes)), waited, interrupted


def table(nodes: int, outcome: Outcome, cost: Cost) -> str:
    """What happened, and what it cost."""
    rows: list[tuple[str, object]] = [
        ("nodes in flight at once", nodes),
        *((f"nodes awaited by {which}", held) for which, held in outcome.waited.items()),
        ("tasks under way in the worker when it was killed", outcome.interrupted),
        ("tasks that were tried again", outcome.retried),
        ("nodes lost", ", ".join(outcome.lost) or 0),
        ("nodes with another verdict than their machine deserves", ", ".join(outcome.wrong) or 0),
        ("stages tested twice", ", ".join(outcome.doubles) or 0),
        ("nodes reported twice", ", ".join(outcome.mailed_twice) or 0),
        ("wall seconds, both kills included", f"{cost.wall_s:.0f}"),
    ]
    rows += [(f"CPU seconds a node: {name}", f"{value / nodes:.2f}") for name, value in cost.cpu_s.items()]
    return "\n".join(f"{name:<58}{value!s:>10}" for name, value in rows)


def bench(nodes: int, seed: int) -> int:
    """Print the table and, last, one JSON line; 1 if anything was lost, repeated or misjudged."""
    folder = Path(tempfile.mkdtemp(prefix="muster-fleet-"))
    outcome, cost = measure(folder, nodes, seed)
    print(table(nodes, outcome, cost))
    answer = {
        "nodes_per_hour": round(nodes / cost.wall_s * 3600),
        "cpu_seconds_per_node": round(sum(cost.cpu_s.values()) / nodes, 2),
        "mb_per_waiting_node": round(cost.mb_per_waiting_node, 3),
        "lost": len(outcome.lost),
        "double_tests": len(outcome.doubles),
    }
    good = not (outcome.lost or outcome.doubles or outcome.wrong or outcome.mailed_twice)
    if good:
        shutil.rmtree(folder)
    else:
        print(f"the logs are in {folder}")
    print(json.dumps(answer))
    return 0 if good else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50, help="nodes in flight at once")
    parser.add_argument("--seed", type=int, default=0, help="which nodes are faulty, and what is killed when")
    chosen = parser.parse_args()
    return bench(chosen.nodes, chosen.seed)


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
