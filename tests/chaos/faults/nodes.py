"""Faults of nodes. None of them is the hardware's, but for a loss of power."""

from __future__ import annotations

import functools
import random
import subprocess
from collections.abc import Iterator

from tests.chaos import clocks
from tests.chaos.faults import NotNow, fault, misbehaving
from tests.chaos.link import FLAPPING, HANGING, OPEN, REFUSED, SLOW
from tests.chaos.nodes import fill
from tests.chaos.world import World

TAMPERING = {
    "truncated": 'truncate -s 200 "$1"',
    "doubled": 'cat "$1" "$1" >"$1.two" && mv "$1.two" "$1"',
    "replayed": '[ ! -f "$2" ] || cp "$2" "$1"',
    "oversized": 'truncate -s 200M "$1"',
    "emptied": ': >"$1"',
    "nested": 'yes "[" | head -n 500000 >"$1"',
}
"""What becomes of a result: a shell command, of which $1 is the result and $2 the last one of that stage."""
ANSWER = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n%s"
LIES = {
    "busy": ANSWER % (b"503 Service Unavailable", b""),
    "locked": ANSWER % (b"401 Unauthorized", b"{}"),
    "page": ANSWER % (b"200 OK", b"<html><body>Firmware update in progress</body></html>"),
    "cut": ANSWER % (b"200 OK", b'{"Chassis": {"@odata.id": "/redfish'),
    "loop": ANSWER % (b"200 OK", b'{"@odata.id": "/redfish/v1", "Members": [{"@odata.id": "/redfish/v1/Chassis"}],'
                      b' "Chassis": {"@odata.id": "/redfish/v1/Chassis"}, "Thermal": 7, "Status": []}'),
}  # fmt: skip
"""What a BMC answers to every request."""


def _behind(world: World, dice: random.Random, mode: str) -> Iterator[str]:
    name = _reachable(world, dice)
    world.fleet.links[name].set(mode)
    yield name
    world.fleet.links[name].set(OPEN)


def _reachable(world: World, dice: random.Random) -> str:
    names = [name for name, link in world.fleet.links.items() if link.mode == OPEN]
    if not names:
        raise NotNow
    return dice.choice(names)


@fault(5, 40)
def node_unreachable(world: World, dice: random.Random) -> Iterator[str]:
    yield from _behind(world, dice, REFUSED)


@fault(5, 40)
def node_hangs(world: World, dice: random.Random) -> Iterator[str]:
    yield from _behind(world, dice, HANGING)


@fault(10, 40)
def node_slow(world: World, dice: random.Random) -> Iterator[str]:
    yield from _behind(world, dice, SLOW)


@fault(10, 40)
def node_flapping(world: World, dice: random.Random) -> Iterator[str]:
    yield from _behind(world, dice, FLAPPING)


@fault(3, 20)
def node_rebooted(world: World, dice: random.Random) -> Iterator[str]:
    """Under load Muster must take it for the hardware's."""
    name = _reachable(world, dice)
    world.ledger.rebooted(name)
    world.fleet.reboot(name, dice)
    yield name
    world.fleet.links[name].set(OPEN)


@fault(5, 40)
def bmc_unreachable(world: World, dice: random.Random) -> Iterator[str]:
    yield from _bmc(world, dice, dice.choice((REFUSED, HANGING, SLOW, FLAPPING)))


@fault(5, 40)
def bmc_lying(world: World, dice: random.Random) -> Iterator[str]:
    yield from _bmc(world, dice, LIES[dice.choice(sorted(LIES))])


def _bmc(world: World, dice: random.Random, mode: str | bytes) -> Iterator[str]:
    name = dice.choice(world.fleet.names)
    yield from misbehaving(world.fleet.bmcs[name], mode, name)


@fault(5, 30)
def host_key_changed(world: World, dice: random.Random) -> Iterator[str]:
    """Another machine answers at its address."""
    name = _reachable(world, dice)
    link = world.fleet.links[name]
    link.set(FLAPPING, functools.partial(world.fleet.server_port, name, "impostor.port"))
    yield name
    link.set(OPEN, functools.partial(world.fleet.server_port, name))


@fault(5, 30)
def disk_full(world: World, dice: random.Random) -> Iterator[str]:
    if not world.fleet.disks:
        raise NotNow
    name = dice.choice(world.fleet.names)
    filler = fill(world.fleet.work(name))
    yield name
    filler.unlink(missing_ok=True)


@fault(5, 30)
def disk_read_only(world: World, dice: random.Random) -> Iterator[str]:
    if not world.fleet.disks:
        raise NotNow
    name = dice.choice(world.fleet.names)
    remount = ["mount", "-o", "remount", str(world.fleet.work(name))]
    # The kernel refuses while a file is open for writing there, as it does for an administrator.
    if subprocess.run([*remount, "-o", "ro"], capture_output=True, check=False).returncode != 0:
        raise NotNow
    yield name
    subprocess.run([*remount, "-o", "rw"], capture_output=True, check=True)


@fault(5, 60)
def clock_jumped(world: World, dice: random.Random) -> Iterator[str]:
    """What starts on the node sees a clock that is hours ahead or behind."""
    name, offset = dice.choice(world.fleet.names), clocks.offset(dice)
    clock = world.fleet.home(name) / "clock"
    if clock.exists() or not clocks.preloaded():
        raise NotNow
    clock.write_text(offset)
    yield f"{name} {offset}"
    clock.unlink()


@fault(5, 40)
def result_tampered(world: World, dice: random.Random) -> Iterator[str]:
    """Of the next job on the node."""
    name, how = dice.choice(world.fleet.names), dice.choice(sorted(TAMPERING))
    order = world.fleet.home(name) / "tamper"
    if order.exists():
        raise NotNow
    order.write_text(f"# {how}\n{TAMPERING[how]}\n")
    yield f"{name} {how}"
    order.unlink(missing_ok=True)


@fault(1, 8)
def users_job(world: World, dice: random.Random) -> Iterator[str]:
    """A user wants the node, whatever runs on it."""
    name, job = dice.choice(world.fleet.names), f"users-{dice.randrange(10**6)}"
    scheduler = world.scheduler_of(name)
    with world.lifted_by(lambda: scheduler.end(job)):
        scheduler.submit(name, job, dice.randint(1, 8))
        yield name
