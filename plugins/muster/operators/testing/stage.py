"""One stage of a node's qualification as an Airflow task.

A FAIL fails the task at once, an INCONCLUSIVE is tried again, any other verdict is a success. The verdict is recorded
first.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import service
from muster.errors import MusterError
from muster.integration import logins
from muster.judging.case import Collected, fresh_case
from muster.model.runs import Run, RunKey
from muster.model.stages import LOAD_STAGES
from muster.operators.testing import qualification
from muster.operators.testing.remote_job import RemoteJobOperator, ToJudge, replanned
from muster.remote.job import attempt as remote
from muster.remote.job import outcome
from muster.remote.job.attempt import Attempt, Programme
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.neighbours import reachable_neighbours
from muster.remote.job.outcome import Ended, Kind, Next
from muster.settings import settings
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence, Judgement, Verdict
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.model import Sku
from muster_criteria.stages import STAGES

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

GRACE_S = 900.0
"""How long (s) after a job's deadline to wait for a node that does not respond: servers take minutes to boot."""

VERDICT_SHOWN = "{{ verdict | default('') }}"
"""The template of the map index, which Airflow shows with each task instance: the stage's verdict."""


class MusterStageOperator(RemoteJobOperator):
    """Runs one stage on the node that the run holds."""

    ui_color = "#d7ecd9"

    def __init__(self, *, stage: str, **kwargs: Any) -> None:
        kwargs.setdefault("map_index_template", VERDICT_SHOWN)
        kwargs.setdefault("retry_delay", datetime.timedelta(seconds=settings().retry_seconds))
        super().__init__(stage=stage, grace_s=GRACE_S, **kwargs)

    def execute(self, context: Context) -> Any:
        """Measure the stage, if the run includes it. If not, succeed: a skip would also skip the stages after it."""
        if self.stage in self._stages_of_run(context):
            return super().execute(context)
        self.log.info("this test is of other stages only")
        context["verdict"] = "not tested"  # type: ignore[typeddict-unknown-key]
        return None

    def _stages_of_run(self, context: Context) -> Sequence[str]:
        run = context["dag_run"]
        try:
            return store.runs.get(RunKey.of(run)).required_stages
        except MusterError:  # reported, or retried, by the claim of the attempt
            return (self.stage,)

    def _check(self, run: Run, sku: Sku) -> None:
        if why := outcome.stopped_by(_earlier(run, sku, self.stage)):
            raise AirflowSkipException(why)

    def _programme(self, context: Context, run: Run, sku: Sku, key: AttemptKey, job_key: str) -> Programme:
        """The stage's probes; in a repeat, those that the judge requested again and those that watch these."""
        calls = programme.stage_calls(sku, self.stage, run.level, remote.seed(job_key))
        if key.repeats:
            before = store.runs.get_job(run.key, self.stage, str(key.repeats))
            chosen = {*(before.repeat_probes if before else ()), *programme.watching(sku, self.stage, run.level)}
            calls = tuple(call for call in calls if call.probe in chosen)
        return Programme(calls, programme.stage_deadline_s(sku, self.stage, run.level))

    def _to_judge(self, attempt: Attempt, end: Ended, result: StageResult | None, why_missing: str) -> ToJudge:
        chassis = remote.read_bmc(attempt) if result else None
        collected = Collected(result, chassis, why_missing, self._evidence(attempt, end), replanned(attempt))
        case = fresh_case(attempt.run, attempt.node, attempt.sku, self.stage, collected)
        return ToJudge(case, case.result, chassis)

    def _evidence(self, attempt: Attempt, end: Ended) -> tuple[Evidence, ...]:
        losses, neighbours = 0, ""
        if end.kind is Kind.LOST:
            lost = store.runs.find_jobs(attempt.task.key, {outcome.LOST})
            losses = 1 + sum(job.stage in LOAD_STAGES for job in lost)
            neighbours = reachable_neighbours(attempt.node, lambda: logins.credentials(settings().ssh_conn_id))
        loads = self.stage in LOAD_STAGES
        return outcome.evidence(
            end.kind, job=attempt.job_key, stage=self.stage, loads=loads, losses=losses, neighbours=neighbours
        )

    def _state(self, end: Ended, judgement: Judgement) -> str:
        return outcome.state_after(end.kind, judgement.verdict, repeat=bool(judgement.repeat))

    def _finish(self, context: Context, attempt: Attempt, recorded: Judgement, job_end: str) -> Any:
        context["verdict"] = str(recorded.verdict)  # type: ignore[typeddict-unknown-key]
        self.log.info("%s %s: %s", self.stage, recorded.verdict, recorded.reason)
        for finding in recorded.findings:
            self.log.warning("finding (%s): %s", finding.severity, finding.summary)
        for missing in recorded.coverage.missing:
            self.log.warning("not measured: %s", missing)
        last = recorded.verdict is Verdict.INCONCLUSIVE and (
            self._is_last(context)
            or (not attempt.run.forced and service.preempted(attempt.node.name))  # a user's by now: no further attempt
        )
        then = outcome.whats_next(recorded.verdict, job_end, last, repeat=bool(recorded.repeat))
        if then is Next.REPEAT:
            # A repeat is no failure, so it uses up none of Airflow's retries.
            self.log.info("running again: %s", ", ".join(recorded.repeat))
            return self.execute(context)
        if then is Next.FAIL:
            raise AirflowFailException(f"{recorded.verdict}: {recorded.reason}")
        if then is Next.RETRY:
            raise self._without_verdict(context, f"{recorded.verdict}: {recorded.reason}")
        return None


def _earlier(run: Run, sku: Sku, stage: str) -> list[tuple[str, Verdict | None, bool]]:
    """(stage, verdict, blocking) of the run's stages before ``stage``; the verdict is None if it has none yet."""
    before = STAGES[: STAGES.index(stage)]
    judged = {each.stage: each.verdict for each in store.runs.stages(run.key)}
    return [(name, judged.get(name), programme.blocking(sku, name)) for name in before if name in run.required_stages]


def tasks(first: str, *others: str, pool: str = "default_pool") -> list[MusterStageOperator]:
    """Returns the tasks of these stages, to be wired in this order. ``pool``: whose slots they take.

    A stage runs once the one before it has succeeded or failed, and is skipped if that was skipped. The stage itself
    decides whether a failure ends the run: a blocking stage's FAIL and a lasting INCONCLUSIVE do.
    """
    made = [MusterStageOperator(task_id=first, stage=first, pool=pool)]
    return made + [
        MusterStageOperator(task_id=each, stage=each, pool=pool, trigger_rule=TriggerRule.ONE_DONE) for each in others
    ]


@task(do_xcom_push=False)
def report(dag_run: Any = None) -> str:
    """Mail the report; if mail is down, it is sent later."""
    return qualification.report(RunKey.of(dag_run))


@task(do_xcom_push=False)
def release(dag_run: Any = None) -> list[str]:
    """Release the run's nodes."""
    return qualification.release(RunKey.of(dag_run))
