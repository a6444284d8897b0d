"""Faults of the services that the controller needs: databases, broker, scheduler of the cluster, mail, audit."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence

import psutil

from tests.chaos.faults import NotNow, fault, misbehaving
from tests.chaos.link import HANGING, REFUSED, SLOW
from tests.chaos.world import World

DATABASES = ("muster", "airflow")
BUSY = b"421 4.3.2 Service not available, closing transmission channel\r\n"
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
    name = dice.choice(DATABASES)
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


@fault(1, 10)
def redis_restarted(world: World, dice: random.Random) -> Iterator[str]:
    """It keeps nothing on its disk: what was queued is lost."""
    if "redis" in world.down:
        raise NotNow
    world.kill("redis")
    yield "redis"
    world.revive("redis")


@fault(5, 40)
def slurmctld_down(world: World, dice: random.Random) -> Iterator[str]:
    if "slurm-slurmctld" in world.down:
        raise NotNow
    world.kill("slurm-slurmctld")
    yield "slurmctld"
    world.revive("slurm-slurmctld")


@fault(5, 20)
def slurmctld_frozen(world: World, dice: random.Random) -> Iterator[str]:
    """Its port takes connections, and no command has an answer."""
    if "slurm-slurmctld" in world.down:
        raise NotNow
    daemon = psutil.Process(world.supervisor.services["slurm-slurmctld"].pid)
    daemon.suspend()
    yield "slurmctld"
    _resume([daemon])


@fault(5, 25)
def slurmd_killed(world: World, dice: random.Random) -> Iterator[str]:
    """The daemon of one node, for less than SlurmdTimeout: after that Slurm keeps a drained node down for a person."""
    name = f"slurm-{dice.choice(world.fleet.names)}"
    if name in world.down:
        raise NotNow
    world.kill(name)
    yield name
    world.revive(name)


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
