"""One attempt at a stage on one node: claim, look, send, start, await, collect, tidy up, stop. Knows no Airflow.

A stage of a node and a member of a block take the same steps. ``outcome`` interprets the end of the job, ``waiting``
waits for it, and the judge decides the verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import paramiko

from muster import store
from muster.errors import LeaseLost, MusterError, Preempted
from muster.model.nodes import Node
from muster.model.runs import Job, OfRun, Run, RunKey
from muster.remote.bmc import redfish
from muster.remote.bmc.watch import BmcWatch
from muster.remote.connection import ssh
from muster.remote.job import jobs, outcome, waiting
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.outcome import Ended, Kind
from muster.remote.job.zipapp import AgentFile
from muster.settings import settings
from muster_criteria.chassis import Chassis, with_earlier
from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import CallSpec
from muster_node.contract import END_TERMINATED, Plan, ProbeCall

log = logging.getLogger(__name__)

NOTE_MAX = 500  # characters of a job's note


@dataclasses.dataclass(frozen=True)
class Task(OfRun):
    """The task that makes the attempt. ``node``: if the run tests several."""

    dag_id: str
    run_id: str
    task_id: str
    stage: str
    try_number: int
    max_tries: int
    node: str = ""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt, read from the records whenever its task resumes."""

    task: Task
    run: Run
    node: Node
    sku: Sku
    job: Job
    plan: Plan

    @property
    def job_key(self) -> str:
        """The name of the attempt's job on the node."""
        return self.plan.job_id

    @property
    def work(self) -> str:
        """Digest of what the probes of its plan have to do."""
        calls = [[call.probe, call.params] for call in self.plan.probes]
        return hashlib.sha256(json.dumps(calls, sort_keys=True).encode()).hexdigest()[:16]

    def recorded_end(self) -> str | None:
        """Returns ``StageResult.end`` of the job's result if it is stored with a verdict; else None."""
        kept = store.raw.stage_bytes(self.task.key, self.task.stage, node=self.task.node)
        if kept is None or kept.result is None:
            return None
        result = json.loads(kept.result)
        return str(result["end"]) if result["job_id"] == self.job_key else None


@dataclasses.dataclass(frozen=True)
class Programme:
    """The probes that the node is to run, and the time limit (s) for all of them."""

    calls: Iterable[CallSpec]
    deadline_s: float


def renew(task: Task) -> None:
    """Supersede the stage's PASS if a person has cleared its task since: it is not of this attempt.

    Called before whatever may prevent the attempt. Raises LeaseLost unless the run holds the node.
    """
    job = store.runs.get_job(task.key, task.stage, node=task.node)
    if job is not None and AttemptKey.parse(job.attempt_key).tries != task.max_tries:
        store.stages.supersede_pass(task.key, task.stage, node=task.node)


def claim(task: Task, run: Run, sku: Sku, programme: Callable[[AttemptKey, str], Programme], *, begin: bool) -> Attempt:
    """Returns the task's current attempt, with its job in the records; ``begin`` moves the node into the stage.

    ``programme`` is called with the attempt's key and its job's. Raises LeaseLost unless the run holds the node,
    IllegalMove, SkuError.
    """
    if begin:
        node = store.runs.begin_stage(task.key, task.stage, node=task.node)
    else:
        node = store.nodes.get(run.node)
    lease = store.leases.get(node.name)
    if lease is None or lease.key != task.key:
        raise LeaseLost(f"this run does not hold {node.name} any more; clear it to start over")
    job = store.runs.get_job(task.key, task.stage, node=task.node)
    key = outcome.next_attempt(task.max_tries, job) if begin or job is None else AttemptKey.parse(job.attempt_key)
    if job is None or job.attempt_key != str(key):
        job = Job(
            task.dag_id, task.run_id, task.stage, str(key), outcome.SUBMITTED, "", fence=lease.token, node=task.node
        )
        store.runs.record_job(job)
    # Members of a block share one task id, so the node is part of their jobs' names.
    task_id = f"{task.task_id}[{task.node}]" if task.node else task.task_id
    job_key = key.job_key(task.dag_id, task.run_id, task_id)
    planned = programme(key, job_key)
    probes = tuple(
        ProbeCall(probe=call.probe, timeout_s=call.timeout_s, seed=call.seed, params=dict(call.params))
        for call in planned.calls
    )
    plan = Plan(
        job_key, node.name, task.stage, run.level, job.fence, planned.deadline_s, probes,
        force_reason=run.forced, repeat=key.repeat > 0, busy_daemons=settings().busy_daemon_names,
    )  # fmt: skip
    return Attempt(task, run, node, sku, job, plan)


def seed(job_key: str) -> int:
    """Returns the seed of a job's data: different for each job, reproducible for the same job."""
    return int(hashlib.sha256(job_key.encode()).hexdigest()[:8], 16)


def begin(
    attempt: Attempt, client: paramiko.SSHClient, agent: AgentFile, step: Callable[[], Sequence[str]] = tuple
) -> tuple[Attempt, jobs.Look]:
    """Start the attempt's job unless the node has it already. Returns the attempt and the node's state before.

    First sends the agent if needed, stops every other job on the node, and reads its BMC. ``step``: returns the words
    that run it as part of a job of the node's scheduler; raises Preempted, LeftAlone, SchedulerDown. A job that had
    begun before its test was preempted is stopped, to be judged by what it measured. Raises RemoteError, Overtaken.
    """
    node, key = attempt.node, attempt.job_key
    seen = jobs.look(client, node.work_dir, key, agent.sha256)
    if seen.state is not jobs.State.ABSENT:
        log.info("the job of this attempt is on the node (%s): not started again", seen.state)
        _note(attempt, "")
        if seen.state is jobs.State.RUNNING:
            try:
                _stop_if_taken_back(step, attempt, client, seen)
            except Preempted as error:
                # Users preempt a test by submitting jobs; they must not decide what becomes of its findings.
                log.warning("judged by what it measured: %s", error)
                store.runs.change_job(attempt.job, state=outcome.RUNNING)
                seen = jobs.look(client, node.work_dir, key, "")
        return attempt, seen
    if jobs.send_agent(client, seen, agent.path, agent.sha256):
        log.info("sent the node side %s", agent.sha256)
    for other in jobs.stop_others(client, seen.work, attempt.plan, node.launch):
        log.warning("stopped job %s, which belonged to an attempt or a run that is over", other)
    serial = store.parts.system_serial(node.name) if node.bmc else ""
    before = redfish.ask(node.bmc, attempt.task.stage, serial=serial)
    words = step()
    job = dataclasses.replace(
        attempt.job,
        state=outcome.RUNNING,
        remote_dir=jobs.paths(seen.work, key).folder,
        boot_id=seen.boot_id,
        started_at=store.clock.now(),
        chassis=before.to_json() if before else "",
        work=attempt.work,
        note="",
    )
    # A task process whose supervisor ended may still be here when a later try has measured, judged and tidied up.
    store.runs.record_job(job, only_from=outcome.UNJUDGED)
    jobs.start(client, seen, key, attempt.plan.to_json(), node.launch, agent.sha256, words)
    log.info("started job %s on %s: %s", key, node.name, ", ".join(call.probe for call in attempt.plan.probes))
    attempt = dataclasses.replace(attempt, job=job)
    # A scheduler that takes the node back stops what runs then: a job that begins directly afterwards would go on.
    _stop_if_taken_back(step, attempt, client, seen)
    return attempt, seen


def _stop_if_taken_back(
    step: Callable[[], Sequence[str]], attempt: Attempt, client: paramiko.SSHClient, seen: jobs.Look
) -> None:
    """Stop the attempt's job unless the node's scheduler confirms that the node is the test's.

    Raises as ``step``, and RemoteError if the job still runs.
    """
    try:
        step()
    except MusterError:
        _stop_job(client, attempt.node, seen.work, attempt.job_key)
        store.runs.change_job(attempt.job, state=outcome.STOPPED)
        raise


def wait(attempt: Attempt, seen: jobs.Look, grace_s: float) -> waiting.Wait:
    """Returns the parameters of waiting for the attempt's job. ``grace_s``: wait (s) after the job's deadline."""
    job, node = attempt.job, attempt.node
    return waiting.Wait(
        node=ssh.NodeAddress.of(node),
        job_key=attempt.job_key,
        work=seen.work,
        boot_id=job.boot_id or seen.boot_id,
        deadline_at=_deadline_at(attempt),
        grace_s=grace_s,
        poll_s=settings().poll_seconds,
        watch=BmcWatch.of(job, node.bmc, store.parts.system_serial(node.name) if node.bmc else ""),
    )


def _deadline_at(attempt: Attempt) -> float:
    """The epoch second, by the clock of the records, at which the node itself ends the job."""
    return (attempt.job.started_at or store.clock.now()).timestamp() + attempt.plan.deadline_s


@dataclasses.dataclass(frozen=True)
class Finished:
    """An attempt whose job is over: how it ended, and what it left."""

    end: Ended
    output: jobs.Collected


class NoVerdict(ssh.RemoteError):
    """The node could not be reached; the attempt is retried instead of judged without a result."""


@contextlib.contextmanager
def collected(
    attempt: Attempt, connect: ssh.Connect, hint: Kind, *, grace_s: float, last: Callable[[], bool]
) -> Iterator[Finished | jobs.Look | None]:
    """Yields what the attempt's job left, the node's state if the job still runs; removes the job's folder once the
    body, which records the verdict, has ended.

    ``hint``: how the waiting ended; the node's current state decides. ``grace_s``: as of ``wait``; a trigger that fails
    gives no hint, so the records show whether the job is overdue. ``last``: whether no other attempt follows. Yields
    None where its result is recorded already, and the node cannot be reached or no longer has it. Raises NoVerdict if
    the attempt is to be retried.
    """
    with contextlib.ExitStack() as connection:
        found: Finished | jobs.Look | None
        try:
            client = connection.enter_context(connect(attempt.node))
            seen = jobs.look(client, attempt.node.work_dir, attempt.job_key, "")
            overdue = store.clock.now().timestamp() > _deadline_at(attempt) + grace_s
            end = outcome.ended(seen, overdue=overdue, boot_id=attempt.job.boot_id)
            found = seen if end is None else Finished(end, _collect(attempt, client, seen, end))
            if isinstance(found, Finished) and found.output.result is None and attempt.recorded_end() is not None:
                found = None  # another process has judged it and tidied up
        except ssh.RemoteError as error:
            found = unreachable(attempt, hint, error, last=last)
        yield found
        if isinstance(found, Finished) and found.output.result is not None:
            _tidy(attempt, client, seen)


def unreachable(attempt: Attempt, hint: Kind, error: ssh.RemoteError, *, last: Callable[[], bool]) -> Finished | None:
    """Returns the end of an attempt on a node that cannot be reached: only for a lost node, or the last attempt.

    Returns None if the attempt's result is recorded already, which "no result" never supersedes. Raises NoVerdict if
    the attempt is to be retried.
    """
    if attempt.recorded_end() is not None:
        return None
    lost = hint is Kind.LOST and isinstance(error, (ssh.Unreachable, ssh.CommandTimedOut))
    if not lost and not last():
        _note(attempt, str(error))
        raise NoVerdict(str(error)) from error
    return Finished(Ended(Kind.LOST if lost else Kind.REFUSED, str(error)), jobs.Collected(None, None))


def _note(attempt: Attempt, why: str) -> None:
    """Record with the job why the attempt is to be retried; "" once it has reached its node."""
    store.runs.change_job(attempt.job, note=why[:NOTE_MAX])


def _collect(attempt: Attempt, client: paramiko.SSHClient, seen: jobs.Look, end: Ended) -> jobs.Collected:
    if end.kind is Kind.OVERDUE:
        _stop_job(client, attempt.node, seen.work, attempt.job_key)
    collected = jobs.collect(client, seen.work, attempt.job_key)
    if collected.result is None:
        log.warning("the end of the job's log:\n%s", jobs.log_tail(client, seen.work, attempt.job_key))
    for note in collected.notes:
        log.warning("%s", note)
    return collected


def _tidy(attempt: Attempt, client: paramiko.SSHClient, seen: jobs.Look) -> None:
    """Remove the job's folder. An error is only logged, since the verdict is recorded by now."""
    try:
        jobs.remove(client, seen.work, attempt.job_key)
    except ssh.RemoteError as error:
        log.warning("the job's folder stays on %s until a later run removes it: %s", attempt.node.name, error)


def checked_result(attempt: Attempt, found: Finished) -> tuple[StageResult | None, str]:
    """Returns (the result, "") if it is valid and of this attempt, else (None, the reason; "" without any)."""
    if found.output.result is None:
        return None, "; ".join(found.output.notes)
    try:
        result = parse_result(found.output.result)
    except BadResult as error:
        return None, str(error)
    for name in ("job_id", "node", "stage", "level", "fence", "repeat"):
        if getattr(result, name) != getattr(attempt.plan, name):
            return None, f"the node sent a result of another job: its {name} is {getattr(result, name)!r}"[:300]
    if result.simulated and not attempt.node.simulated:
        return None, "the node sent a result of simulated hardware, and is enrolled as a real one"
    why = [found.end.sentence] if (found.end.kind, result.end) == (Kind.EXPLAINED, END_TERMINATED) else []
    return result.model_copy(update={"notes": [*why, *result.notes, *found.output.notes]}), ""


def read_bmc(attempt: Attempt) -> Chassis | None:
    """Returns the worst of the BMC's readings before, during and directly after the load; None without a BMC."""
    serial = store.parts.system_serial(attempt.node.name) if attempt.node.bmc else ""
    if (now := redfish.ask(attempt.node.bmc, attempt.task.stage, serial=serial, limit_s=redfish.LAST_LIMIT_S)) is None:
        return None
    worst = with_earlier(attempt.job.chassis, now)
    if worst.trouble:
        log.warning("%s", worst.trouble)
    return worst


def record_end(attempt: Attempt, end: Ended, state: str, repeat_probes: tuple[str, ...] = ()) -> None:
    """Record how the attempt's job ended, and which probes are to run again."""
    # What ``begin`` recorded since the attempt was read stays: its connection may have broken after the job's start.
    store.runs.change_job(
        attempt.job, state=state, ended_at=store.clock.now(), note=end.sentence[:NOTE_MAX],
        repeat_probes=list(repeat_probes),
    )  # fmt: skip


def stop(attempt: Attempt, connect: ssh.Connect) -> None:
    """Stop the attempt's job; the next attempt measures again. Raises RemoteError; then ``stop_leftovers`` stops it.

    A job that is done stays: a worker that froze is killed for it later, and Airflow's retry takes the result.
    """
    with connect(attempt.node) as client:
        seen = jobs.look(client, attempt.node.work_dir, attempt.job_key, "")
        if seen.state is jobs.State.DONE:
            return
        _stop_job(client, attempt.node, seen.work, attempt.job_key)
    store.runs.change_job(attempt.job, state=outcome.STOPPED)


def stop_leftovers(key: RunKey, connect: ssh.Connect, *, node: str = "") -> None:
    """Stop jobs of a run that may still be running: those without a trigger, since a user marked the task before the
    triggerer started it, and those whose end was not seen, since the node could not be reached.

    Raises RemoteError.
    """
    started = [job for job in store.runs.find_jobs(key, {outcome.RUNNING, outcome.UNSEEN}, node=node) if job.remote_dir]
    if not started:
        return
    machine = store.nodes.get(store.runs.get(key, node=node).node)
    with connect(machine) as client:
        for job in started:
            _stop_recorded(client, machine, job)
            log.warning("stopped the job of stage %s on %s, which no task waited for", job.stage, machine.name)
            store.runs.change_job(job, state=outcome.STOPPED, note=job.note or "its run was over")


def stop_hung(job: Job, connect: ssh.Connect, patience_s: float) -> None:
    """Give a running job ``patience_s`` seconds to end by itself, then stop it. Raises RemoteError."""
    node = store.nodes.get(job.node)
    until = time.monotonic() + patience_s
    with connect(node) as client:
        while jobs.look(client, node.work_dir, posixpath.basename(job.remote_dir), "").state is jobs.State.RUNNING:
            if time.monotonic() > until:
                log.warning("the job on %s hangs: stopping it", node.name)
                _stop_recorded(client, node, job)
                return
            time.sleep(1.0)


def _stop_recorded(client: paramiko.SSHClient, node: Node, job: Job) -> None:
    folder, key = posixpath.split(job.remote_dir)
    _stop_job(client, node, posixpath.dirname(folder), key)


def _stop_job(client: paramiko.SSHClient, node: Node, work: str, key: str) -> None:
    """Stop a job. Raises RemoteError, also if it still runs."""
    if not jobs.stop(client, work, key):
        raise ssh.RemoteError(f"the job {key} still runs on {node.name}: its process or container cannot be ended")
