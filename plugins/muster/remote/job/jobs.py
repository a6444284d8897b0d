"""The steps of a job on a node, over a connected client: look, send, start, collect, stop, remove.

A job is named by the attempt it belongs to, so a retry finds its folder and does not start it twice.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import logging
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko

from muster.remote.connection import ssh
from muster.remote.job import launch as launching
from muster.remote.job import scripts
from muster_node.agent.jobdir import safe_name
from muster_node.contract import RESULT_BYTES_MAX, TELEMETRY_BYTES_MAX, Plan

log = logging.getLogger(__name__)

LOG_TAIL_MAX = 2000
NO_JOB = "0" * 24
"""Names no job, to look only at the folders and the agent."""
_KEY = re.compile(rf"{scripts.JOB}\Z")
_PATH = re.compile(r"/[^\x00-\x1f\x7f]*\Z")


class State(enum.StrEnum):
    """The state of a job on its node."""

    ABSENT = "absent"
    RUNNING = "running"
    DONE = "done"
    GONE = "gone"  # its process ended without an exit status
    REBOOTED = "rebooted"  # the machine booted since it was started


@dataclasses.dataclass(frozen=True)
class Look:
    """The state of a node. ``agent``: "ok", "absent" or "bad" (a file with another hash). ``orderly``: since the job
    began it has booted, each time after an orderly shutdown, none of them for heat.
    """

    work: str
    boot_id: str
    agent: str
    state: State
    exit_code: int | None
    orderly: bool = False


@dataclasses.dataclass(frozen=True)
class Collected:
    """A job's output: the raw result, the telemetry that it names, and a note for each omission."""

    result: bytes | None
    telemetry: bytes | None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Paths:
    """The paths of a job's files on its node: plan and result, JSON; telemetry, gzipped JSON lines; its output."""

    folder: str
    plan: str
    result: str
    telemetry: str
    log: str


def paths(work: str, key: str) -> Paths:
    """Returns the job's paths. Raises RemoteError for a work folder or key that could lead elsewhere."""
    if not _KEY.match(key):
        raise ssh.RemoteError(f"{key[:40]!r} is not a job's key")
    if not _PATH.match(work) or ".." in work.split("/"):
        raise ssh.RemoteError(f"the node's work folder {ssh.clean(work)[:80]!r} is not an absolute path; set another")
    folder = posixpath.join(work, "jobs", key)
    return Paths(
        folder,
        plan=posixpath.join(folder, "plan.json"),
        result=posixpath.join(folder, "result.json"),
        telemetry=posixpath.join(folder, "telemetry.jsonl.gz"),
        log=posixpath.join(folder, "stdout.log"),
    )


def agent_path(work: str, sha256: str) -> str:
    """Returns the path of the agent with that hash on a node."""
    return posixpath.join(work, "agents", f"{sha256}.pyz")


def fields(text: str) -> dict[str, str]:
    """Returns the "name value" lines of a script's output."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name}


def exit_status(text: str) -> int | None:
    """Returns an exit status of 0 to 255; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and int(text) < 256 else None


def look(client: paramiko.SSHClient, work_dir: str, key: str, agent_sha256: str) -> Look:
    """Returns the work folder, boot id, and the state of agent and job, in one round trip. Raises RemoteError."""
    answer = ssh.run(client, ssh.shell(scripts.LOOK, work_dir, key, agent_sha256), timeout=60, to="look at the job")
    if answer.rc == scripts.UNUSABLE:
        raise ssh.RemoteError(answer.complaint)
    if answer.rc != 0:
        raise ssh.RemoteError(
            f"the node's login shell does not work: {answer.complaint.rstrip('.')}; it may be csh or fish: it has to "
            "be sh, bash or zsh; log in by hand to see why"
        )
    if answer.text and not answer.text.startswith("work "):
        raise ssh.RemoteError(
            f"the node's login shell prints {answer.text[:60]!r} before a command's output, which would damage every "
            f"file that is read there; silence ~/.bashrc and the like for logins that are not interactive"
        )
    found = fields(answer.text)
    try:
        state = State(found["state"])
        boot, job_boot = found["boot"], found["jobboot"]
        if state in (State.RUNNING, State.GONE) and job_boot and boot and job_boot != boot:
            state = State.REBOOTED
        paths(found["work"], key)
        orderly = re.fullmatch("(bs)+", found["ends"]) is not None
        return Look(found["work"], boot, found["agent"], state, exit_status(found["exit"]), orderly)
    except (KeyError, ValueError) as error:
        raise ssh.RemoteError(
            f"the node's reply cannot be read: {answer.text[:200]!r}; log in by hand to see why"
        ) from error


def send_agent(client: paramiko.SSHClient, seen: Look, agent: Path, sha256: str) -> bool:
    """Send the agent unless the node has it intact. Returns whether it was sent. Raises RemoteError."""
    if seen.agent == "ok":
        return False
    path = agent_path(seen.work, sha256)
    ssh.store(client, path, agent.read_bytes(), mode=0o500)
    answer = ssh.run(client, ssh.shell('sha256sum "$1"', path), to="check the node side that was sent")
    if answer.text.split(" ")[0] != sha256:
        raise ssh.RemoteError(
            f"the node side did not arrive whole at {path}: {answer.complaint}; check the node's disk"
        )
    return True


def start(
    client: paramiko.SSHClient,
    seen: Look,
    key: str,
    plan: str,
    launch: Mapping[str, Any],
    agent_sha256: str,
    step: Sequence[str] = (),
) -> bool:
    """Start the job detached, by the command ``step`` if there is one. Returns False if it was started before.

    Raises RemoteError, BadLaunch.
    """
    where = paths(seen.work, key)
    ssh.store(client, where.plan, plan.encode())
    words = launching.command_for(launch, agent_path(seen.work, agent_sha256), ["run", where.plan], key=key)
    kind = launching.parse_launch(launch).kind
    runtime = kind if kind in launching.RUNTIMES else ""
    command = shlex.join(words)
    script = ssh.shell(scripts.START, where.folder, seen.work, seen.boot_id, command, runtime, scripts.RUN, *step)
    answer = ssh.run(client, script, timeout=60, to="start the job")
    if answer.rc == 43:
        return False
    if answer.rc != 0:
        raise ssh.RemoteError(f"the job could not be started on the node: {answer.complaint}")
    return True


def collect(client: paramiko.SSHClient, work: str, key: str, telemetry_max: int = TELEMETRY_BYTES_MAX) -> Collected:
    """Fetch the result and its telemetry, with limited sizes. The telemetry must have the hash in the result."""
    where = paths(work, key)
    notes: list[str] = []
    try:
        result = ssh.fetch(client, where.result, RESULT_BYTES_MAX)
    except (ssh.CommandTimedOut, ssh.Unreachable):
        raise
    except ssh.RemoteError as error:
        return Collected(None, None, (str(error),))
    wanted = _telemetry_hash(result)
    if wanted is None:
        return Collected(result, None)
    telemetry: bytes | None = None
    try:
        telemetry = ssh.fetch(client, where.telemetry, telemetry_max, timeout=600)
    except (ssh.CommandTimedOut, ssh.Unreachable):
        raise
    except ssh.RemoteError as error:
        notes.append(f"telemetry was left out: {error}")
    if telemetry is not None and hashlib.sha256(telemetry).hexdigest() != wanted:
        telemetry = None
        notes.append("telemetry was left out: it does not have the hash that the result names")
    return Collected(result, telemetry, tuple(notes))


def _telemetry_hash(result: bytes | None) -> str | None:
    """Returns the telemetry's hash in a result; None for a malformed result, which its parser reports."""
    try:
        return str(json.loads(result or b"{}")["telemetry_file"]["sha256"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def log_tail(client: paramiko.SSHClient, work: str, key: str) -> str:
    """Returns the end of the job's output, at most ``LOG_TAIL_MAX`` bytes of it, cleaned."""
    answer = ssh.run(client, ["tail", "-c", str(LOG_TAIL_MAX), paths(work, key).log], max_bytes=LOG_TAIL_MAX)
    return answer.text if answer.rc == 0 else ""


def stop(client: paramiko.SSHClient, work: str, key: str) -> bool:
    """Stop the job, its processes and its container, within ``scripts.STOP_SECONDS``. Returns whether none runs now."""
    answer = ssh.run(client, ssh.shell(scripts.STOP_ONE, paths(work, key).folder), timeout=60, to="stop the job")
    return "stopped" in answer.text


def stop_others(client: paramiko.SSHClient, work: str, plan: Plan, launch: Mapping[str, Any]) -> list[str]:
    """Stop every other job on the node, and remove job folders older than a week; what cannot be removed is logged.

    Only for the holder of the node's lease: any other job belongs to a run or an attempt that is over. None is stopped
    if the node has seen a later lease, since its node side then refuses the plan. Raises RemoteError.
    """
    paths(work, plan.job_id)
    mine = (safe_name(plan.node), _own_fence(launch))
    script = ssh.shell(scripts.STOP_OTHERS, work, plan.job_id, str(plan.fence), *mine)
    answer = ssh.run(client, script, timeout=120, to="stop earlier jobs")
    if answer.rc != 0:
        raise ssh.RemoteError(f"earlier jobs cannot be stopped: {answer.complaint}")
    if answer.err:
        log.warning("not all is removed of earlier jobs in %s, which takes the node's disk: %s", work, answer.complaint)
    return [line for line in answer.text.split() if _KEY.match(line)]


def _own_fence(launch: Mapping[str, Any]) -> str:
    """The folder of the node's fence if it is not in the work folder."""
    return launching.parse_launch(launch).env.get(launching.FENCE, "")


def remove(client: paramiko.SSHClient, work: str, key: str) -> None:
    """Remove the job's folder."""
    folder = paths(work, key).folder
    answer = ssh.run(client, ["rm", "-rf", "--", folder])
    if answer.rc != 0:
        raise ssh.RemoteError(f"the job's folder {folder} cannot be removed: {answer.complaint}")


def clean(client: paramiko.SSHClient, work_dir: str, node: str, launch: Mapping[str, Any]) -> str:
    """Delete Muster's files on a node. Returns what was left and why, "" if nothing was. Raises RemoteError."""
    script = ssh.shell(scripts.CLEAN, work_dir, safe_name(node), _own_fence(launch))
    answer = ssh.run(client, script, timeout=120, to="delete Muster's files")
    if answer.rc != 0:
        raise ssh.RemoteError(f"Muster's files cannot be deleted: {answer.complaint}")
    found = fields(answer.text)
    if "shared" in found:
        return f"{found['shared']} may be shared with other machines: only this node's part of it was deleted"
    return f"{found['left']} stays: it holds files that are not Muster's" if "left" in found else ""
