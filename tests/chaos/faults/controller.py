"""Faults of the controller's processes."""

from __future__ import annotations

import collections
import random
import sys
import time
from collections.abc import Iterator

from muster import store
from tests.chaos import clocks, evidence, second
from tests.chaos.faults import NotNow, fault
from tests.chaos.ledger import Restore
from tests.chaos.nodes import fill
from tests.chaos.world import World
from tests.support import orphans
from tests.support.servers.celery_airflow import COMPONENTS, TRIGGERERS, WORKERS

SECOND_SCHEDULER = "scheduler-2"


def _victim(world: World, dice: random.Random, *names: str) -> str:
    alive = [name for name in names if name not in world.down and not world.supervisor.services[name].ended()]
    if not alive:
        raise NotNow
    return dice.choice(alive)


def _killed(world: World, dice: random.Random, *names: str) -> Iterator[str]:
    name = _victim(world, dice, *names)
    world.kill(name)
    yield name
    world.revive(name)


def _frozen(world: World, dice: random.Random, *names: str) -> Iterator[str]:
    name = _victim(world, dice, *names)
    world.down.add(name)
    world.stack.freeze(name)
    yield name
    world.down.discard(name)
    if not world.supervisor.services[name].ended():
        world.stack.thaw(name)


@fault(2, 20)
def scheduler_killed(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, dice, "scheduler")


@fault(2, 30)
def worker_killed(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, dice, *WORKERS)


@fault(0, 1)
def out_of_memory(world: World, dice: random.Random) -> Iterator[str]:
    """The kernel ends the largest process of a worker's tasks (its choice: Linux, mm/oom_kill.c, oom_badness)."""
    name = _victim(world, dice, *WORKERS)
    tasks = world.stack.task_processes(name)
    if not tasks:
        raise NotNow
    largest = max(tasks, key=lambda task: task.memory_info().rss)
    largest.kill()
    yield f"{name}: process {largest.pid}"


@fault(2, 30)
def triggerer_killed(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, dice, *TRIGGERERS)


@fault(2, 20)
def api_server_killed(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, dice, "api-server", "execution-api")


@fault(2, 20)
def dag_processor_killed(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, dice, "dag-processor")


@fault(5, 40)
def scheduler_frozen(world: World, dice: random.Random) -> Iterator[str]:
    yield from _frozen(world, dice, "scheduler")


@fault(5, 40)
def worker_frozen(world: World, dice: random.Random) -> Iterator[str]:
    yield from _frozen(world, dice, *WORKERS)


@fault(5, 40)
def triggerer_frozen(world: World, dice: random.Random) -> Iterator[str]:
    yield from _frozen(world, dice, *TRIGGERERS)


@fault(5, 20)
def api_server_frozen(world: World, dice: random.Random) -> Iterator[str]:
    yield from _frozen(world, dice, "api-server", "execution-api")


@fault(5, 30)
def clock_wrong(world: World, dice: random.Random) -> Iterator[str]:
    """One component starts with a clock that is hours ahead or behind; no other does."""
    if not clocks.preloaded():
        raise NotNow
    name, offset = _victim(world, dice, "scheduler", *WORKERS, *TRIGGERERS), clocks.offset(dice)
    right = world.supervisor.services[name]
    world.kill(name)
    world.supervisor.start(name, right.command, clocks.wrong(right.environment, offset))
    yield f"{name} {offset}"
    world.kill(name)
    world.supervisor.start(name, right.command, right.environment)
    world.down.discard(name)


@fault(20, 60)
def second_scheduler(world: World, dice: random.Random) -> Iterator[str]:
    if SECOND_SCHEDULER in world.supervisor.services or world.stopped:
        raise NotNow
    command = [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"]
    world.supervisor.start(SECOND_SCHEDULER, command, world.stack.environment)
    yield SECOND_SCHEDULER
    world.supervisor.stop([SECOND_SCHEDULER], patience_s=0)


@fault(3, 20)
def controller_disk_full(world: World, dice: random.Random) -> Iterator[str]:
    """No room for logs of tasks, nor for what Muster keeps outside its database."""
    if not world.fleet.disks:
        raise NotNow
    filler = fill(world.folder / "airflow")
    yield str(filler)
    filler.unlink(missing_ok=True)


@fault(60, 240)
def second_controller(world: World, dice: random.Random) -> Iterator[str]:
    """Another Airflow on the same records, which begins tests too; then a person ends it for good."""
    if world.second is not None or world.todo:  # a back-up may wait to be restored
        raise NotNow
    began = time.time()
    second.start(world)
    yield second.DATABASE

    def stop() -> None:
        if time.time() < began + second.READY_S and not second.has_begun(world):
            raise TimeoutError
        second.stop(world)

    with world.lifted_by(stop, lambda: second.give_up(world, began)):
        pass


@fault(60, 240)
def backup_restored(world: World, dice: random.Random) -> Iterator[str]:
    """All components stop, and start with the records as they were when this fault struck."""
    if world.todo:
        raise NotNow
    file, saved, mails = world.folder / f"backup-{time.time_ns()}", time.time(), evidence.mails(world.folder / "mails")
    known = evidence.known_to(world.database.url(world.records))
    store.backup.save(file)
    yield file.name

    def alone() -> None:
        others = world.second is not None or SECOND_SCHEDULER in world.supervisor.services
        if others or world.down.intersection(COMPONENTS):
            raise TimeoutError  # another fault has a component

    def stop() -> None:
        for name in COMPONENTS:
            world.kill(name)
        orphans.end(world.folder / "airflow")

    def restore() -> None:
        name, replaced = f"muster_{time.time_ns()}", world.records
        world.sql("postgres", f"CREATE DATABASE {name}")
        lost = evidence.known_to(world.database.url(replaced)) - known
        filed = collections.Counter(evidence.mails(world.folder / "mails"))
        world.use_records(name)
        try:
            store.backup.restore(file)
        except BaseException:
            world.use_records(replaced)
            raise
        filed.subtract(mails)
        world.ledger.restored(Restore(saved, time.time(), replaced, tuple(filed.elements()), lost))

    def start() -> None:
        for name in COMPONENTS:
            world.revive(name)

    with world.lifted_by(alone, stop, restore, start):
        pass
