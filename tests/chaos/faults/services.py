"""Faults of the services that the controller needs: databases, broker, schedulers of the clusters, mail, audit."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence

import psutil

from muster_demo.services import Service
from tests.chaos.faults import NotNow, fault, misbehaving
from tests.chaos.link import HANGING, REFUSED, SLOW
from tests.chaos.schedulers import OnKubernetes
from tests.chaos.world import World
from tests.support.servers.kubernetes_server import API_SERVER

BUSY = b"421 4.3.2 Service not available, closing transmission channel\r\n"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@fault(0, 1)
def postgresql_restarted(world: World, dice: random.Random) -> Iterator[str]:
    """As after a crash: open transactions are lost."""
    data = str(world.database.folder / "data")
    world.database.call(
        "pg_ctl", "-D", data, "-w", "-m", "immediate", "-l", str(world.database.folder / "log"), "restart"
    )
    yield "postgresql"


@fault(3, 20)
def postgresql_read_only(world: World, dice: random.Random) -> Iterator[str]:
    reset, reload = "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"
    with world.lifted_by(lambda: world.sql("postgres", reset), lambda: world.sql("postgres", reload)):
        world.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on")
        world.sql("postgres", reload)
        yield "both databases"


@fault(3, 20)
def postgresql_refusing(world: World, dice: random.Random) -> Iterator[str]:
    name = dice.choice((world.records, "airflow"))
    with world.lifted_by(lambda: world.sql("postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")):
        world.sql("postgres", f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        world.sql("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        yield name


@fault(0, 1)
def postgresql_frozen(world: World, dice: random.Random) -> Iterator[str]:
    """As on a disk that hangs: connections stay open, and no statement ends."""
    server = psutil.Process(world.database.pid)
    frozen = [server, *server.children(recursive=True)]
    # By a timer: what lifts faults may itself wait for the database.
    threading.Timer(dice.uniform(3, 15), _resume, (frozen,)).start()
    for process in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    yield "postgresql"


def _resume(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _service(world: World, name: str) -> Service:
    """A service that no fault holds down. Raises NotNow."""
    if name in world.down or name not in world.supervisor.services:
        raise NotNow
    return world.supervisor.services[name]


def _killed(world: World, name: str) -> Iterator[str]:
    _service(world, name)
    world.kill(name)
    yield name
    world.revive(name)


def _frozen(world: World, name: str) -> Iterator[str]:
    daemon = psutil.Process(_service(world, name).pid)
    daemon.suspend()
    yield name
    _resume([daemon])


@fault(1, 10)
def redis_restarted(world: World, dice: random.Random) -> Iterator[str]:
    """It keeps nothing on its disk: what was queued is lost."""
    yield from _killed(world, "redis")


@fault(5, 40)
def slurmctld_down(world: World, dice: random.Random) -> Iterator[str]:
    yield from _killed(world, "slurm-slurmctld")


@fault(5, 20)
def slurmctld_frozen(world: World, dice: random.Random) -> Iterator[str]:
    """Its port takes connections, and no command has an answer."""
    yield from _frozen(world, "slurm-slurmctld")


@fault(5, 40)
def kubernetes_killed(world: World, dice: random.Random) -> Iterator[str]:
    """Its API server, whose store is another process's."""
    yield from _killed(world, API_SERVER)


@fault(5, 20)
def kubernetes_frozen(world: World, dice: random.Random) -> Iterator[str]:
    yield from _frozen(world, API_SERVER)


@fault(5, 40)
def kubernetes_refusing(world: World, dice: random.Random) -> Iterator[str]:
    """As an API server with too much to do, or without its store."""
    links = [each.link for each in world.schedulers if isinstance(each, OnKubernetes)]
    if not links:
        raise NotNow
    yield from misbehaving(links[0], dice.choice((TOO_MANY, FAILED)), "kubernetes")


@fault(5, 25)
def slurmd_killed(world: World, dice: random.Random) -> Iterator[str]:
    """The daemon of one node, for less than SlurmdTimeout: after that Slurm keeps a drained node down for a person."""
    yield from _killed(world, f"slurm-{dice.choice(world.slurm.names)}")


@fault(10, 60)
def smtp_down(world: World, dice: random.Random) -> Iterator[str]:
    yield from misbehaving(world.smtp, REFUSED, "smtp")


@fault(10, 40)
def smtp_hangs(world: World, dice: random.Random) -> Iterator[str]:
    yield from misbehaving(world.smtp, HANGING, "smtp")


@fault(10, 60)
def smtp_busy(world: World, dice: random.Random) -> Iterator[str]:
    yield from misbehaving(world.smtp, BUSY, "smtp")


@fault(10, 60)
def audit_receiver_down(world: World, dice: random.Random) -> Iterator[str]:
    yield from misbehaving(world.audit, dice.choice((REFUSED, UNAVAILABLE)), "audit receiver")


@fault(10, 60)
def audit_receiver_slow(world: World, dice: random.Random) -> Iterator[str]:
    yield from misbehaving(world.audit, dice.choice((HANGING, SLOW)), "audit receiver")
