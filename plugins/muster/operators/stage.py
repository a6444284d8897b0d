"""One stage of a node's qualification as one Airflow task: sent, awaited in the triggerer, collected, judged, recorded.

It decides nothing: what an attempt means is ``muster.remote.attempt``'s business, the verdict the judge's. A FAIL fails
the task at once, an INCONCLUSIVE is tried again, anything else is a success; all of it is in the records first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.ssh.operators.ssh_remote_job import SSHRemoteJobOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import records
from muster.errors import DifferentMachine, IllegalMove, LeaseLost, MusterError, UnknownRun
from muster.integration.policy import DEFAULT_POOL, LOAD_STAGES
from muster.judging import repeats
from muster.judging.case import Collected, fresh_case, judgement_of
from muster.judging.chassis import Chassis, with_earlier
from muster.records import JobRecord, NodeRecord, RunRecord
from muster.remote import attempt, jobs, launch, redfish, ssh
from muster.remote.attempt import Ended, Kind, Next
from muster.remote.hooks import NodeAddress, NodeSSHHook
from muster.remote.neighbours import lost_jobs, reachable_neighbours
from muster.remote.trigger import MusterJobTrigger
from muster.remote.watch import Watch
from muster.remote.zipapp import AgentFile, build_agent
from muster.settings import settings
from muster_criteria.model import Judgement, Verdict
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.skus import load_sku
from muster_node.contract import Plan

if TYPE_CHECKING:
    import paramiko
    from airflow.sdk.definitions.context import Context

GRACE_S = 900.0
"""How long after a job's deadline a node that does not answer is still waited for: servers take minutes to boot."""

VERDICT_SHOWN = "{{ verdict | default('') }}"
"""What Airflow lists beside a stage among a run's task instances (as its map index, which it lists for every task)."""


class Inconclusive(AirflowException):
    """Nothing can be said about the node from this attempt; Airflow tries again."""


@dataclasses.dataclass(frozen=True)
class Work:
    """All that an attempt at a stage needs to know, worked out afresh whenever the task is resumed."""

    run: RunRecord
    node: NodeRecord
    sku: Sku
    job: JobRecord
    key: str
    plan: Plan
    agent: AgentFile
    try_number: int
    last_attempt: bool


class MusterStageOperator(SSHRemoteJobOperator):
    """Runs one stage on the node that the run holds. ``grace_s`` (s) is waited beyond the job's deadline."""

    template_fields: Sequence[str] = ()
    template_ext: Sequence[str] = ()
    ui_color = "#d7ecd9"

    def __init__(self, *, stage: str, grace_s: float | None = None, **kwargs: Any) -> None:
        if stage in LOAD_STAGES:
            kwargs.setdefault("pool", DEFAULT_POOL)
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("map_index_template", VERDICT_SHOWN)
        kwargs.setdefault("retry_delay", datetime.timedelta(seconds=settings().retry_seconds))
        super().__init__(ssh_conn_id=settings().ssh_conn_id, command="", **kwargs)
        self.stage = stage
        self.grace_s = GRACE_S if grace_s is None else grace_s
        self._started: Work | None = None

    def execute(self, context: Context) -> Any:
        """Start the stage's job, or find it again, and wait for it in the triggerer."""
        with _told():
            work = self._work(context, begin=True)
            if work.job.state == attempt.FINAL:
                # A worker died between recording the verdict and telling Airflow: nothing is measured twice.
                return self._finish(context, work, _recorded(work.run, self.stage), "")
            try:
                with self._connect(work.node) as client:
                    seen = jobs.look(client, work.node.work_dir, work.key, work.agent.sha256)
                    if seen.state is jobs.State.ABSENT:
                        work = self._start(client, work, seen)
                    else:
                        self.log.info("the job of this attempt is on the node (%s): not started again", seen.state)
                        self._started = work
            except ssh.RemoteError as error:
                return self._unreachable(context, work, Kind.REFUSED, error)
            if seen.state in (jobs.State.ABSENT, jobs.State.RUNNING):
                self._defer(work, seen)
            return self._settle(context, work, Kind.DONE)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Collect, judge and record what the job left behind."""
        try:
            kind = Kind(event["kind"])
        except (KeyError, TypeError, ValueError):
            kind = Kind.DONE
        with _told():
            return self._settle(context, self._work(context, begin=False), kind)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after the trigger; one that failed or ran out of time is no reason to drop what the node has done."""
        if next_method != "execute_complete":
            self.log.warning("the trigger ended without telling why (%s); looking at the node itself", next_kwargs)
            next_method, next_kwargs = "execute_complete", {"event": {}}
        return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """Stop the job if the task is killed while it starts it; once it waits, the trigger's on_kill does that."""
        if self._started is None:
            return
        work = self._started
        try:
            records.record_job(dataclasses.replace(work.job, state=attempt.STOPPED))
            with self._connect(work.node) as client:
                seen = jobs.look(client, work.node.work_dir, work.key, work.agent.sha256)
                jobs.stop(client, seen.work, work.key, work.node.launch)
        except MusterError as error:
            self.log.warning("the job on %s may still run until its deadline: %s", work.node.name, error)

    def _connect(self, node: NodeRecord) -> contextlib.closing[paramiko.SSHClient]:
        hook = NodeSSHHook(node, self.ssh_conn_id, timeout=settings().ssh_timeout_s)
        return contextlib.closing(hook.get_conn())

    def _work(self, context: Context, *, begin: bool) -> Work:
        """Put together what is known of this attempt; ``begin`` moves the node into the stage's state first."""
        ti: Any = context["ti"]
        current = settings()
        run = records.get_run(ti.dag_id, ti.run_id)
        sku = load_sku(run.sku, current.sku_folders)
        if begin and (why := attempt.stopped_by(_earlier(run, sku, self.stage))):
            raise AirflowSkipException(why)
        node = records.begin_stage(ti.dag_id, ti.run_id, self.stage) if begin else records.get_node(run.node)
        lease = records.get_lease(node.name)
        if lease is None or (lease.dag_id, lease.run_id) != (ti.dag_id, ti.run_id):
            raise LeaseLost(f"this run does not hold {node.name} any more; clear it to start over")
        latest = records.get_job(ti.dag_id, ti.run_id, self.stage)
        if begin or latest is None:
            generation = attempt.generation(ti.max_tries, latest)
        else:
            generation = latest.attempt_key
        key = jobs.job_key(ti.dag_id, ti.run_id, ti.task_id, generation)
        if latest is None or latest.attempt_key != generation:
            latest = JobRecord(ti.dag_id, ti.run_id, self.stage, generation, attempt.SUBMITTED, "", fence=lease.token)
            records.record_job(latest)
        plan = attempt.plan(
            key=key,
            node=node.name,
            stage=self.stage,
            level=run.level,
            fence=latest.fence,
            deadline_s=programme.stage_deadline_s(sku, self.stage, run.level),
            calls=self._calls(sku, run, generation, key),
            force_reason=run.forced,
        )
        agent = build_agent(current.home / "agents")
        return Work(run, node, sku, latest, key, plan, agent, ti.try_number, ti.try_number > ti.max_tries)

    def _calls(self, sku: Sku, run: RunRecord, generation: str, key: str) -> tuple[programme.CallSpec, ...]:
        """The stage's probes, or those alone that the judge asked for once more."""
        calls = programme.stage_calls(sku, self.stage, run.level, attempt.seed(key))
        of = attempt.repeated(generation)
        if of is None:
            return calls
        asking = records.get_job(run.dag_id, run.run_id, self.stage, of)
        again = asking.repeat_probes if asking else ()  # none in a job from before they were recorded: then all
        return tuple(call for call in calls if not again or call.probe in again)

    def _start(self, client: paramiko.SSHClient, work: Work, seen: jobs.Look) -> Work:
        """Send the agent if it is not there, end whatever else runs on the node, ask its BMC, and start the job."""
        if jobs.send_agent(client, seen, work.agent.path, work.agent.sha256):
            self.log.info("sent the node side %s", work.agent.sha256)
        for other in jobs.stop_others(client, seen.work, work.key):
            self.log.warning("stopped job %s, which belonged to an attempt or a run that is over", other)
        before = redfish.ask(work.node.bmc, self.stage)
        now = datetime.datetime.now(datetime.UTC)
        folder = jobs.paths(seen.work, work.key).job_dir
        job = dataclasses.replace(
            work.job,
            state=attempt.RUNNING,
            remote_dir=folder,
            boot_id=seen.boot_id,
            started_at=now,
            chassis=before.to_json() if before else "",
        )
        records.record_job(job)
        work = self._started = dataclasses.replace(work, job=job)
        jobs.start(client, seen, work.key, work.plan.to_json(), work.node.launch, work.agent.sha256)
        probes = ", ".join(call.probe for call in work.plan.probes)
        self.log.info("started job %s on %s: %s", work.key, work.node.name, probes)
        return work

    def _defer(self, work: Work, seen: jobs.Look) -> NoReturn:
        started = work.job.started_at.timestamp() if work.job.started_at else time.time()
        deadline_at = started + work.plan.deadline_s
        trigger = MusterJobTrigger(
            ssh_conn_id=self.ssh_conn_id,
            node=dataclasses.asdict(NodeAddress.of(work.node)),
            job_id=work.key,
            work=seen.work,
            boot_id=work.job.boot_id or seen.boot_id,
            deadline_at=deadline_at,
            grace_s=self.grace_s,
            poll_interval=settings().poll_seconds,
            watch=Watch.of(work.job, work.node.bmc),
            removal=launch.remove_container(launch.parse_launch(work.node.launch), work.key),
        )
        # The trigger ends by itself; Airflow's own limit is for a triggerer that does not get to it at all.
        limit = max(60.0, deadline_at - time.time()) + 2 * self.grace_s + 600
        self.defer(trigger=trigger, method_name="execute_complete", timeout=datetime.timedelta(seconds=limit))
        raise AssertionError("defer does not return")

    def _settle(self, context: Context, work: Work, hint: Kind) -> Any:
        try:
            with self._connect(work.node) as client:
                seen = jobs.look(client, work.node.work_dir, work.key, work.agent.sha256)
                end = attempt.ended(seen, hint)
                if end is None:
                    self._defer(work, seen)
                if end.kind is Kind.OVERDUE:
                    jobs.stop(client, seen.work, work.key, work.node.launch)
                collected = jobs.collect(client, seen.work, work.key)
                if collected.result is None:
                    self.log.warning("the job's last words:\n%s", jobs.log_tail(client, seen.work, work.key))
                outcome = self._judge(work, end, collected)
                if collected.result is not None:
                    self._tidy(client, work, seen.work)
        except ssh.RemoteError as error:
            return self._unreachable(context, work, hint, error)
        return self._finish(context, work, *outcome)

    def _tidy(self, client: paramiko.SSHClient, work: Work, folder: str) -> None:
        """Remove the job's folder. The verdict is recorded by now, so trouble here changes nothing about it."""
        try:
            jobs.remove(client, folder, work.key)
        except ssh.RemoteError as error:
            self.log.warning("the job's folder stays on %s until a later run removes it: %s", work.node.name, error)

    def _unreachable(self, context: Context, work: Work, hint: Kind, error: ssh.RemoteError) -> Any:
        """The node could not be asked. Only a node that was lost, or the last attempt, is worth a verdict."""
        lost = hint is Kind.LOST and isinstance(error, (ssh.Unreachable, ssh.CommandTimedOut))
        if not lost and not work.last_attempt:
            raise Inconclusive(str(error)) from error
        end = Ended(Kind.LOST if lost else Kind.REFUSED, str(error))
        return self._finish(context, work, *self._judge(work, end, jobs.Collected(None, None)))

    def _judge(self, work: Work, end: Ended, collected: jobs.Collected) -> tuple[Judgement, str]:
        """Judge and record; gives the judgement, and the result's own word for how the job ended."""
        sent, bad = attempt.checked_result(collected.result, work.plan)
        for note in collected.notes:
            self.log.warning("%s", note)
        told = self._chassis(work) if sent else None
        losses, neighbours = 0, ""
        if end.kind is Kind.LOST:
            losses = lost_jobs(work.run.dag_id, work.run.run_id, LOAD_STAGES) + 1
            neighbours = reachable_neighbours(work.node)
        evidence = attempt.evidence(
            end.kind, stage=self.stage, loads=self.stage in LOAD_STAGES, losses=losses, neighbours=neighbours
        )
        why_missing = "" if sent else bad or "; ".join(collected.notes) or end.sentence
        case = fresh_case(work.run, work.node, work.sku, self.stage, Collected(sent, told, why_missing, evidence))
        judgement = judgement_of(case, work.node.name)
        raw = collected.result if sent else None
        repeat = judgement.repeat if sent and repeats.may_go_on(sent, judgement.repeat) else ()
        stored = records.record_stage(
            work.run.dag_id,
            work.run.run_id,
            case.result,
            judgement,
            raw,
            collected.telemetry,
            attempts=work.try_number,
            chassis=told.to_json().encode() if told else None,
        )
        judgement = stored.judgement
        now = datetime.datetime.now(datetime.UTC)
        state = attempt.state_after(end.kind, judgement.verdict, repeat=bool(repeat))
        records.record_job(
            dataclasses.replace(work.job, state=state, ended_at=now, note=end.sentence[:500], repeat_probes=repeat)
        )
        for sentence in stored.swapped:
            self.log.warning("%s", sentence)
        return dataclasses.replace(judgement, repeat=repeat), sent.end if sent else ""

    def _chassis(self, work: Work) -> Chassis | None:
        """What the node's BMC told before and during the load, and tells now, straight after it; None without a BMC."""
        now = redfish.ask(work.node.bmc, self.stage)
        if now is None:
            return None
        told = with_earlier(work.job.chassis, now)
        if told.trouble:
            self.log.warning("%s", told.trouble)
        return told

    def _finish(self, context: Context, work: Work, judgement: Judgement, job_end: str) -> Any:
        """Show the verdict, and end the task by it."""
        # Not returned as well: that would be the same once more, and only where the task succeeds.
        context["ti"].xcom_push(key="verdict", value=_summary(judgement))
        context["verdict"] = str(judgement.verdict)  # type: ignore[typeddict-unknown-key]
        self.log.info("%s %s: %s", self.stage, judgement.verdict, judgement.reason)
        for finding in judgement.findings:
            self.log.warning("finding (%s): %s", finding.severity, finding.summary)
        for missing in judgement.coverage.missing:
            self.log.warning("not measured: %s", missing)
        what = attempt.whats_next(judgement.verdict, job_end, work.last_attempt, repeat=bool(judgement.repeat))
        if what is Next.REPEAT:
            # No attempt of Airflow's is spent on it: nothing has gone wrong.
            self.log.info("once more: %s", ", ".join(judgement.repeat))
            return self.execute(context)
        if what is Next.FAIL:
            raise AirflowFailException(f"{judgement.verdict}: {judgement.reason}")
        if what is Next.RETRY:
            raise Inconclusive(f"{judgement.verdict}: {judgement.reason}")


def _earlier(run: RunRecord, sku: Sku, stage: str) -> list[tuple[str, Verdict | None, bool]]:
    """(stage, verdict, blocking) of the stages before ``stage``; the verdict is None if this run has none."""
    before = programme.STAGES[: programme.STAGES.index(stage)]
    judged = {each.stage: each.verdict for each in records.run_stages(run.dag_id, run.run_id)}
    return [(name, judged.get(name), programme.blocking(sku, name)) for name in before]


def _recorded(run: RunRecord, stage: str) -> Judgement:
    report = records.run_report(run.dag_id, run.run_id)
    return next(each.judgement for each in report.stages if each.judgement.stage == stage)


def _summary(judgement: Judgement) -> dict[str, Any]:
    """The verdict as it stands in XCom."""
    coverage = judgement.coverage
    return {
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "coverage": {"required": coverage.required, "measured": coverage.measured, "judged": coverage.judged},
        "findings": [finding.summary for finding in judgement.findings[:20]],
        "simulated": judgement.simulated,
        "sku": f"{judgement.sku} {judgement.sku_version}",
    }


@contextlib.contextmanager
def _told() -> Any:
    """What a person has to put right fails the task at once, in one sentence; trouble of ours is tried again."""
    try:
        yield
    except (DifferentMachine, IllegalMove, LeaseLost, SkuError, UnknownRun, launch.BadLaunch) as error:
        raise AirflowFailException(str(error)) from error
    except MusterError as error:
        raise Inconclusive(str(error)) from error
