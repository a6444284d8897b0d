"""Waits for many jobs at once, each over one connection, until it ends, the machine reboots, or its time is over.

A lost connection is no error: the job continues, and the waiter reconnects. ``Wait`` holds the whole state, so that
another process can take over after a restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import logging
import random
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncssh

from muster import store
from muster.errors import ControllerFault, DatabaseNotReady, first_line
from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.watch import BmcWatch
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials, own_fault
from muster.remote.connection.ssh import Address, NodeAddress
from muster.remote.job import jobs, scripts
from muster.remote.job.outcome import Kind
from muster.settings import settings
from muster_criteria.text import one_line

GONE_POLLS = 3
"""Consecutive polls without the process before it counts as gone: its exit status is written after it ends."""

CONTACT_SECONDS = 60.0
"""Interval (s) at which a responding node is recorded as reachable."""

SELDOM, SELDOM_S = 60, 30.0
"""A job is looked at less often the longer it runs: its end is noticed within the 60th part of that, at most 30 s."""

CLOSE_SECONDS = 3.0
"""Time (s) after which a connection that does not close is aborted."""

BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
LOG_BYTES = 16 * 1024
LOG_TOTAL_BYTES = 4 * 1024**2
"""Output of one job that is logged, at most ``LOG_BYTES`` a poll; more than that is no message for a person."""

OPEN_FILES = 65_536
"""Each job that is awaited holds a connection, and logging in takes some more files for a moment."""


@dataclasses.dataclass(frozen=True)
class Wait:
    """The parameters of waiting for a job. JSON by ``to_json``; holds no secrets.

    ``deadline_at``: the epoch second at which the node itself ends the job; the waiting ends ``grace_s`` later.
    """

    node: NodeAddress
    job_key: str
    work: str
    boot_id: str
    deadline_at: float
    grace_s: float
    poll_s: float
    command_s: float = 30.0
    watch: BmcWatch | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain values, for another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Wait:
        """Returns the ``Wait`` of a ``to_json`` value."""
        watch = values.get("watch")
        nested = {"node": NodeAddress(**values["node"]), "watch": BmcWatch(**watch) if watch else None}
        return cls(**{**values, **nested})


@dataclasses.dataclass(frozen=True)
class Poll:
    """The result of one poll."""

    boot_id: str
    state: jobs.State
    log: str
    log_size: int


@functools.cache
def make_room() -> None:
    """Raise this process's limit of open files to ``OPEN_FILES``, or to the most that it may have: 1,024 is common."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def connect(node: Address, who: Credentials) -> asyncssh.SSHClientConnection:
    """Log in to a node that must have its pinned host key. No compression; nothing is read from ``~/.ssh/config``.

    It may take as long as a worker's login, with one step for the network connection: more for each node of a large
    outage would outlast the sweep. Raises any exception, as a node's invalid packet does; among them
    asyncssh.HostKeyNotVerifiable, ssh.LoginRefused and ControllerFault.
    """
    # Parsed here as in workers: the library's error for a bad key file does not tell it from a bad connection.
    await asyncio.to_thread(who.key)
    limit_s = ssh.CONNECT_STEPS * settings().ssh_timeout_s
    options: dict[str, Any] = {
        "known_hosts": ([asyncssh.import_public_key(node.host_key)], [], []),
        "config": None,
        "preferred_auth": "publickey",
        "compression_algs": ["none"],
        "keepalive_interval": 30,
        "connect_timeout": limit_s,
        "login_timeout": limit_s,
    }
    if user := node.user or who.username:
        options["username"] = user
    if who.key_file:
        options["client_keys"] = [who.key_file]
    if who.private_key:
        options["client_keys"] = [asyncssh.import_private_key(who.private_key, who.passphrase)]
    if who.passphrase:
        options["passphrase"] = who.passphrase
    if proxy := who.proxy_to(node.host, node.port):
        options["proxy_command"] = proxy
    reached = asyncio.timeout(None if proxy else settings().ssh_timeout_s)  # asyncssh's own limits the login too
    client = _Client(reached)
    try:
        async with reached:
            return await asyncssh.connect(node.host, node.port, client_factory=lambda: client, **options)
    except asyncssh.DisconnectError as error:
        if client.at_login:
            raise ssh.refused(node, who, client.said) from error
        raise


class _Client(asyncssh.SSHClient):
    """One login: how far it came, and what the node showed last. ``reached`` limits it until the network connects."""

    def __init__(self, reached: asyncio.Timeout) -> None:
        self.said = ""
        self._reached = reached
        self._connection: asyncssh.SSHClientConnection | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self._connection = conn
        self._reached.reschedule(None)

    def auth_banner_received(self, msg: str, lang: str) -> None:
        self.said = msg

    @property
    def at_login(self) -> bool:
        """Whether keys were exchanged. sshd closes the connection of a user whom PAM refuses, as after a reboot."""
        return self._connection is not None and self._connection.get_extra_info("send_cipher") is not None


class Waiter:
    """Waits for one job, or stops it.

    ``credentials`` and ``bmc_login`` return the SSH login and a BMC's login when they are needed; ``log`` receives the
    job's output and connection errors.
    """

    def __init__(
        self,
        wait: Wait,
        credentials: Callable[[], Awaitable[Credentials]],
        bmc_login: Callable[[Bmc], Awaitable[Login]],
        log: Any = None,
    ) -> None:
        self.wait = wait
        self.log = log or logging.getLogger(__name__)
        self._log_offset = 0
        self._over_at = float("inf")
        self._credentials = credentials
        self._bmc_login = bmc_login

    async def until_over(self) -> Kind:
        """Poll until the job is over or its time is; returns how it ended."""
        conn: asyncssh.SSHClientConnection | None = None
        failures = gone = 0
        touched = 0.0
        began = watched = time.monotonic()
        name = self.wait.node.name
        self._over_at = await self._deadline()
        try:
            while True:
                try:
                    conn = conn or await self._connect()
                    poll = await self._poll(conn)
                except asyncssh.HostKeyNotVerifiable:
                    self.log.error("%s", ssh.wrong_host_key(self.wait.node))
                    return Kind.REFUSED
                except Exception as error:  # whatever a node causes: without an event, nothing would wait for the job
                    await _close(conn)
                    conn = None
                    failures += 1
                    if self._overdue():
                        return _given_up(error)
                    await self._back_off(failures, error)
                    continue
                _raise_if_cancelled()
                if failures:
                    self.log.info("%s responds again", name)
                failures = 0
                touched = await self._record_contact(touched)
                self._log_output(poll)
                gone = gone + 1 if poll.state is jobs.State.GONE else 0
                if over := self._over(poll, gone):
                    return over
                watched = await self._read_bmc(watched)
                # Soon where more is to be read: the exit status of a process that is gone, or output.
                soon = gone or self._log_offset < min(poll.log_size, LOG_TOTAL_BYTES)
                seldom_s = 0.0 if soon else min((time.monotonic() - began) / SELDOM, SELDOM_S)
                await asyncio.sleep(max(self.wait.poll_s, seldom_s))
        finally:
            await _close(conn)

    async def stop(self) -> bool:
        """Stop the job and its processes. Returns whether none of them runs now. Raises as ``connect``."""
        conn = await self._connect()
        try:
            folder = jobs.paths(self.wait.work, self.wait.job_key).folder
            answer = await self._run(conn, ssh.shell(scripts.STOP_ONE, folder), 1024)
        finally:
            await _close(conn)
        return "stopped" in answer

    async def _connect(self) -> asyncssh.SSHClientConnection:
        try:
            who = await self._credentials()
        except Exception as error:
            fault = own_fault(error) or ControllerFault(f"the SSH login cannot be read: {first_line(error)}")
            raise fault from error
        return await connect(self.wait.node, who)

    def _over(self, poll: Poll, gone: int) -> Kind | None:
        """Returns how the waiting ends after this poll; None while the job runs."""
        booted = self.wait.boot_id and poll.boot_id and poll.boot_id != self.wait.boot_id
        if poll.state is jobs.State.DONE:
            return Kind.DONE
        if booted:
            return Kind.REBOOTED
        if gone >= GONE_POLLS or poll.state is jobs.State.ABSENT:
            return Kind.VANISHED
        return Kind.OVERDUE if self._overdue() else None

    async def _deadline(self) -> float:
        """When the waiting ends, by the monotonic clock. The worker that started the job used the clock of the records:
        this machine's may be hours off.
        """
        try:
            now = await asyncio.to_thread(store.clock.now)
        except DatabaseNotReady:
            now = datetime.datetime.now(datetime.UTC)
        return time.monotonic() + self.wait.deadline_at + self.wait.grace_s - now.timestamp()

    def _overdue(self) -> bool:
        return time.monotonic() > self._over_at

    async def _back_off(self, failures: int, error: BaseException) -> None:
        delay = min(BACKOFF_FIRST_S * 2 ** min(failures, 6), BACKOFF_MAX_S) * random.uniform(0.5, 1.0)
        delay = min(delay, max(1.0, self._over_at - time.monotonic()))
        fault = own_fault(error)
        why = one_line(str(fault or error)) or type(error).__name__
        refused = "it refuses the login" if isinstance(error, ssh.LoginRefused) else "it does not respond"
        what = "a fault of the controller" if fault else refused
        name = self.wait.node.name
        self.log.warning("%s: %s (%s); the job goes on; next attempt in %.0f s", name, what, why, delay)
        await asyncio.sleep(delay)

    async def _poll(self, conn: asyncssh.SSHClientConnection) -> Poll:
        """Polls in one round trip. Raises as ``connect``, also for an invalid response."""
        folder = jobs.paths(self.wait.work, self.wait.job_key).folder
        wanted = min(LOG_BYTES, LOG_TOTAL_BYTES - self._log_offset)
        command = ssh.shell(scripts.POLL, folder, str(self._log_offset), str(wanted))
        head, _, log = (await self._run(conn, command, LOG_BYTES + 1024)).partition("\n\n")
        found = jobs.fields(head)
        try:
            size = int(found["size"]) if found["size"].isascii() and found["size"].isdigit() else 0
            return Poll(found["boot"][:64], jobs.State(found["state"]), log, size)
        except (KeyError, ValueError):
            raise OSError(f"the node's reply cannot be read: {head[:80]!r}") from None

    async def _run(self, conn: asyncssh.SSHClientConnection, command: str, limit: int) -> str:
        """Run a command and read at most ``limit`` bytes of its output, cleaned."""
        out = bytearray()
        async with asyncio.timeout(self.wait.command_s):
            process = await conn.create_process(command, encoding=None, stdin=asyncssh.DEVNULL)
            try:
                while len(out) < limit and (chunk := await process.stdout.read(limit - len(out))):
                    out += chunk
            finally:
                process.close()  # without waiting: a frozen server never confirms it
        return ssh.clean(out.decode("utf-8", "replace"))

    def _log_output(self, poll: Poll) -> None:
        """Log the job's output by whole lines, until ``LOG_TOTAL_BYTES`` of it are logged."""
        available = min(poll.log_size - self._log_offset, LOG_BYTES, LOG_TOTAL_BYTES - self._log_offset)
        if available <= 0:
            return
        self._log_offset += available
        for line in poll.log[:available].splitlines():
            if line.strip():
                self.log.info("[%s] %s", self.wait.node.name, line)
        if self._log_offset == LOG_TOTAL_BYTES:
            where = jobs.paths(self.wait.work, self.wait.job_key).log
            self.log.warning("further output of the job is in %s on %s only", where, self.wait.node.name)

    async def _record_contact(self, touched: float) -> float:
        """Record every ``CONTACT_SECONDS`` that the node responds, which evidence about its neighbours uses."""
        now = time.monotonic()
        if touched and now - touched < CONTACT_SECONDS:
            return touched
        try:
            await asyncio.to_thread(store.nodes.touch_contact, self.wait.node.name)
        except Exception as error:  # the job matters more
            self.log.warning("the contact with %s could not be recorded: %s", self.wait.node.name, error)
        return now

    async def _read_bmc(self, watched: float) -> float:
        """Read the BMC if it is due. Done here because a task that resumed for it would lose its pool slot."""
        watch, now = self.wait.watch, time.monotonic()
        if watch is None or now - watched < watch.every_s:
            return watched
        try:
            if trouble := await watch.read(self._bmc_login):
                self.log.warning("%s", trouble)
        except Exception as error:  # the job matters more; before it and after it the BMC is read too
            self.log.warning("the BMC of %s could not be read: %s", self.wait.node.name, error)
        return now


def _given_up(error: BaseException) -> Kind:
    if isinstance(error, ssh.LoginRefused):
        return Kind.REFUSED
    return Kind.UNABLE if own_fault(error) else Kind.LOST


def _raise_if_cancelled() -> None:
    """End now if this task was cancelled.

    ``asyncio.wait_for`` of Python 3.11, also used in asyncssh, loses a cancellation that arrives with the response.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(conn: asyncssh.SSHClientConnection | None) -> None:
    if conn is None:
        return
    conn.close()
    try:
        await asyncio.wait_for(conn.wait_closed(), CLOSE_SECONDS)
    except Exception:
        conn.abort()
