"""The lives of the nodes: what an operator of the fleet does with each, step by step, whatever fails meanwhile."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable

import psycopg
import sqlalchemy.exc

from muster import store
from muster.admission import service
from muster.errors import AirflowRefused, AlreadyTriggered, MusterError
from muster.integration.airflow_api import REASON, RUN_OVER
from muster.integration.runid import run_id
from muster.model.dags import ADMISSION, HOUSEKEEPING, NODE_QUALIFICATION, NODE_REVALIDATION
from muster.model.states import State
from muster_demo.services import ServiceFailed
from muster_demo.slurm import SlurmFailed
from tests.chaos.evidence import slurm_shows
from tests.chaos.world import PERSON, World

FAULTY = 0.2
"""Share of lives in which the machine lacks a GPU."""
ATTEMPTS = 6
"""How often an operator tries one step of a life before giving up on it."""
HOUSEKEEPING_S = 25.0
TROUBLE = (
    MusterError,
    AirflowRefused,
    SlurmFailed,
    ServiceFailed,
    sqlalchemy.exc.SQLAlchemyError,
    psycopg.Error,
    subprocess.SubprocessError,
    OSError,
)
"""What an operator meets while a fault lasts, and tries again after."""


class Life:
    """One node's lives, one after the other. ``step`` never waits."""

    def __init__(self, world: World, node: str, dice: random.Random) -> None:
        self.world, self.node, self.dice = world, node, dice
        self.number = 0
        self.doing: Callable[[], None] | None = None
        self.run: tuple[str, str] = ("", "")
        self.attempts = 0
        self.since = time.monotonic()

    @property
    def resting(self) -> bool:
        """Whether it is between two lives."""
        return self.doing is None

    def step(self, *, begin: bool) -> None:
        """Go on with the life; ``begin``: or begin the next one."""
        if self.doing is None:
            if not begin:
                return
            self.number += 1
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
        if not slurm_shows(self.world.slurm)[self.node].drained:
            service.carry_out(self.node)
            return
        faulty = self.dice.random() < FAULTY
        self.world.fleet.rebuild(self.node, faulty=faulty)
        self.world.ledger.machine(self.node, faulty=faulty)
        self._go(self._qualify)

    def _qualify(self) -> None:
        if self._runs(NODE_QUALIFICATION, {"level": "demo"}):
            return
        state = self._state()
        if state in (State.QUARANTINE, State.TRIAGE):
            self._over()
        elif state is State.QUALIFIED:
            self._go(self._ask)
        else:
            self._again()

    def _ask(self) -> None:
        """Have a person admit it, and answer."""
        dag, run = self.run
        if run:
            waiting = {each["task_instance"]["dag_run_id"] for each in self.world.client.hitl_pending()}
            if run in waiting:
                self.world.client.hitl_answer(dag, run, "ask", ["Admit"], {REASON: "the campaign's person admits it"})
        if self._runs(ADMISSION, {"level": "demo"}):
            return
        state = self._state()
        if state in (State.PRODUCTION, State.REVALIDATION):
            self._go(self._revalidate)
        elif state in (State.QUALIFIED,):
            self._again()
        else:
            self._over()

    def _revalidate(self) -> None:
        if self._runs(NODE_REVALIDATION, {"level": "demo"}):
            return
        self._over()

    def _runs(self, dag: str, conf: dict[str, str]) -> bool:
        """Whether the run of this step is under way; begins it."""
        if not self.run[1]:
            # Mails name a run without its DAG, so that each run has a name of its own.
            reason = f"life {self.number} {dag.rpartition('_')[2]} {self.attempts + 1}"
            self.run = (dag, run_id(self.node, reason))
            try:
                self.world.client.trigger(*self.run, {"node": self.node, "reason": reason, **conf})
            except AlreadyTriggered:
                pass  # the answer to the first request was lost
            except TROUBLE:
                self.run = ("", "")
                raise
            return True
        return self.world.client.run_state(*self.run) not in (*RUN_OVER, None)

    def _again(self) -> None:
        self.run, self.attempts = ("", ""), self.attempts + 1
        if self.attempts >= ATTEMPTS:
            self.world.ledger.write("gave up", node=self.node, number=self.number, state=str(self._state()))
            self._go(None)


class Housekeeper:
    """Starts the housekeeping DAG far more often than its schedule does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last = time.monotonic()
        self.count = 0

    def step(self) -> None:
        """Start it if it is time, and the last one is over."""
        if time.monotonic() - self.last < HOUSEKEEPING_S:
            return
        if self.count and self.world.client.run_state(HOUSEKEEPING, self._run()) not in (*RUN_OVER, None):
            return
        self.last, self.count = time.monotonic(), self.count + 1
        self.world.client.trigger(HOUSEKEEPING, self._run(), {})

    def _run(self) -> str:
        return f"chaos__{self.count}"
