"""A block's nodes behind real SSH servers, and how its members meet although dag.test() runs one task at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from airflow.sdk.definitions import dag as sdk_dag

from muster import store
from muster.integration import logins
from muster.model.nodes import NewNode
from muster.model.rounds import PlannedRound
from muster.model.runs import RunKey
from muster.model.stages import ROUND_STAGES
from muster.operators.testing import block, member, pair
from muster.operators.testing.remote_job import RETRIES
from muster.remote.job import attempt as remote
from muster.remote.job.attempt import Attempt
from muster.remote.job.zipapp import build_agent
from muster.settings import settings
from muster_criteria.model import Verdict
from muster_simulator import create_machine, environment
from tests.dags.conftest import dag_of
from tests.support import lives
from tests.support.servers import sshd

DAG_ID = "cluster_qualification"
NAMES = ("n1", "n2")


class Nodes:
    """A block's nodes. ``build`` enrols them as simulated machines that were qualified by decree."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, key_file: Path | None = None
    ) -> None:
        self.folder, self.stack, self.monkeypatch = folder, stack, monkeypatch
        self.key_file = key_file
        self.servers: dict[str, sshd.Sshd] = {}

    def serve(self, name: str, env: Mapping[str, str]) -> sshd.Sshd:
        """A machine that the one login key of all opens."""
        server = self.stack.enter_context(sshd.running(self.folder / name, dict(env)))
        self.stack.callback(sshd.kill_jobs, server.home / "muster")
        if self.key_file is None:
            self.key_file = server.key_file
            self.monkeypatch.setenv(sshd.CONNECTION, sshd.connection(self.key_file))
        (server.folder / "authorized_keys").write_text(self.key_file.with_suffix(".pub").read_text())
        self.servers[name] = server
        return server

    def build(
        self,
        faults: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        names: Sequence[str] = NAMES,
        labels: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        for name in names:
            machine = self.folder / f"machine-{name}"
            create_machine(machine, seed=5, faults=(faults or {}).get(name, ()))
            server = self.serve(name, {**environment(machine), "OMP_NUM_THREADS": "1"})
            node = server.node(name)
            store.nodes.add(
                NewNode(
                    name, node.host, " ".join(node.host_key.split()[:2]), "h100-sxm-8", port=node.port,
                    user=node.user or "", launch={"kind": "python", "python": sys.executable},
                    work_dir=node.work_dir, simulated=True, labels=(labels or {}).get(name, {}),
                )
            )  # fmt: skip
            lives.qualified(name)

    def jobs(self, name: str) -> list[psutil.Process]:
        """What runs on a node: its agents, all that they have started, and whatever of it has outlived them."""
        work = str(self.servers[name].home / "muster")
        return [process for process in psutil.process_iter() if _works_in(process, work)]

    def progress(self, name: str) -> str:
        """The last progress line of the rank on a node."""
        return "".join(log.read_text() for log in self.logs(name))

    def logs(self, name: str) -> set[Path]:
        """The files of progress lines of the ranks on a node, one a job."""
        return set((self.servers[name].home / "muster" / "jobs").glob("*/progress.jsonl"))


def _works_in(process: psutil.Process, work: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("MUSTER_WORK") == work
    return False


class Meeting:
    """dag.test() runs one task after the other to its end, while members have to be at work at once.

    So when the first member waits for its job, the jobs of the others are started, by the operator's own code; their
    tasks then find them. ``absent`` are not started here. Which member's task comes ``first`` (its map index) is
    Airflow's choice.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.absent: set[str] = set()
        self.first: int | None = None
        self.members: list[str] = []
        self.run = RunKey("", "")
        self.once_claimed = lambda: None
        self.at_work = lambda: None
        claim, wait = block.claim, sdk_dag._run_inline_trigger

        def claimed(key: RunKey, *more: Any) -> list[str]:
            self.run, self.members = key, claim(key, *more)
            self.once_claimed()
            return self.members

        def waited(trigger: Any, ti: Any) -> Any:
            if ti.task_id.startswith("pairs_"):
                self.start_partners(ti.task_id)
                return wait(trigger, ti)
            self.first = ti.map_index if self.first is None else self.first
            self.start_others()
            self.at_work()
            return wait(trigger, ti)

        monkeypatch.setattr(block, "claim", claimed)
        monkeypatch.setattr(sdk_dag, "_run_inline_trigger", waited)

    def start_partners(self, task_id: str) -> None:
        """Start what is not at work yet of the latest round."""
        planned = store.rounds.planned(self.run)[-1]
        known = store.rounds.sides(self.run, planned.number).get(planned.number, {})
        for name in planned.members:
            stage = ROUND_STAGES[planned.number - 1]
            if name in self.absent or name in known or store.runs.get_job(self.run, stage, node=name) is not None:
                continue
            if planned.pair_of(name) not in self._begun(planned, stage):
                continue
            operator = pair.MusterPairOperator(task_id=task_id, member=name, retries=RETRIES)
            context = cast("Any", {"ti": self._ti(task_id)})
            operator._take_round(context)
            self._start(operator._claim(context, begin=True))

    def _begun(self, planned: PlannedRound, stage: str) -> set[tuple[str, str] | None]:
        """The pairs of which one side is at work: the others' time comes, as their tasks do."""
        begun = (name for name in planned.members if store.runs.get_job(self.run, stage, node=name) is not None)
        return {planned.pair_of(name) for name in begun}

    def _ti(self, task_id: str) -> SimpleNamespace:
        return SimpleNamespace(
            dag_id=self.run.dag_id, run_id=self.run.run_id, task_id=task_id, max_tries=RETRIES, try_number=1
        )  # fmt: skip

    def _start(self, attempt: Attempt) -> None:
        with logins.connect(attempt.node) as client:
            remote.begin(attempt, client, build_agent(settings().home / "agents"))

    def start_others(self) -> None:
        for name in self.members:
            if name in self.absent or store.runs.get_job(self.run, member.STAGE, node=name) is not None:
                continue
            operator = member.MusterMemberOperator(task_id="train", member=name, retries=RETRIES)
            self._start(operator._claim(cast("Any", {"ti": self._ti("train")}), begin=True))


def validate() -> tuple[dict[str, str], str]:
    """Run the DAG: the tasks' states, mapped ones as "train[n1]", and the run's id."""
    run = dag_of(DAG_ID).test(run_conf={"nodes": list(NAMES), "level": "demo", "reason": "a test"})
    states = {}
    for instance in run.get_task_instances():
        mapped = f"[{NAMES[instance.map_index]}]" if instance.task_id == "train" else f"[{instance.map_index}]"
        name = f"{instance.task_id}{mapped}" if instance.map_index >= 0 else instance.task_id
        states[name] = str(instance.state)
    return {**states, "run": str(run.state)}, run.run_id


def verdicts(run_id: str) -> dict[str, Verdict | None]:
    """What became of each member."""
    return {name: store.runs.get(RunKey(DAG_ID, run_id), node=name).verdict for name in NAMES}
