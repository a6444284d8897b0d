"""From qualified to production: the demo's blocks, its answers in place of a person, and its revalidation."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from muster import store
from muster.errors import AirflowRefused, UnknownRun
from muster.integration import runid
from muster.integration.airflow_api import REASON, AirflowClient
from muster.model import dags, runs
from muster.model.events import Event
from muster.model.stages import STAGES
from muster.model.states import SERVING, State
from muster.rules.lifecycle.current import INCONCLUSIVE
from muster.settings import settings
from muster_demo import between
from muster_demo.scoring import Service
from muster_demo.table import production_cell
from muster_demo.watch import Run, Watcher, patiently, trigger_once
from muster_reports.model import RunReport

TASK = "ask"
DAGS = (
    dags.CLUSTER_QUALIFICATION,
    dags.ADMISSION,
    dags.PEER_STATISTICS,
    dags.IDLE_REVALIDATION,
    dags.NODE_REVALIDATION,
    dags.HEALTH_SWEEP,
    dags.REPAIR,
)

ACTOR = "demo-operator"
"""The login that answers in place of a person, so that the records show that no person did."""

ANSWER = "Admit"
ANSWER_REASON = "the demo answers its own questions: no person has looked at this node"

BLOCK_MOST = 4
"""All members of a block compute at the same time, here on one small machine."""


def question_page(run_id: str) -> str:
    """The page of Airflow on which the question of an admission run is answered."""
    return f"{settings().run_page(dags.ADMISSION, run_id)}/tasks/{TASK}/required_actions"


def blocks(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """The nodes in blocks of two to four; none for a single node."""
    count = math.ceil(len(nodes) / BLOCK_MOST) if len(nodes) > 1 else 0
    return [tuple(nodes[first::count]) for first in range(count)]


@dataclasses.dataclass
class Approver:
    """Answers questions that are open for ``patience_s`` seconds, under the demo's own login. ``since``: when each
    question was first seen, by run.
    """

    client: AirflowClient
    patience_s: float
    say: Callable[[str], None]
    since: dict[str, float] = dataclasses.field(default_factory=dict)

    def look(self) -> None:
        """Announce every new question, and answer those that have waited long enough."""
        for question in patiently(self._pending):
            run_id = str(question["task_instance"]["dag_run_id"])
            if run_id not in self.since:
                self.since[run_id] = time.monotonic()
                self._announce(str(question.get("subject") or run_id), run_id)
            if time.monotonic() - self.since[run_id] >= self.patience_s:
                patiently(functools.partial(self._answer, run_id))

    def _pending(self) -> list[dict[str, Any]]:
        return [each for each in self.client.hitl_pending() if each["task_instance"]["dag_id"] == dags.ADMISSION]

    def _announce(self, subject: str, run_id: str) -> None:
        if self.patience_s > 0:
            page = question_page(run_id)
            self.say(f"{subject} Answer within {self.patience_s:.0f} s at {page}, or {ACTOR} admits it for you")

    def _answer(self, run_id: str) -> None:
        try:
            self.client.hitl_answer(dags.ADMISSION, run_id, TASK, [ANSWER], {REASON: ANSWER_REASON})
        except AirflowRefused:
            # A person was quicker, and their answer counts.
            if any(each["task_instance"]["dag_run_id"] == run_id for each in self._pending()):
                raise


class Users(Protocol):
    """Users whose jobs run on nodes in production."""

    def run_on(self, node: str) -> None:
        """Run a job on an idle node."""

    def take_back(self, node: str) -> None:
        """Run a job on a node that is being tested."""


Fail = Callable[[str], object]
"""Lets a GPU of a node fail."""


class ServiceStory:
    """Takes qualified nodes into service step by step; ``follow`` waits until all runs of the watcher are over.

    ``users``: None without a scheduler that would run their jobs. ``fail``: what happens to a node in production.
    """

    def __init__(
        self,
        watcher: Watcher,
        approver: Approver,
        follow: Callable[[Callable[[], None]], None],
        *,
        level: str,
        fail: Fail,
        users: Users | None = None,
    ) -> None:
        self.users = users
        self.fail = fail
        self.interrupted: set[str] = set()
        self.watcher = watcher
        self.client = watcher.client
        self.approver = approver
        self.follow = follow
        self.level = level

    def run(self, nodes: Sequence[str]) -> None:
        """Judge the nodes by each other, validate them together, have questions answered, and revalidate one.

        The last of them is kept as a spare, until one in production fails there and is repaired. Users' jobs, if there
        are any, run on what is in production, and interrupt the revalidation of the spare.
        """
        between.hold_back(nodes[-1])
        for dag_id in DAGS:
            patiently(functools.partial(self.client.unpause, dag_id))
        # From here on the nodes have each other as peers.
        self._trigger(dags.PEER_STATISTICS, {}, nodes)
        self._validate(nodes, "demo")
        # On a busy machine members may miss each other, which gives no verdict.
        if len(unjudged := [node for node in nodes if without_verdict(service_of(node))]) > 1:
            self._validate(unjudged, "demo again")
        self._watch(dags.ADMISSION)
        self.follow(self.approver.look)
        # By its schedule the DAG may have chosen a node meanwhile, which is out of production until its test ends.
        self._watch(dags.NODE_REVALIDATION)
        self.follow(_nothing)
        serving = self._begin_jobs(nodes)
        self._trigger(dags.IDLE_REVALIDATION, {"level": self.level}, serving)
        self._watch(dags.NODE_REVALIDATION)
        self.follow(_nothing)
        if serving:
            self._fail(serving[0], nodes)

    def _begin_jobs(self, nodes: Sequence[str]) -> list[str]:
        """Run a user's job on each node in production, if there are users. Returns these nodes."""
        serving = [node.name for node in store.nodes.find(states=(State.PRODUCTION,)) if node.name in nodes]
        for node in serving if self.users else ():
            self.users.run_on(node)  # type: ignore[union-attr]
        return serving

    def _fail(self, node: str, nodes: Sequence[str]) -> None:
        """Let a node fail between tests, and follow its repair until it is proved; a spare has its place by then."""
        # By its schedule a test may begin now, and meet the fault before the sweep does.
        found = patiently(lambda: self.client.runs(dags.IDLE_REVALIDATION))
        chosen = (Run(node, True, dags.IDLE_REVALIDATION, str(run["dag_run_id"])) for run in found)
        self.watcher.runs += [run for run in chosen if run not in self.watcher.runs]
        self.follow(_nothing)
        patiently(functools.partial(self.client.pause, dags.IDLE_REVALIDATION))
        self._watch(dags.NODE_REVALIDATION)
        self.follow(_nothing)
        self.fail(node)
        self._trigger(dags.HEALTH_SWEEP, {}, [node], "found__demo")
        patiently(functools.partial(self.client.unpause, dags.IDLE_REVALIDATION))
        serving = self._begin_jobs(nodes)
        if self.users:
            trigger_once(self.client, dags.IDLE_REVALIDATION, "again__demo", {"level": self.level})
            self.watcher.runs += [Run(each, True, dags.IDLE_REVALIDATION, "again__demo") for each in serving]
        # The repair starts the test that proves it: once the repair was seen to be over, its test is known.
        for _ in (dags.REPAIR, dags.NODE_QUALIFICATION):
            self._look_at_repair(node)
            self.follow(functools.partial(self._look_at_repair, node))
        # By its schedule it would take nodes out of production again while the demo is judged.
        patiently(functools.partial(self.client.pause, dags.IDLE_REVALIDATION))
        self._watch(dags.NODE_REVALIDATION)
        self._trigger(dags.HEALTH_SWEEP, {}, [node], "proved__demo")

    def _look_at_repair(self, node: str) -> None:
        for dag_id in (dags.REPAIR, dags.NODE_QUALIFICATION, dags.NODE_REVALIDATION):
            self._watch(dag_id, "" if dag_id == dags.NODE_REVALIDATION else node)
        if self.users:
            self._interrupt(self.users)

    def _interrupt(self, users: Users) -> None:
        """Have a user's job take each node back on which a test computes now."""
        for run in self.watcher.going():
            if run.node not in self.interrupted and computes(run):
                self.interrupted.add(run.node)
                users.take_back(run.node)

    def _validate(self, nodes: Sequence[str], reason: str) -> None:
        for number, block in enumerate(blocks(nodes), start=1):
            run_id = runid.run_id(f"block-{number}", reason)
            trigger_once(
                self.client,
                dags.CLUSTER_QUALIFICATION,
                run_id,
                {"nodes": list(block), "level": self.level, "reason": reason},
            )
            self.watcher.runs += [Run(node, True, dags.CLUSTER_QUALIFICATION, run_id) for node in block]
        self.follow(_nothing)

    def _trigger(
        self, dag_id: str, conf: Mapping[str, object], nodes: Sequence[str], run_id: str = "now__demo"
    ) -> None:
        """Run a DAG that concerns all of them, and wait for its end."""
        trigger_once(self.client, dag_id, run_id, conf)
        self.watcher.runs += [Run(node, True, dag_id, run_id) for node in nodes]
        self.follow(_nothing)

    def _watch(self, dag_id: str, node: str = "") -> None:
        """Follow every run of a DAG whose runs concern one node each, or those of one node."""
        found = patiently(lambda: self.client.runs(dag_id))
        runs = [Run(str(run["conf"]["node"]), True, dag_id, str(run["dag_run_id"])) for run in found]
        runs = [run for run in runs if node in ("", run.node)]
        self.watcher.runs += [run for run in runs if run not in self.watcher.runs]


def without_verdict(served: Service) -> bool:
    """Whether the node's latest block gave no verdict on it."""
    return bool(served.validations) and served.validations[-1].verdict in INCONCLUSIVE


def computes(run: Run) -> bool:
    """Whether a revalidation's test has begun on the node."""
    if run.dag_id != dags.NODE_REVALIDATION or not store.runs.find(run=run.key):
        return False
    return any(store.runs.get_job(run.key, stage) is not None for stage in STAGES)


def _nothing() -> None:
    """Do nothing while these runs go on."""


def cells(run: Run, over: bool) -> dict[str, str]:
    """The cell of a node in each column of ``table.SERVICE``."""
    verdicts: dict[str, str] = {}
    for each in store.runs.find(node=run.node):
        verdicts.setdefault(each.dag_id, each.verdict.value if each.verdict else _at_work(each))
    entries = _entries(run.node)
    production = production_cell(entries[-1].actor if entries else "")
    if run.dag_id == dags.ADMISSION and not production:
        production = "kept out" if over else "asked"
    found = {
        "tests": verdicts.get(dags.NODE_QUALIFICATION, ""),
        "cluster": verdicts.get(dags.CLUSTER_QUALIFICATION, ""),
        "production": production,
        "revalidation": verdicts.get(dags.NODE_REVALIDATION, ""),
    }
    return {column: cell for column, cell in found.items() if cell}


def _at_work(run: runs.Run) -> str:
    """The stage of a revalidation whose job began last; "running" for runs without such stages."""
    if run.dag_id != dags.NODE_REVALIDATION:
        return "running"
    begun = (stage for stage in reversed(STAGES) if store.runs.get_job(run.key, stage) is not None)
    return next(begun, "running").replace("_", "-")


def finished(run: Run) -> RunReport | None:
    """The run's report; None for a run that the records do not have."""
    try:
        return store.reporting.run(run.key, attached=False)
    except UnknownRun:
        return None


def _entries(node: str) -> list[Event]:
    """The node's moves into service, oldest first."""
    return [
        event
        for event in store.nodes.events(node)
        if event.to_state is State.PRODUCTION and event.from_state not in SERVING
    ]


def service_of(node: str) -> Service:
    """The node's service, from the records."""
    entries = _entries(node)
    kinds = (dags.CLUSTER_QUALIFICATION, dags.NODE_REVALIDATION, dags.NODE_QUALIFICATION)
    reports: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for run in reversed(store.runs.find(node=node)):
        if run.dag_id in reports:
            reports[run.dag_id].append(store.reporting.run(run.key, node=node, attached=False))
    evidence: Mapping[str, Any] = entries[-1].evidence if entries else {}
    again = [event.evidence for event in store.nodes.events(node) if "reevaluated" in event.evidence]
    return Service(
        node=node,
        state=str(store.nodes.get(node).state),
        entered_by=entries[-1].actor if entries else "",
        on_full_pass=bool(evidence.get("full_coverage")),
        approvals=tuple(store.verdicts.approvals(node)),
        validations=tuple(reports[dags.CLUSTER_QUALIFICATION]),
        revalidations=tuple(reports[dags.NODE_REVALIDATION]),
        judged_again=sum(each["verdict"] != each["before"] for each in again),
        proofs=tuple(reports[dags.NODE_QUALIFICATION][1:]),
    )
