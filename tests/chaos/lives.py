"""The lives of the nodes: what an operator of the fleet does with each, step by step, whatever fails meanwhile."""

from __future__ import annotations

import dataclasses
import datetime
import random
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import psycopg
import sqlalchemy.exc

from muster import store
from muster.admission import changes, service
from muster.errors import AirflowRefused, AlreadyTriggered, MusterError
from muster.integration.airflow_api import REASON
from muster.integration.runid import run_id
from muster.model.attention import Turn
from muster.model.dags import (
    ADMISSION,
    CLUSTER_QUALIFICATION,
    HEALTH_SWEEP,
    HOUSEKEEPING,
    NODE_QUALIFICATION,
    NODE_REVALIDATION,
)
from muster.model.states import SERVING, State
from muster_demo.draw import GPUS_PER_NODE
from muster_demo.services import ServiceFailed
from muster_demo.slurm import SlurmFailed
from tests.chaos.evidence import schedulers_show
from tests.chaos.world import PERSON, World

FAULTY = 0.2
"""Share of lives in which the machine lacks a GPU."""
WEARS = 0.4
"""Share of lives in production in which a GPU fails between tests."""
MEETS = 0.4
"""Share of qualified nodes that are validated as a block, with the next one that is to be."""
MEMBERS = 2
ATTEMPTS = 6
"""How often an operator tries one step of a life before giving up on it."""
AGAIN_S = 10.0
"""How long that operator waits before."""
EVERY_S = {HOUSEKEEPING: 25.0, HEALTH_SWEEP: 45.0}
"""The DAGs of the fleet, which run far more often here than by their schedules."""
PATIENCE_S = 120.0
"""For how long nothing may be under way at a node that failed in service before its operator looks into it, and for how
long a node waits for the others of its block.
"""
RETRIES_S = 30.0
"""How often an operator looks for retries that a wrong clock has put off."""
LOOK_S = 1.0
UNDER_WAY = "SELECT run_id FROM dag_run WHERE state IN ('queued', 'running')"
ASKING = """SELECT t.run_id FROM hitl_detail h JOIN task_instance t ON t.id = h.ti_id
            WHERE h.responded_at IS NULL AND t.task_id = 'ask' AND t.state = 'awaiting_input'"""
"""Not before the task waits: of tasks whose question was answered earlier, Airflow has let some wait on."""
TROUBLE = (
    MusterError,
    AirflowRefused,
    SlurmFailed,
    ServiceFailed,
    sqlalchemy.exc.SQLAlchemyError,
    psycopg.Error,
    httpx.HTTPError,
    psutil.NoSuchProcess,
    subprocess.SubprocessError,
    OSError,
)
"""What an operator meets while a fault lasts, and tries again after."""


class Watch:
    """Which runs are under way and which ask a person, read at most once a ``LOOK_S``.

    From Airflow's database, whatever of Airflow answers: a question for each node over REST would be load of the
    campaign's own.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.live: frozenset[str] = frozenset()
        self.asking: frozenset[str] = frozenset()
        self._looked = float("-inf")
        self._lock = threading.Lock()

    def look(self) -> None:
        """Read them if it is time. Raises psycopg.Error."""
        with self._lock:
            if time.monotonic() - self._looked < LOOK_S:
                return
            with psycopg.connect(self.url, connect_timeout=5) as connection:
                live = connection.execute(UNDER_WAY).fetchall()
                asking = connection.execute(ASKING).fetchall()
            self.live, self.asking = (frozenset(run for (run,) in rows) for rows in (live, asking))
            self._looked = time.monotonic()

    def triggered(self, run: str) -> None:
        """A run began, which a look before that could not see."""
        with self._lock:
            self.live |= {run}


@dataclasses.dataclass
class Block:
    """Qualified nodes that are validated together. ``over``: their run has ended."""

    nodes: list[str]
    over: bool = False


class Blocks:
    """Where nodes meet for a block. ``possible``: without PyTorch on the nodes there is none."""

    def __init__(self, *, possible: bool) -> None:
        self.possible = possible
        self._open: Block | None = None
        self._lock = threading.Lock()

    def join(self, node: str) -> Block:
        """The block of which this node is from now on; its run begins once it has ``MEMBERS``."""
        with self._lock:
            block = self._open or Block([])
            block.nodes.append(node)
            self._open = block if len(block.nodes) < MEMBERS else None
            return block

    def leave(self, block: Block) -> bool:
        """Give up waiting for others; False where all have come."""
        with self._lock:
            if self._open is not block:
                return False
            self._open = None
            return True


class Life:
    """One node's lives, one after the other. ``step`` never waits."""

    def __init__(self, world: World, watch: Watch, blocks: Blocks, node: str, dice: random.Random) -> None:
        self.world, self.watch, self.blocks, self.node, self.dice = world, watch, blocks, node, dice
        self.block = Block([])
        self.number = 0
        self.doing: Callable[[], None] | None = None
        self.run: tuple[str, str] = ("", "")
        self.attempts = 0
        self.since = time.monotonic()
        self.wears = 0
        self.worn = False

    @property
    def resting(self) -> bool:
        """Whether it is between two lives."""
        return self.doing is None

    def step(self, *, begin: bool) -> None:
        """Go on with the life; ``begin``: or begin the next one."""
        if self.doing is None:
            if not begin:
                return
            self.number, self.worn = self.number + 1, False
            self._go(self._leave)
        assert self.doing is not None
        self.doing()

    def _go(self, doing: Callable[[], None] | None) -> None:
        self.doing, self.attempts, self.run, self.since = doing, 0, ("", ""), time.monotonic()

    def _state(self) -> State:
        return store.nodes.get(self.node).state

    def _over(self) -> None:
        self.world.ledger.lives += 1
        self.world.ledger.write("life", node=self.node, number=self.number, state=str(self._state()))
        self._go(None)

    def _leave(self) -> None:
        """A person returns the node, whose machine is built again once its scheduler shows it closed."""
        if store.leases.get(self.node) is not None or self.world.ledger.is_drained(self.node):
            return
        if self._state() is not State.REGISTERED:
            store.nodes.move(self.node, State.REGISTERED, PERSON, f"life {self.number} begins")
            service.carry_out(self.node)
        if not self.world.scheduler_of(self.node).shows()[self.node].drained:
            service.carry_out(self.node)
            return
        faulty = self.dice.random() < FAULTY
        self.world.fleet.rebuild(self.node, faulty=faulty)
        self.world.ledger.machine(self.node, faulty=faulty)
        self._go(self._qualify)

    def _qualify(self) -> None:
        if self._runs(NODE_QUALIFICATION, {"node": self.node, "level": "demo"}):
            return
        state = self._state()
        if state in (State.QUARANTINE, State.TRIAGE):
            self._over()
        elif state is State.QUALIFIED and self.blocks.possible and self.dice.random() < MEETS:
            self.block = self.blocks.join(self.node)
            self._go(self._meet)
        elif state is State.QUALIFIED:
            self._go(self._ask)
        else:
            self._again()

    def _meet(self) -> None:
        """Wait for the others of its block, or enter production without one."""
        if len(self.block.nodes) == MEMBERS:
            self._go(self._validate)
        elif time.monotonic() - self.since > PATIENCE_S and self.blocks.leave(self.block):
            self._go(self._ask)

    def _validate(self) -> None:
        """Have the block tested, which its first node starts; then it is in service, or a person is asked."""
        nodes = self.block.nodes
        if self.node == nodes[0] and not self.block.over:
            self.block.over = not self._runs(CLUSTER_QUALIFICATION, {"nodes": nodes, "level": "demo"})
        self.watch.look()
        if not self.block.over or self._answers():
            return
        state = self._state()
        self.world.ledger.write("block", node=self.node, nodes=nodes, state=str(state))
        if state in SERVING:
            self._go(self._revalidate)
        elif state is State.QUALIFIED:
            self._go(self._ask)
        elif state in (State.QUARANTINE, State.TRIAGE):
            self._over()
        else:
            self._go(self._qualify)

    def _answers(self) -> bool:
        """Whether something is under way at the node; has it admitted where a person is asked."""
        for run in self.watch.asking:
            if run.startswith(f"{self.node}__"):
                self.world.client.hitl_answer(ADMISSION, run, "ask", ["Admit"], {REASON: "the campaign's person"})
        return self._under_way()

    def _under_way(self) -> bool:
        return any(run.startswith(f"{self.node}__") for run in self.watch.live)

    def _ask(self) -> None:
        """Have a person admit it, and answer."""
        self._answers()
        if self._runs(ADMISSION, {"node": self.node, "level": "demo"}):
            return
        state = self._state()
        if state in (State.PRODUCTION, State.REVALIDATION):
            self._go(self._revalidate)
        elif state in (State.QUALIFIED,):
            self._again()
        else:
            self._over()

    def _revalidate(self) -> None:
        if self._runs(NODE_REVALIDATION, {"node": self.node, "level": "demo", "stages": ["intake", "burn_in"]}):
            return
        if self._state() is not State.PRODUCTION or self.worn or self.dice.random() > WEARS:
            self._over()
            return
        gpu, self.worn = self.wears % GPUS_PER_NODE, True
        self.wears += 1
        self.world.ledger.wore(self.node, gpu)
        self.world.fleet.wear(self.node, gpu, self.dice)
        self._go(self._fail)

    def _fail(self) -> None:
        """A GPU failed in service: a sweep sees it, a repair resets it, tests prove that; or a person is asked."""
        state = self._state()
        self.watch.look()
        if state in SERVING or self._under_way():
            self.since = time.monotonic()
        elif state is State.QUALIFIED:
            self._go(self._ask)
        elif time.monotonic() - self.since > PATIENCE_S:
            self._look_into_it(state)

    def _look_into_it(self, state: State) -> None:
        """Nothing is under way: it is a person's turn, or the life comes to no end."""
        asked = any(each.node == self.node and each.turn is Turn.PERSON for each in store.attention.collect())
        self.world.ledger.write("looks", node=self.node, state=str(state), asked=asked)
        if state is State.REGISTERED:
            self._go(self._qualify)
        elif asked:
            self._over()
        else:
            self.since = time.monotonic()

    def _runs(self, dag: str, conf: dict[str, Any]) -> bool:
        """Whether the run of this step is under way; begins it."""
        if self.attempts and time.monotonic() - self.since < AGAIN_S:
            return True
        if not self.run[1]:
            # Mails name a run without its DAG, so that each run has a name of its own.
            reason = f"life {self.number} {dag.replace('_', ' ')} {self.attempts + 1}"
            self.run = (dag, run_id(self.node, reason))
            try:
                self.world.client.trigger(*self.run, {"reason": reason, **conf})
            except AlreadyTriggered:
                pass  # the answer to the first request was lost
            except TROUBLE:
                self.run = ("", "")
                raise
            self.watch.triggered(self.run[1])
            return True
        self.watch.look()
        return self.run[1] in self.watch.live

    def _again(self) -> None:
        self.run, self.attempts, self.since = ("", ""), self.attempts + 1, time.monotonic()
        if self.attempts >= ATTEMPTS:
            self.world.ledger.write("gave up", node=self.node, number=self.number, state=str(self._state()))
            self._go(None)


def begin_postponed(world: World) -> None:
    """Begin, as an operator who reads ``muster doctor``, what waits since a clock was ahead."""
    for late in world.client.postponed(datetime.datetime.now(datetime.UTC)):
        world.ledger.touch(late.run_id, f"{late.task_id} waited until {late.until}")
        world.client.retry(late)


def resume_again(world: World) -> None:
    """Return, as an administrator who looks again, nodes whose return a slurmctld that was killed had not saved."""
    returned = {(drain.node, drain.reason) for drain in world.ledger.drains if drain.until is not None}
    for node, shown in schedulers_show(world).items():
        if shown.drained and (node, shown.reason) in returned and not world.ledger.is_drained(node):
            world.ledger.write("resumed again", node=node)
            world.scheduler_of(node).resume(node)


def decide_restored(world: World) -> None:
    """Decide, as an operator who reads ``muster status`` and looks at the machine, about nodes that restored records
    do not open by themselves.
    """
    for place in store.schedulers.places():
        if not (place.held and place.difference and place.state is State.PRODUCTION):
            continue
        suspect = world.ledger.is_suspect(place.node)
        world.ledger.write("decides", node=place.node, suspect=suspect)
        if suspect:
            store.nodes.move(place.node, State.REGISTERED, PERSON, "looked at after the records were restored")
        else:
            changes.let_open(place.node, PERSON, "it is healthy", dry_run=False)


class Schedule:
    """Starts a DAG of the fleet every ``EVERY_S``."""

    def __init__(self, world: World, watch: Watch, dag: str) -> None:
        self.world, self.watch, self.dag = world, watch, dag
        self.last = time.monotonic()
        self.count = 0

    def step(self) -> None:
        """Start it if it is time, and the last one is over."""
        if time.monotonic() - self.last < EVERY_S[self.dag]:
            return
        self.watch.look()
        if self._run() in self.watch.live:
            return
        self.last, self.count = time.monotonic(), self.count + 1
        self.world.client.trigger(self.dag, self._run(), {})

    def _run(self) -> str:
        return f"{self.dag}__{self.count}"
