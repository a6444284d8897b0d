"""A server that sends odd packets is a node that cannot be reached, before its host key is known and after."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
import struct
import time
from collections.abc import Callable
from typing import NoReturn

import paramiko
import pytest

from muster import store
from muster.errors import ControllerFault
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job.outcome import Kind
from muster.remote.job.waiting import Wait, Waiter
from tests.bench.fuzz import mutate
from tests.muster.remote.job.test_waiting import no_bmc
from tests.support.servers import hostile_ssh
from tests.support.servers.hostile_ssh import DISCONNECT, GREETING, LISTS, Sending, kexinit, packet

ODD = {
    "a name in the lists that is not text": packet(kexinit(b"\xff", *LISTS[1:])),
    "a reason that is not text": packet(DISCONNECT),
    "an empty packet": packet(b""),
    "a packet of padding": struct.pack(">IB", 12, 11) + bytes(11),
    "lists cut short": packet(kexinit(*LISTS[:1])[:-5]),
    "a list without an end": packet(b"\x14" + bytes(16) + b"\xff" * 4),
    "a packet of no size": bytes(32),
    "a greeting that is not text": b"",
}


def greeted(packets: bytes) -> bytes:
    return (GREETING if packets else b"SSH-2.0-\xff\r\n") + packets


def waiter(port: int, who: Callable[[], Credentials] = hostile_ssh.who) -> Waiter:
    """Of a job whose time is over."""

    async def credentials() -> Credentials:
        return who()

    over = time.time() - 3600
    return Waiter(Wait(hostile_ssh.address(port), "0" * 24, "/w", "b", over, 60.0, 0.1), credentials, no_bmc)


@pytest.fixture(autouse=True)
def _no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.clock, "now", lambda: datetime.datetime.now(datetime.UTC))


@pytest.mark.parametrize("packets", ODD.values(), ids=ODD)
def test_whatever_it_sends_first_it_cannot_be_reached(packets: bytes) -> None:
    with Sending(greeted(packets)) as server:
        with pytest.raises(ssh.Unreachable):
            ssh.scan_host_key("127.0.0.1", server.port, hostile_ssh.who(), timeout=2)
        with pytest.raises(ssh.Unreachable):
            ssh.connect(hostile_ssh.address(server.port), hostile_ssh.who(), timeout=2)
        assert asyncio.run(waiter(server.port).until_over()) is Kind.LOST, "and no trigger ends without an event"


@pytest.mark.parametrize("seed", range(20))
def test_nor_is_one_whose_first_packets_are_at_random(seed: int) -> None:
    rng = random.Random(seed)
    packets = packet(mutate.raw(rng, kexinit(*LISTS))) + packet(mutate.raw(rng, DISCONNECT))
    with Sending(greeted(packets)) as server:
        with pytest.raises(ssh.Unreachable):
            ssh.scan_host_key("127.0.0.1", server.port, hostile_ssh.who(), timeout=2)
        assert asyncio.run(waiter(server.port).until_over()) is Kind.LOST


def test_after_the_login_it_is_a_connection_that_broke() -> None:
    with (
        hostile_ssh.odd_after_login() as port,
        ssh.connect(hostile_ssh.address(port), hostile_ssh.who(), timeout=5) as client,
        pytest.raises(ssh.Unreachable),
    ):
        ssh.run(client, "true", timeout=10)


@pytest.mark.parametrize(
    "log_in",
    [
        lambda port: ssh.scan_host_key("127.0.0.1", port, hostile_ssh.who(), timeout=5),
        lambda port: ssh.connect(hostile_ssh.address(port), hostile_ssh.who(), timeout=5),
        lambda port: asyncio.run(waiter(port).until_over()),
    ],
    ids=["scan", "worker", "triggerer"],
)
def test_a_packet_fills_no_memory_before_the_key_is_known(log_in: Callable[[int], object]) -> None:
    with (
        Sending(GREETING + struct.pack(">IB", 0x2FFFFFFC, 4), bytes(64 * 1024)) as server,
        contextlib.suppress(ssh.Unreachable),
    ):
        log_in(server.port)
    assert server.sent < 4 * 2**20


@pytest.mark.parametrize("error", [ControllerFault("the key is away"), KeyError("conn"), OSError("the API is away")])
def test_a_login_that_cannot_be_read_is_no_lost_node(error: Exception) -> None:
    def unread() -> Credentials:
        raise error

    assert asyncio.run(waiter(1, unread).until_over()) is Kind.UNABLE


def test_what_ends_the_task_is_no_error_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow ends a task over its time by an exception that is no ``Exception``."""

    def ended(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(paramiko.SSHClient, "connect", ended)
    with pytest.raises(KeyboardInterrupt):
        ssh.connect(hostile_ssh.address(1), hostile_ssh.who())
