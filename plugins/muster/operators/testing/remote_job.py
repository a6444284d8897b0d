"""A remote attempt as an Airflow task: started in a worker, awaited in the triggerer, settled in a worker.

The steps are in ``muster.remote.job.attempt``; subclasses define what is judged and recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from muster import store
from muster.admission import service, silence
from muster.errors import (
    ControllerFault,
    DifferentMachine,
    IllegalMove,
    JobEnded,
    LeaseLost,
    MusterError,
    Overtaken,
    Preempted,
    UnknownRun,
)
from muster.integration import logins
from muster.judging import repeats, verdict
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey
from muster.operators.testing import faults
from muster.operators.testing.trigger import JobTrigger
from muster.remote.connection import ssh
from muster.remote.job import attempt as remote
from muster.remote.job import jobs, launch, neighbours, outcome
from muster.remote.job.attempt import Attempt, Finished, Programme, Task
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.outcome import Ended, Kind
from muster.remote.job.zipapp import build_agent
from muster.settings import settings
from muster_criteria.chassis import Chassis
from muster_criteria.measured import StageResult
from muster_criteria.model import Judgement, Verdict
from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.skus import current_sku

if TYPE_CHECKING:
    import paramiko
    from airflow.sdk.definitions.context import Context

    from muster_criteria.stage.case import Case


def log_in(node: Node) -> paramiko.SSHClient:
    """Log in to a node. Raises RemoteError, and ControllerFault if other nodes refuse the login too."""
    try:
        return logins.connect(node)
    except ssh.LoginRefused as error:
        once = functools.partial(logins.connect, attempts=1)
        if others := neighbours.that_refuse_too(node, once):
            raise ControllerFault(f"{error}; {others} refuse the same login, which they accepted before") from error
        raise


ATTEMPTS = 3
"""Attempts at one stage before it stays INCONCLUSIVE."""
RETRIES = 8
"""Airflow's retries of a task. More than ``ATTEMPTS``: Airflow also uses one up when a worker dies, Redis loses a task
or the API server is unreachable for long, and none of these is an attempt at the node.
"""


class Inconclusive(AirflowException):
    """The attempt has no verdict on the node; Airflow retries the task."""


def _explained(attempt: Attempt, found: Finished | None) -> Finished | None:
    """Replace an end that accuses the node if something else explains it, so that it is no evidence about the node."""
    if found is None or found.end.kind not in outcome.ACCUSING:
        return found
    why = silence.explained(attempt.node.name, attempt.job.started_at or store.clock.now())
    return dataclasses.replace(found, end=outcome.explained(found.end.kind, why)) if why else found


def replanned(attempt: Attempt) -> str:
    """Returns a sentence if the plan's parameters have changed since the job was started; "" if not."""
    same = attempt.job.work in ("", attempt.work)
    return "" if same else f"the SKU file of {attempt.node.name} changed its probes while they ran"


def _of_no_use(judged: object) -> bool:
    """Whether this is a judgement that says nothing about the node, since the SKU file changed during the measurement.

    False for a side of a pair, whose parameters are the block's.
    """
    return isinstance(judged, Judgement) and bool(judged.replanned) and judged.verdict is not Verdict.FAIL


@dataclasses.dataclass(frozen=True)
class ToJudge:
    """A stage to judge (Case) or already judged (Judgement), with the result to store and the BMC's readings."""

    stage: Case | Judgement
    result: StageResult | None
    chassis: Chassis | None = None


class RemoteJobOperator(BaseOperator):
    """Makes one attempt at ``stage`` on a node that the run holds. ``grace_s``: wait (s) after the job's deadline.

    ``member``: the node, where the run tests several.
    """

    def __init__(self, *, stage: str, grace_s: float, member: str = "", **kwargs: Any) -> None:
        kwargs.setdefault("retries", RETRIES)
        super().__init__(**kwargs)
        self.stage = stage
        self.grace_s = grace_s
        self.member = member
        self._starting: Attempt | None = None

    def execute(self, context: Context) -> Any:
        """Start the job, or find the running one, and defer until it ends."""
        with self._failing_at_once(context):
            # Briefly unreachable records use up no attempt at the node.
            return store.patience.outlasting(functools.partial(self._begin, context))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Collect, judge and record the job's result."""
        try:
            kind = Kind(event["kind"])
        except (KeyError, TypeError, ValueError):
            kind = Kind.DONE
        with self._failing_at_once(context):
            return store.patience.outlasting(lambda: self._settle(context, self._claim(context, begin=False), kind))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the trigger. If the trigger failed or timed out, the job's result is still collected."""
        if next_method != "execute_complete":
            self.log.warning("the trigger ended without an event (%s); looking at the node itself", next_kwargs)
            next_method, next_kwargs = "execute_complete", {"event": {}}
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """Stop a job that is being started; once the task is deferred, the trigger's on_kill does that."""
        if self._starting is None:
            return
        try:
            remote.stop(self._starting, logins.connect)
        except MusterError as error:
            self.log.warning("the job on %s may run until its deadline: %s", self._starting.node.name, error)

    # What a subclass adds.

    def _programme(self, context: Context, run: Run, sku: Sku, key: AttemptKey, job_key: str) -> Programme:
        """Returns the probes to run and the deadline."""
        raise NotImplementedError

    def _to_judge(self, attempt: Attempt, end: Ended, result: StageResult | None, why_missing: str) -> ToJudge:
        """Returns what is judged of an attempt. ``why_missing``: why there is no result, "" if there is one."""
        raise NotImplementedError

    def _state(self, end: Ended, judgement: Judgement) -> str:
        """The state of the judged job in the records."""
        raise NotImplementedError

    def _after(self, attempt: Attempt, result: StageResult | None) -> None:
        """Called after the attempt is recorded."""

    def _finish(self, context: Context, attempt: Attempt, recorded: Any, job_end: str) -> Any:
        """End the task according to what was recorded. ``job_end``: ``StageResult.end``, "" without a result."""
        raise NotImplementedError

    def _is_last(self, context: Context) -> bool:
        """Whether this is the last attempt."""
        ti: Any = context["ti"]
        spent = store.attempts.spent(RunKey.of(ti), self.stage, ti.max_tries, node=self.member)
        return spent + 1 >= ATTEMPTS or self._is_last_try(context)

    def _is_last_try(self, context: Context) -> bool:
        """Whether Airflow does not try the task again."""
        ti: Any = context["ti"]
        return bool(ti.try_number > ti.max_tries)

    # The steps in between.

    @contextlib.contextmanager
    def _failing_at_once(self, context: Context) -> Iterator[None]:
        """Raise AirflowFailException for errors that a person has to resolve, or at the last of the attempts;
        Inconclusive (retried) for other ones.

        A fault of the controller, such as a SKU file that is being edited, is noted for the run's end: the node is not
        charged with it.
        """
        try:
            yield
        except (DifferentMachine, IllegalMove, JobEnded, LeaseLost, Preempted, UnknownRun) as error:
            raise AirflowFailException(str(error)) from error
        except Overtaken as error:  # no attempt at the node
            raise Inconclusive(str(error)) from error
        except (ControllerFault, SkuError, launch.BadLaunch) as error:
            ti: Any = context["ti"]
            faults.note(RunKey.of(ti), self.stage, str(error), node=self.member)
            raise self._without_verdict(context, f"a fault of the controller, not of the node: {error}") from error
        except MusterError as error:
            raise self._without_verdict(context, str(error)) from error

    def _without_verdict(self, context: Context, why: str) -> AirflowException:
        """Count an attempt that ends without a verdict; returns what ends the task."""
        ti: Any = context["ti"]
        try:
            spent = store.attempts.spend(RunKey.of(ti), self.stage, ti.max_tries, node=self.member)
        except MusterError as error:
            self.log.warning("this attempt is counted by Airflow alone: %s", error)
            spent = 0
        return Inconclusive(why) if spent < ATTEMPTS else AirflowFailException(why)

    def _begin(self, context: Context) -> Any:
        attempt = self._claim(context, begin=True)
        if attempt.job.state in outcome.JUDGED:
            # A worker died after recording the verdict and before ending the task: do not measure twice.
            return self._finish(context, attempt, *self._recorded(attempt))
        self._starting = attempt
        try:
            with log_in(attempt.node) as client:
                agent = build_agent(settings().home / "agents")
                # A person's reason for force lets a test run on a node that users may have.
                step = tuple if attempt.run.forced else functools.partial(service.step_of_test, attempt.node.name)
                attempt, seen = remote.begin(attempt, client, agent, step)
        except ssh.RemoteError as error:
            self._starting = None
            finished = remote.unreachable(attempt, Kind.REFUSED, error, last=functools.partial(self._is_last, context))
            return self._finish(context, attempt, *self._record(attempt, finished))
        self._starting = None
        if seen.state in (jobs.State.ABSENT, jobs.State.RUNNING):
            self._defer(attempt, seen)
        return self._settle(context, attempt, Kind.DONE)

    def _claim(self, context: Context, *, begin: bool) -> Attempt:
        ti: Any = context["ti"]
        task = Task(ti.dag_id, ti.run_id, ti.task_id, self.stage, ti.try_number, ti.max_tries, self.member)
        run = store.runs.get(task.key, node=self.member)
        if begin:
            remote.renew(task)
            store.attempts.forget_fault(task.key, self.stage, node=self.member)
        sku = current_sku(run.sku, settings().sku_folders)
        if begin:
            self._check(run, sku)
        return remote.claim(
            task, run, sku, lambda key, job_key: self._programme(context, run, sku, key, job_key), begin=begin
        )

    def _check(self, run: Run, sku: Sku) -> None:
        """Raise AirflowSkipException if the stage is not to be run."""

    def _defer(self, attempt: Attempt, seen: jobs.Look) -> NoReturn:
        wait = remote.wait(attempt, seen, self.grace_s)
        # The trigger ends by itself; this limit is for a triggerer that never runs it.
        limit = max(60.0, wait.deadline_at - store.clock.now().timestamp()) + 2 * self.grace_s + 600
        self.defer(
            trigger=JobTrigger(wait=wait.to_json(), ssh_conn_id=settings().ssh_conn_id),
            method_name="execute_complete",
            timeout=datetime.timedelta(seconds=limit),
        )
        raise AssertionError("defer does not return")

    def _settle(self, context: Context, attempt: Attempt, hint: Kind) -> Any:
        last = functools.partial(self._is_last, context)
        with remote.collected(attempt, log_in, hint, grace_s=self.grace_s, last=last) as found:
            if isinstance(found, jobs.Look):
                self._defer(attempt, found)
            judgement, job_end = self._record(attempt, _explained(attempt, found))
        if _of_no_use(judgement):
            raise ControllerFault(judgement.replanned)
        return self._finish(context, attempt, judgement, job_end)

    def _record(self, attempt: Attempt, finished: Finished | None) -> tuple[Any, str]:
        """Returns the judgement and ``StageResult.end`` ("" without a result), recorded now unless they are already."""
        if finished is None:
            return self._recorded(attempt)
        result, why_missing = remote.checked_result(attempt, finished)
        given = self._to_judge(attempt, finished.end, result, "" if result else why_missing or finished.end.sentence)
        sent = store.stages.Sent(
            given.result,
            finished.output.result if result else None,
            finished.output.telemetry,
            attempt.task.try_number,
            given.chassis.to_json().encode() if given.chassis else None,
        )
        try:
            recorded = verdict.record(attempt.task.key, given.stage, sent, node=self.member)
        except DifferentMachine as error:  # its message names the remedy: the run and `muster status` show it
            refused = self._to_judge(attempt, finished.end, None, str(error))
            nothing = store.stages.Sent(attempts=attempt.task.try_number, refused=True)
            verdict.record(attempt.task.key, refused.stage, nothing, node=self.member)
            raise
        for sentence in recorded.swapped:
            self.log.warning("%s", sentence)
        repeat = recorded.judgement.repeat
        if result is None or not repeats.may_go_on(result, repeat):
            repeat = ()
        judgement = dataclasses.replace(recorded.judgement, repeat=repeat)
        state = outcome.INCONCLUSIVE if _of_no_use(judgement) else self._state(finished.end, judgement)
        remote.record_end(attempt, finished.end, state, repeat)
        self._after(attempt, result)
        return judgement, result.end if result else ""

    def _recorded(self, attempt: Attempt) -> tuple[Any, str]:
        """The recorded judgement of the stage, and ``StageResult.end``."""
        recorded = store.reporting.judgements(attempt.task.key, node=self.member)
        return recorded[self.stage], attempt.recorded_end() or ""
