"""Reads many nodes at once, each over one SSH connection and one command: the sweep's round trip.

The node side runs on the host's Python, without a container, since it needs the standard library alone. A node that
does not have it yet gets it over the same connection, once for each version. One odd node stops no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncssh

from muster.errors import MusterError
from muster.model.health import Cursor
from muster.model.nodes import Node
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials, own_fault
from muster.remote.job import launch, scripts, waiting
from muster.remote.job.zipapp import AgentFile
from muster_criteria.text import one_line

ABSENT = 44
ANSWER_MAX = 1024 * 1024

RUN = f"""
{scripts.WORK}
a=$w/agents/$2.pyz p=$3 boot=$4 since=$5
[ -f "$a" ] && sum=$(sha256sum "$a") && [ "${{sum%% *}}" = "$2" ] || exit {ABSENT}
shift 5
export MUSTER_WORK="$w"
exec env "$@" "$p" "$a" sweep "--boot=$boot" "--since=$since"
"""
"""$1 work folder, $2 the agent's sha256, $3 the Python, $4 boot id and $5 time of the cursor, then NAME=VALUE words."""

SEND = f"""
{scripts.WORK}
a=$w/agents/$2.pyz
umask 077; t="$a.$$.part"; cat >"$t" && chmod 500 "$t" && mv -f -- "$t" "$a"
"""
"""$1 work folder, $2 the agent's sha256; the agent is standard input."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a node answered, or why there is no answer. ``ours``: the controller's fault, so nothing is known of it.
    ``unreadable``: it accepted the login, but its node side failed, or its stored launch settings cannot be used.

    ``arrived``: when it came, by ``time.monotonic`` (s): answers wait until they are recorded together.
    """

    node: Node
    raw: bytes = b""
    trouble: str = ""
    ours: bool = False
    unreadable: bool = False
    arrived: float = dataclasses.field(default_factory=time.monotonic)


class BadAnswer(MusterError):
    """The node accepted the login, but its node side failed; the message says how."""


async def read_all(
    nodes: Sequence[tuple[Node, Cursor]],
    who: Credentials,
    agent: AgentFile,
    *,
    parallel: int,
    limit_s: float,
    pass_s: float = math.inf,
) -> AsyncIterator[Answer]:
    """Yields an answer for each node, as they come, until ``pass_s`` are over; then no other is begun. ``parallel`` at
    once, each within ``limit_s``.
    """
    queue, until = iter(nodes), time.monotonic() + pass_s
    data = await asyncio.to_thread(Path(agent.path).read_bytes)
    running: set[asyncio.Task[Answer]] = set()
    try:
        while True:
            while len(running) < parallel and time.monotonic() < until and (each := next(queue, None)) is not None:
                running.add(asyncio.create_task(_read(*each, who, agent.sha256, data, limit_s)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()


async def _read(node: Node, cursor: Cursor, who: Credentials, sha256: str, agent: bytes, limit_s: float) -> Answer:
    try:
        async with asyncio.timeout(limit_s):
            return Answer(node, await _read_twice(node, cursor, who, sha256, agent))
    except TimeoutError:
        return Answer(node, trouble=f"it did not answer within {limit_s:g} s")
    except asyncssh.HostKeyNotVerifiable:
        return Answer(node, trouble=ssh.wrong_host_key(node))
    except (BadAnswer, launch.BadLaunch) as error:
        return Answer(node, trouble=str(error), unreadable=True)
    except Exception as error:  # one odd node stops no other
        if fault := own_fault(error):
            return Answer(node, trouble=str(fault), ours=True)
        return Answer(node, trouble=one_line(str(error))[:600] or type(error).__name__)


async def _read_twice(node: Node, cursor: Cursor, who: Credentials, sha256: str, agent: bytes) -> bytes:
    """Retry if the connection broke: an sshd, such as a bastion's, drops random logins when many come (MaxStartups)."""
    try:
        return await _round_trip(node, cursor, who, sha256, agent)
    except (OSError, asyncssh.Error) as error:
        if isinstance(error, (TimeoutError, asyncssh.HostKeyNotVerifiable)) or own_fault(error):
            raise
    await asyncio.sleep(ssh.RETRY_SECONDS * random.uniform(0.5, 1.5))
    return await _round_trip(node, cursor, who, sha256, agent)


async def _round_trip(node: Node, cursor: Cursor, who: Credentials, sha256: str, agent: bytes) -> bytes:
    connection = await waiting.connect(node, who)
    try:
        line = command(node, cursor, sha256)
        done = await _run(connection, line)
        if done.rc == ABSENT:
            sent = await _run(connection, ssh.shell(SEND, node.work_dir, sha256), agent)
            if sent.rc != 0:
                raise BadAnswer(f"the node side cannot be written there: {sent.complaint}")
            done = await _run(connection, line)
        if done.rc != 0:
            raise BadAnswer(f"the node side ended with status {done.rc}: {done.complaint}")
        return done.out
    finally:
        connection.close()  # without waiting: a frozen server never confirms it


def command(node: Node, cursor: Cursor, sha256: str) -> str:
    """Returns the command line that runs the sweep on a node. Raises BadLaunch."""
    how = launch.parse_launch(node.launch)
    python = launch.host_python(how)
    words = [f"{name}={value}" for name, value in sorted(how.env.items())]
    return ssh.shell(RUN, node.work_dir, sha256, python, cursor.boot_id, f"{cursor.kernel_s:.6f}", *words)


async def _run(connection: asyncssh.SSHClientConnection, line: str, stdin: bytes = b"") -> ssh.Completed:
    process = await connection.create_process(line, encoding=None)
    try:
        if stdin:
            process.stdin.write(stdin)
        process.stdin.write_eof()
        out = bytearray()
        while len(out) <= ANSWER_MAX and (chunk := await process.stdout.read(64 * 1024)):
            out += chunk
        if len(out) > ANSWER_MAX:
            raise BadAnswer(f"its answer is longer than {ANSWER_MAX} bytes")
        err = await process.stderr.read(4096)
        await process.wait_closed()
        return ssh.Completed(-1 if process.exit_status is None else process.exit_status, bytes(out), err)
    finally:
        process.close()
