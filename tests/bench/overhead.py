"""What Muster costs the controller: CPU per node against a bare Airflow DAG, memory per waiting node, GX per verdict.

Run as ``python -m tests.bench.overhead [--nodes N]``. Everything is real (Airflow on SQLite, OpenSSH servers, the node
side, Great Expectations), but the probes are trivial, and only the controller's processes are counted.
"""

from __future__ import annotations

from muster.model.nodes import NewNode
from tests.bench import bars
from tests.support import airflow_home

assert airflow_home.HOME, "before anything imports Airflow"

import argparse  # noqa: E402
import asyncio  # noqa: E402
import collections  # noqa: E402
import contextlib  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import psutil  # noqa: E402

from muster import store  # noqa: E402
from muster.integration.airflow_api import AirflowClient  # noqa: E402
from muster_criteria.model import Verdict  # noqa: E402
from muster_demo import watchdog  # noqa: E402
from muster_demo.services import Supervisor  # noqa: E402
from muster_demo.stack import Stack, airflow_settings, migrate, new_login, write_password  # noqa: E402
from tests.bench.processes import StepSampler, cpu_seconds  # noqa: E402
from tests.support import standin  # noqa: E402
from tests.support.servers import sshd  # noqa: E402

FILES = Path(__file__).parent / "overhead_files"
STEPS = ("claim", "intake", "burn_in", "integrity", "performance", "thermal", "conclude", "release", "report")
IDLE_S = 20.0
TURNS = 2
WAITING = 100


@dataclasses.dataclass(frozen=True)
class Cost:
    """CPU seconds of one batch of runs, without what the components use when nothing happens."""

    runs: int
    wall_s: float
    cpu_s: float
    steps: Mapping[str, float]
    components: Mapping[str, float]

    @classmethod
    def of(cls, batches: Sequence[Cost]) -> Cost:
        """The sum of batches."""
        steps, components = collections.Counter[str](), collections.Counter[str]()
        for each in batches:
            steps.update(each.steps)
            components.update(each.components)
        runs, wall_s, cpu_s = (sum(getattr(each, name) for each in batches) for name in ("runs", "wall_s", "cpu_s"))
        return cls(runs, wall_s, cpu_s, steps, components)

    @property
    def per_run(self) -> float:
        """CPU seconds for each run."""
        return self.cpu_s / self.runs


@contextlib.contextmanager
def fleet(folder: Path, nodes: int) -> Iterator[None]:
    """So many nodes, each behind an SSH server of its own, enrolled in fresh records."""
    os.environ["MUSTER_HOME"] = str(folder / "muster")
    os.environ["MUSTER_SKU_PATH"] = str(FILES)
    os.environ["MUSTER_POLL_SECONDS"] = "1"
    store.engine.upgrade()
    with contextlib.ExitStack() as servers:
        key = None
        for number in range(nodes):
            server = servers.enter_context(sshd.running(folder / f"node-{number}"))
            key = key or server
            (server.folder / "authorized_keys").write_text((key.folder / "login.pub").read_text())
            node = server.node()
            store.nodes.add(
                NewNode(
                    f"bench-{number}", node.host, " ".join(node.host_key.split()[:2]), "bench-node", port=node.port,
                    user=node.user or "", launch={"kind": "python", "python": sys.executable}, work_dir=node.work_dir,
                )
            )  # fmt: skip
        assert key is not None
        os.environ[sshd.CONNECTION] = sshd.connection(key.key_file)
        yield


@contextlib.contextmanager
def airflow(folder: Path) -> Iterator[Stack]:
    """A real Airflow with our DAG and the bare one."""
    dags = folder / "dags"
    dags.mkdir()
    for file in (airflow_home.ROOT / "dags" / "node_qualification.py", FILES / "dags" / "bare.py"):
        (dags / file.name).symlink_to(file)
    login = new_login()
    home = folder / "airflow"
    write_password(home, login.username, login.password)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # else each task process compiles the DAG file's imports again
    settings = airflow_settings(login, home, dags, airflow_home.ROOT / "plugins")
    environment = {**ours, **settings, "MUSTER_AIRFLOW_URL": login.url}
    migrate(environment, folder / "logs" / "migrate.log")
    supervisor = Supervisor(folder / "logs")
    stack = Stack(supervisor, environment, login)
    try:
        stack.start()
        stack.wait_ready("node_qualification")
        stack.wait_ready("bare")
        yield stack
    finally:
        supervisor.stop()


class Meter:
    """Counts what the controller's processes use."""

    def __init__(self, stack: Stack) -> None:
        self.pids = {name: service.pid for name, service in stack.supervisor.services.items()}
        self.client = AirflowClient(stack.login.url, stack.login.username, stack.login.password)
        self.idle: dict[str, float] = dict.fromkeys(self.pids, 0.0)

    def measure_idle(self) -> None:
        """The components' CPU seconds per second when nothing happens."""
        before = self._now()
        time.sleep(IDLE_S)
        self.idle = {name: (value - before[name]) / IDLE_S for name, value in self._now().items()}

    def batch(self, dag_id: str, name: str, confs: list[dict[str, Any]]) -> Cost:
        """Trigger a run for each conf at once, and count until the last has ended."""
        before, began = self._now(), time.monotonic()
        with StepSampler(self.pids["scheduler"]) as steps:
            run_ids = [f"{name}-{number}" for number in range(len(confs))]
            for run_id, conf in zip(run_ids, confs, strict=True):
                self.client.trigger(dag_id, run_id, conf)
            for run_id in run_ids:
                while (state := self.client.run_state(dag_id, run_id)) not in ("success", "failed"):
                    time.sleep(1)
                if state != "success":
                    raise RuntimeError(f"{run_id} of {dag_id} failed: {self.client.task_states(dag_id, run_id)}.")
        wall = time.monotonic() - began
        used = {name: value - before[name] - self.idle[name] * wall for name, value in self._now().items()}
        by_step: dict[str, float] = dict.fromkeys(STEPS, 0.0)
        for run_id in run_ids:
            path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
            for instance in self.client._request("GET", path).json()["task_instances"]:
                by_step[instance["task_id"]] += steps.seconds.get(instance["id"], 0.0)
        return Cost(len(confs), wall, sum(used.values()), by_step, used)

    def _now(self) -> dict[str, float]:
        return {name: cpu_seconds([pid]) for name, pid in self.pids.items()}


def compare(folder: Path, nodes: int) -> tuple[Cost, Cost]:
    """(our DAG, the bare DAG): two batches of each in turn, after one of each for which the executor forks."""
    with fleet(folder, nodes), airflow(folder) as stack:
        meter = Meter(stack)

        def confs(reason: str) -> list[dict[str, Any]]:
            more = {"level": "demo", "reason": reason, "force_reason": "a benchmark"}
            return [{"node": f"bench-{number}", **more} for number in range(nodes)]

        def both(name: str) -> tuple[Cost, Cost]:
            return meter.batch("node_qualification", name, confs(name)), meter.batch("bare", name, [{}] * nodes)

        both("warm")
        meter.measure_idle()
        ours, bare = zip(*(both(f"measured-{turn}") for turn in range(TURNS)), strict=True)
        for run in store.runs.find():
            if run.verdict is not Verdict.PASS:
                raise RuntimeError(f"{run.node} did not pass, which is not what is measured here: {run.headline}.")
        return Cost.of(ours), Cost.of(bare)


def memory_per_waiting_node(folder: Path) -> float:
    """Megabytes that a triggerer's process grows by for each job that it waits for."""
    from muster.operators.testing.trigger import JobTrigger
    from muster.remote.connection import ssh
    from muster.remote.connection.login import Credentials
    from muster.remote.job import jobs
    from muster.remote.job.attempt_key import AttemptKey
    from muster.remote.job.waiting import Wait

    store.nodes.touch_contact = lambda name: None  # type: ignore[assignment]
    with sshd.running(folder / "waiting") as server:
        os.environ[sshd.CONNECTION] = sshd.connection(server.key_file)
        agent, sha256 = standin.write(folder / "cache")
        key = AttemptKey(0).job_key("bench", "r", "t")
        with ssh.connect(server.node(), Credentials(key_file=str(server.key_file))) as client:
            seen = jobs.look(client, server.node().work_dir, key, sha256)
            jobs.send_agent(client, seen, agent, sha256)
            jobs.start(client, seen, key, standin.plan(key, seconds=600), {}, sha256)

        def waiting() -> JobTrigger:
            address, deadline = ssh.NodeAddress.of(server.node()), time.time() + 600
            wait = Wait(address, key, seen.work, seen.boot_id, deadline_at=deadline, grace_s=0, poll_s=2)
            return JobTrigger(wait=wait.to_json(), ssh_conn_id="muster_ssh")

        async def grow() -> float:
            async def wait() -> None:
                async for _ in waiting().run():
                    return

            first = [asyncio.create_task(wait()) for _ in range(10)]
            await asyncio.sleep(6)
            before = psutil.Process().memory_full_info().uss
            more = []
            for _ in range(WAITING):
                more.append(asyncio.create_task(wait()))
                await asyncio.sleep(0.05)
            await asyncio.sleep(8)
            grown = psutil.Process().memory_full_info().uss - before
            for task in (*first, *more):
                task.cancel()
            await asyncio.gather(*first, *more, return_exceptions=True)
            return grown / WAITING / 1e6

        try:
            return asyncio.run(grow())
        finally:
            sshd.kill_jobs(Path(seen.work))


def gx_import_seconds() -> float:
    """CPU seconds of importing Great Expectations in a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-W", "ignore", "-c", "import great_expectations"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def gx_seconds_per_verdict() -> float:
    """Median seconds of judging one stage of an 8-GPU node, everything imported."""
    from muster_criteria.measured import parse_result
    from muster_criteria.sku_files.skus import load_sku
    from muster_criteria.stage.case import Case
    from muster_criteria.stage.judge import judge
    from tests.muster_criteria.nodes import healthy_raw

    sku = load_sku("h100-sxm-8")
    result = parse_result(json.dumps(healthy_raw(sku, "performance", "demo")).encode())
    took = []
    for _ in range(6):
        began = time.perf_counter()
        judge(Case(sku, result.stage, result.level, result))
        took.append(time.perf_counter() - began)
    return sorted(took[1:])[2]


def table(ours: Cost, bare: Cost) -> str:
    """The two DAGs side by side, step by step and component by component."""
    rows = [(f"  task {step}", ours.steps.get(step, 0.0), bare.steps.get(step, 0.0)) for step in STEPS]
    rows += [(f"  {name}", ours.components[name], bare.components[name]) for name in ours.components]
    lines = [f"{'CPU seconds for each run':<28}{'Muster':>10}{'bare':>10}"]
    lines += [f"{name:<28}{mine / ours.runs:>10.2f}{plain / bare.runs:>10.2f}" for name, mine, plain in rows]
    lines.append(f"{'all (idle taken off)':<28}{ours.per_run:>10.2f}{bare.per_run:>10.2f}")
    lines.append(f"{'wall seconds of the batch':<28}{ours.wall_s:>10.1f}{bare.wall_s:>10.1f}")
    return "\n".join(lines)


def main() -> int:
    """Print the table and, last, one JSON line; 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="runs in each batch of four")
    parser.add_argument("--seed", type=int, default=0, help="accepted as by every benchmark; nothing here is random")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = Path(name)
        try:
            ours, bare = compare(folder, chosen.nodes)
        except RuntimeError as error:
            print(f"Nothing was measured: {error} Is the machine busy with other work?", file=sys.stderr)
            return 2
        print(table(ours, bare))
        print("(a task's seconds are the scheduler's children at work on it, and part of the scheduler's)")
        answer = {
            "cpu_seconds_per_node": round(ours.per_run, 2),
            "cpu_ratio_to_bare_dag": round(ours.per_run / bare.per_run, 2),
            "mb_per_waiting_node": round(memory_per_waiting_node(folder), 3),
            "gx_seconds_per_verdict": round(gx_seconds_per_verdict(), 3),
            "gx_import_seconds": round(gx_import_seconds(), 2),
        }
    print(f"bar: ratio ≤ {bars.OVERHEAD.most}")
    print(json.dumps(answer))
    return 0 if bars.OVERHEAD.holds(answer["cpu_ratio_to_bare_dag"]) else 1


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
