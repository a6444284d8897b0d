"""A node on the scheduler of docs/extending.md, whose list is a file: removed, it is a scheduler that is down."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from muster import store
from muster.admission import service
from muster.admission.backend import LIMIT_MINUTES
from muster.admission.entry import move
from muster.errors import BadScheduler, SchedulerDown
from muster.model.nodes import Lease
from muster.model.runs import RunKey
from muster.model.states import State
from tests.muster import copied, fleet

NODE, THERE = "gpu-0001", "r1n1"
DAG = "node_revalidation"


def placed(node: str = NODE, there: str = THERE) -> None:
    store.nodes.add(fleet.new_node(node))
    store.schedulers.assign(node, "alpha", there, "Ada", "rack 1")


def placed_and_qualified() -> None:
    copied.records(_placed_and_qualified)


def _placed_and_qualified() -> None:
    placed()
    fleet.qualify()


def in_production() -> None:
    placed_and_qualified()
    move(NODE, State.PRODUCTION, "Ada", "needed now")


def line(nodes: Path, there: str = THERE) -> str:
    return next(each for each in nodes.read_text().splitlines() if each.split(" ")[0] == there)


class Jobs:
    """Test jobs of the list: each runs from its begin to its end. ``ended``: in order."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        self.ended: list[str] = []
        self.down = False
        self.asked = 0
        self.longest = LIMIT_MINUTES

    def check(self, nodes: Collection[str], minutes: int) -> None:
        if minutes > self.longest:
            raise BadScheduler(f"no test may run for {minutes} minutes")

    def begin(self, node: str, job: str, minutes: int) -> None:
        self.check([node], minutes)
        self.running[job] = node
        assert list(self.running.values()).count(node) == 1

    def step(self, job: str) -> tuple[str, ...] | None:
        return ("step", job) if job in self.running else None

    def end(self, job: str) -> None:
        self.asked += 1
        if self.down:
            raise SchedulerDown("it does not answer")
        self.ended += [job] if self.running.pop(job, "") else []


def revalidate(run: str = "r1") -> Lease:
    lease = store.leases.acquire(NODE, RunKey(DAG, run))
    service.take_for_test(NODE, f"node_revalidation {run}", "revalidation", 3600.0)
    store.runs.begin(RunKey(DAG, run), NODE, "short", "idle")
    return lease
