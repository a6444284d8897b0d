"""Faults of the controller's processes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from tests.chaos import clocks
from tests.chaos.faults import NotNow, fault
from tests.chaos.nodes import fill
from tests.chaos.world import World
from tests.support.servers.celery_airflow import TRIGGERERS, WORKERS


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
    name = "scheduler-2"
    if name in world.supervisor.services:
        raise NotNow
    command = [sys.executable, "-m", "airflow", "scheduler", "--skip-serve-logs"]
    world.supervisor.start(name, command, world.stack.environment)
    yield name
    world.supervisor.stop([name], patience_s=0)


@fault(3, 20)
def controller_disk_full(world: World, dice: random.Random) -> Iterator[str]:
    """No room for logs of tasks, nor for what Muster keeps outside its database."""
    if not world.fleet.disks:
        raise NotNow
    filler = fill(world.folder / "airflow")
    yield str(filler)
    filler.unlink(missing_ok=True)
