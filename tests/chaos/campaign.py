"""One leg of a campaign: lives and faults side by side, then the settling, then the observers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from muster.model.dags import HEALTH_SWEEP
from tests.chaos import evidence, faults, observers, second, world
from tests.chaos.faults import Kind, NotNow
from tests.chaos.lives import (
    EVERY_S,
    RETRIES_S,
    TROUBLE,
    Blocks,
    Life,
    Schedule,
    Watch,
    begin_postponed,
    decide_restored,
    resume_again,
)
from tests.chaos.schedulers import Scheduler
from tests.chaos.world import World

AT_ONCE = 8
"""Faults that last at the same time."""
DRAWS = 20
SETTLE_S = 300.0
"""How long a leg may settle at least; or as long as its faults lasted, since lives end at that pace."""
CALM_S = 15.0
LOOK_S = 5.0
SAMPLE_S = 2.0
STEP_S = 1.0
TURN_S = 0.3
JOIN_S = 30.0


@dataclasses.dataclass
class Lasting:
    """A fault that strikes now. ``until``: when it is lifted, by the monotonic clock."""

    kind: Kind
    strike: Iterator[str]
    until: float


class Leg:
    """``count`` faults within ``seconds``, drawn from ``dice``; of the kinds ``only``, or of all."""

    def __init__(
        self, here: World, dice: random.Random, count: int, seconds: float, only: Collection[str] = ()
    ) -> None:
        self.world, self.dice, self.count = here, dice, count
        self.kinds = faults.load(only)
        watch = Watch(here.database.url("airflow"))
        blocks = Blocks(possible=importlib.util.find_spec("torch") is not None)
        self.lives = [Life(here, watch, blocks, name, random.Random(dice.random())) for name in here.fleet.names]
        self.schedules = [Schedule(here, watch, dag) for dag in EVERY_S]
        self.lasting: list[Lasting] = []
        self.samples: list[evidence.Sample] = []
        self.began = time.monotonic()
        self.seconds = seconds
        gap = seconds / (count + 1)
        self.due = [self.began + gap * (number + dice.random()) for number in range(1, count + 1)]
        self._over = threading.Event()
        self._broken: list[Exception] = []

    def run(self) -> dict[str, observers.Count | None]:
        """Strike, settle and judge."""
        steps = [(functools.partial(self._sample, each), SAMPLE_S) for each in self.world.schedulers]
        steps += [(functools.partial(self._start, each), STEP_S) for each in self.schedules]
        steps += [
            (functools.partial(look, self.world), RETRIES_S)
            for look in (begin_postponed, decide_restored, resume_again)
        ]
        steps.append((second.Person(self.world, random.Random(self.dice.random())).step, second.EVERY_S))
        steps += [(functools.partial(self._live, life), STEP_S) for life in self.lives]
        # Daemons: an interrupted campaign does not wait for what its faults hold up.
        beside = [threading.Thread(target=self._repeat, args=each, daemon=True) for each in steps]
        for thread in beside:
            thread.start()
        try:
            self._strikes()
            self._settle()
        finally:
            self._over.set()
        for thread in beside:
            thread.join(JOIN_S)
        for life in self.lives:
            if not life.resting:
                self.world.ledger.stuck.append(
                    f"{life.node}: life {life.number}, {life.doing.__name__ if life.doing else ''}"
                )
        return observers.judge(evidence.gather(self.world, self.samples))

    def _repeat(self, work: Callable[[], None], every_s: float) -> None:
        """Do this until the leg is over. In a thread of its own: what a fault makes one wait for holds up no other."""
        try:
            while not self._over.wait(every_s):
                with contextlib.suppress(*TROUBLE):
                    work()
        except Exception as error:
            self._broken.append(error)

    def _striking(self) -> bool:
        return time.monotonic() < self.began + self.seconds

    def _live(self, life: Life) -> None:
        life.step(begin=self._striking())

    def _start(self, schedule: Schedule) -> None:
        # A sweep that reads nodes while the observers look would be what they call left on nodes.
        if schedule.dag != HEALTH_SWEEP or not all(life.resting for life in self.lives):
            schedule.step()

    def _sample(self, scheduler: Scheduler) -> None:
        self.samples += evidence.sample(self.world, scheduler)

    def _strikes(self) -> None:
        while self._striking() or self.lasting or self.world.todo:
            self._turn()
            if self._striking() and self.due and time.monotonic() > self.due[0] and len(self.lasting) < AT_ONCE:
                self._strike()

    def _turn(self) -> None:
        if self._broken:
            raise self._broken[0]
        self.world.keep()
        self._lift()
        time.sleep(TURN_S)

    def _strike(self) -> None:
        for _ in range(DRAWS):
            kind = self.dice.choice(self.kinds[self.dice.choice(list(self.kinds))])
            if kind.of != "nodes" and any(each.kind is kind for each in self.lasting):
                continue
            strike = iter(kind.strike(self.world, self.dice))
            try:
                victim = next(strike)
            except NotNow:
                continue
            except TROUBLE:
                return
            lasts = self.dice.uniform(*kind.seconds)
            self.lasting.append(Lasting(kind, strike, time.monotonic() + lasts))
            self.world.ledger.faults += 1
            self.world.ledger.write("fault", name=kind.name, victim=victim, seconds=round(lasts, 1))
            self.due.pop(0)
            return

    def _lift(self) -> None:
        for each in [each for each in self.lasting if time.monotonic() > each.until]:
            self.lasting.remove(each)
            next(each.strike, None)
            self.world.ledger.write("lifted", name=each.kind.name)
        for chain in list(self.world.todo):
            with contextlib.suppress(*TROUBLE):
                while chain:
                    chain[0]()
                    chain.pop(0)
                self.world.todo.remove(chain)

    def _settle(self) -> None:
        """Wait until nothing is under way and all is sent, for so long at most."""
        self.world.ledger.write("settling")
        deadline = time.monotonic() + max(SETTLE_S, self.seconds)
        looked, calm_since = 0.0, None
        while time.monotonic() < deadline:
            self._turn()
            if time.monotonic() - looked < LOOK_S:
                continue
            looked = time.monotonic()
            calm_since = (calm_since or looked) if self._calm() else None
            if calm_since is not None and looked - calm_since > CALM_S:
                return

    def _calm(self) -> bool:
        if not all(life.resting for life in self.lives):
            return False
        try:
            gathered = evidence.gather(self.world, self.samples)
            found = observers.judge(gathered)
        except TROUBLE:
            return False
        pending = (
            "leases_leaked",
            "processes_left_on_nodes",
            "nodes_left_drained",
            "mails_lost",
            "events_lost",
            "hung",
        )
        return not gathered.unsent and not any((each := found[name]) is None or each.found for name in pending)


def leg(
    folder: Path, nodes: int, seed: int, count: int, seconds: float, *, disks: bool, only: Collection[str] = ()
) -> dict[str, object]:
    """One leg in a new folder: its figures, ``found`` with what each counter counted, and ``examined``: of how many."""
    names = tuple(f"n{number}" for number in range(nodes))
    with world.running(folder, names, seed, disks=disks) as here:
        counts = Leg(here, random.Random(seed), count, seconds, only).run()
        found = {name: each and each.found for name, each in counts.items()}
        figures = {name: None if each is None else len(each) for name, each in found.items()}
        examined = {name: each and each.examined for name, each in counts.items()}
        lived = {"faults": here.ledger.faults, "lives": here.ledger.lives}
        return {**lived, **figures, "found": found, "examined": examined}
