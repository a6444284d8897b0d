"""Awaiting a job in the triggerer, over one connection, until it ends, the machine reboots, or its time is over.

A lost connection is no error: the job runs on, and the trigger comes back to it. All that a trigger knows travels in
its arguments, so that it can be taken up again by another triggerer after any restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncssh
from airflow.providers.ssh.triggers.ssh_remote_job import _CONNECTION_ERRORS, SSHRemoteJobTrigger
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TriggerEvent
from asgiref.sync import sync_to_async

from muster.remote import jobs, scripts, ssh
from muster.remote.hooks import NodeAddress, NodeSSHHookAsync
from muster.remote.watch import Watch

GONE_POLLS = 3
"""So many polls in a row must miss the process: its exit status is written a moment after it ends."""

CONTACT_SECONDS = 60.0
"""How often a node that answers is noted as reachable in the records."""

CLOSE_SECONDS = 3.0
"""How long a connection may take to close before it is aborted."""

BACKOFF_MAX_S = 60.0
LOG_BYTES = 16 * 1024


@dataclasses.dataclass(frozen=True)
class Poll:
    """What one poll found."""

    boot_id: str
    state: jobs.State
    exit_code: int | None
    log: str
    log_size: int


def _heed_cancellation() -> None:
    """End now if this task has been told to.

    ``asyncio.wait_for`` of Python 3.11, in asyncssh too, loses a cancellation that comes with the answer it waits for.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class MusterJobTrigger(SSHRemoteJobTrigger):
    """Polls one job. Fires once, with ``kind``: done, rebooted, vanished, overdue, lost or refused.

    ``deadline_at`` is the epoch second at which the node itself ends the job; ``grace_s`` later nobody waits any more.
    ``watch``: the BMC that is read meanwhile, see ``watch.Watch``. ``removal`` is the shell command that removes the
    job's container.
    """

    def __init__(
        self,
        *,
        ssh_conn_id: str,
        node: dict[str, Any],
        job_id: str,
        work: str,
        boot_id: str,
        deadline_at: float,
        grace_s: float,
        poll_interval: float,
        watch: dict[str, Any] | None = None,
        log_offset: int = 0,
        removal: str = "true",
        command_timeout: float = 30.0,
    ) -> None:
        where = jobs.paths(work, job_id)
        super().__init__(
            ssh_conn_id=ssh_conn_id,
            remote_host=str(node["host"]),
            job_id=job_id,
            job_dir=where.job_dir,
            log_file=where.log_file,
            exit_code_file=where.exit_code_file,
            remote_os="posix",
            poll_interval=poll_interval,  # type: ignore[arg-type]
            log_offset=log_offset,
            command_timeout=command_timeout,
        )
        self.node = NodeAddress(**node)
        self.work = work
        self.boot_id = boot_id
        self.deadline_at = deadline_at
        self.grace_s = grace_s
        self.watch = Watch(**watch) if watch else None
        self.removal = removal

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What another triggerer needs to take over; the log goes on where it was when the task was deferred."""
        return (
            "muster.remote.trigger.MusterJobTrigger",
            {
                "ssh_conn_id": self.ssh_conn_id,
                "node": dataclasses.asdict(self.node),
                "job_id": self.job_id,
                "work": self.work,
                "boot_id": self.boot_id,
                "deadline_at": self.deadline_at,
                "grace_s": self.grace_s,
                "poll_interval": self.poll_interval,
                "watch": dataclasses.asdict(self.watch) if self.watch else None,
                "log_offset": self.log_offset,
                "removal": self.removal,
                "command_timeout": self.command_timeout,
            },
        )

    def _get_hook(self) -> NodeSSHHookAsync:
        return NodeSSHHookAsync(self.node, self.ssh_conn_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is something to tell."""
        conn: asyncssh.SSHClientConnection | None = None
        failures = gone = 0
        touched = 0.0
        watched = time.monotonic()
        try:
            while True:
                try:
                    conn = conn or await self._connect()
                    poll = await self._poll(conn)
                except asyncssh.HostKeyNotVerifiable:
                    yield self._event("refused", "another host key answered than the one pinned at enrolment")
                    return
                except _CONNECTION_ERRORS as error:
                    await self._drop(conn)
                    conn = None
                    failures += 1
                    if self._overdue():
                        yield self._event(*self._given_up(error))
                        return
                    await self._back_off(failures, error)
                    continue
                _heed_cancellation()
                if failures:
                    self.log.info("%s answers again", self.node.name)
                failures = 0
                touched = await self._note_contact(touched)
                self._tell(poll)
                gone = gone + 1 if poll.state is jobs.State.GONE else 0
                if told := self._told(poll, gone):
                    yield self._event(*told, exit_code=poll.exit_code)
                    return
                watched = await self._read_bmc(watched)
                await asyncio.sleep(self.poll_interval)
        finally:
            await self._drop(conn)

    def _told(self, poll: Poll, gone: int) -> tuple[str, str] | None:
        """What a poll means: (kind, sentence), or None while the job is at work."""
        if poll.state is jobs.State.DONE:
            return "done", f"the job ended with exit status {poll.exit_code}"
        if self.boot_id and poll.boot_id and poll.boot_id != self.boot_id:
            return "rebooted", "the machine has booted since the job was started"
        if gone >= GONE_POLLS or poll.state is jobs.State.ABSENT:
            return "vanished", "the job's process is gone and left no exit status"
        if self._overdue():
            return "overdue", "the job is still at work after its deadline"
        return None

    def _overdue(self) -> bool:
        return time.time() > self.deadline_at + self.grace_s

    def _given_up(self, error: BaseException) -> tuple[str, str]:
        if isinstance(error, asyncssh.PermissionDenied):
            return "refused", "the node refused the login until the job's deadline was over"
        return "lost", "the node could not be reached until the job's deadline was over"

    async def _back_off(self, failures: int, error: BaseException) -> None:
        delay = min(self._reconnect_delay(min(failures, 6)), BACKOFF_MAX_S)
        delay = min(delay, max(1.0, self.deadline_at + self.grace_s - time.time()))
        why = ssh.clean(str(error)) or type(error).__name__
        self.log.warning("%s does not answer (%s); the job runs on, asking again in %.0f s", self.node.name, why, delay)
        await asyncio.sleep(delay)

    async def _drop(self, conn: asyncssh.SSHClientConnection | None) -> None:
        if conn is None:
            return
        conn.close()
        try:
            await asyncio.wait_for(conn.wait_closed(), CLOSE_SECONDS)
        except Exception:
            conn.abort()

    async def _poll(self, conn: asyncssh.SSHClientConnection) -> Poll:
        """One round trip. Raises one of the connection errors, also when the node answers nonsense."""
        command = ssh.shell(scripts.POLL, self.job_dir, str(self.log_offset), str(LOG_BYTES))
        head, _, log = (await self._capped(conn, command, LOG_BYTES + 1024)).partition("\n\n")
        found = jobs.fields(head)
        try:
            size = int(found["size"]) if found["size"].isascii() and found["size"].isdigit() else 0
            return Poll(found["boot"][:64], jobs.State(found["state"]), jobs.exit_status(found["exit"]), log, size)
        except (KeyError, ValueError):
            raise OSError(f"the node answered nonsense: {head[:80]!r}") from None

    async def _capped(self, conn: asyncssh.SSHClientConnection, command: str, limit: int) -> str:
        """Run a command and read no more than ``limit`` bytes of what it says: a node must not fill our memory."""

        out = bytearray()
        async with asyncio.timeout(self.command_timeout):
            process = await conn.create_process(command, encoding=None, stdin=asyncssh.DEVNULL)
            try:
                while len(out) < limit and (chunk := await process.stdout.read(limit - len(out))):
                    out += chunk
            finally:
                process.close()  # a server that is frozen never confirms it: nothing waits for that
        return ssh.clean(out.decode("utf-8", "replace"))

    def _tell(self, poll: Poll) -> None:
        """Pass what the job printed on to the task's log, from a whole line to a whole line."""
        available = min(poll.log_size - self.log_offset, LOG_BYTES)
        if available <= 0:
            return
        self.log_offset += available
        for line in poll.log.splitlines():
            if line.strip():
                self.log.info("[%s] %s", self.node.name, line)

    async def _note_contact(self, touched: float) -> float:
        """Write down, now and then, that the node answers; a node's neighbours are judged by it."""
        now = time.monotonic()
        if touched and now - touched < CONTACT_SECONDS:
            return touched
        from muster import records

        try:
            await asyncio.to_thread(records.touch_contact, self.node.name)
        except Exception as error:  # the job matters more than this note
            self.log.warning("the contact with %s could not be noted: %s", self.node.name, error)
        return now

    async def _read_bmc(self, watched: float) -> float:
        """Read the BMC if it is time again. Here, since a task that woke for it would give its place in a pool away."""
        now = time.monotonic()
        if self.watch is None or now - watched < self.watch.every_s:
            return watched
        try:
            if trouble := await self.watch.read():
                self.log.warning("%s", trouble)
        except Exception as error:  # the job matters more; before it and after it the BMC is read too
            self.log.warning("the BMC of %s could not be read: %s", self.node.name, error)
        return now

    def _event(self, kind: str, message: str, exit_code: int | None = None) -> TriggerEvent:
        return TriggerEvent(  # type: ignore[no-untyped-call]
            {
                "kind": kind,
                "message": message,
                "exit_code": exit_code,
                "job_id": self.job_id,
                "job_dir": self.job_dir,
                "log_file": self.log_file,
                "exit_code_file": self.exit_code_file,
                "remote_os": self.remote_os,
                "status": "success" if kind == "done" and exit_code == 0 else "failed",
                "done": True,
                "log_offset": self.log_offset,
            }
        )

    async def on_kill(self) -> None:
        """Stop the work on the node: somebody marked the task failed or succeeded, or cleared it.

        Airflow 3.3 also calls this in a triggerer that was slow, once its triggers have gone to another
        (apache/airflow pull request 73454). Then the task still waits, and the work goes on.
        """
        if await self._awaited():
            self.log.info("the job on %s goes on: another triggerer awaits it", self.node.name)
            return
        self.log.info("stopping the job on %s", self.node.name)
        conn = await self._connect()
        try:
            command = ssh.shell(scripts.STOP_ONE, self.job_dir, self.removal)
            answer = await self._capped(conn, command, 1024)
        finally:
            await self._drop(conn)
        stopped = "stopped" in answer
        self.log.log(20 if stopped else 40, "the job on %s %s", self.node.name, "stopped" if stopped else "still runs")

    async def _awaited(self) -> bool:
        """Whether the task still waits for this job, or nobody can say: what is left over ends with its run."""
        task: Any = self.task_instance
        if task is None:
            return False
        ask = sync_to_async(RuntimeTaskInstance.get_task_states)
        try:
            states = await ask(
                dag_id=task.dag_id, map_index=task.map_index, task_ids=[task.task_id], run_ids=[task.run_id]
            )
        except Exception as error:  # whatever it is, it is no reason to end hours of work
            self.log.warning("Airflow does not say what became of the task (%s)", error)
            return True
        return "deferred" in states.get(task.run_id, {}).values()
