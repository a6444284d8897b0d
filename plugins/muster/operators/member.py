"""One member of a block as one mapped Airflow task: the same remote job as a stage, with the part its block gave it.

It judges nobody: what a member measured says something only beside the others'. Until ``operators.block`` has heard
them all, the records say INCONCLUSIVE, so that a run which ends in between has passed nobody.
"""

from __future__ import annotations

import dataclasses
import datetime
import posixpath
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.errors import LeaseLost, MusterError
from muster.lifecycle.transitions import CLUSTER_STAGES
from muster.operators.stage import MusterStageOperator, Work
from muster.records import JobRecord, NodeRecord
from muster.remote import attempt, jobs
from muster.remote.attempt import Ended
from muster.remote.zipapp import build_agent
from muster.settings import settings
from muster_criteria.cluster.model import Measurements
from muster_criteria.cluster.plan import cluster_calls, cluster_deadline_s
from muster_criteria.cluster.presence import accused
from muster_criteria.measured import StageResult
from muster_criteria.model import Coverage, Judgement, Verdict
from muster_criteria.sku_files.skus import load_sku

if TYPE_CHECKING:
    import paramiko
    from airflow.sdk.definitions.context import Context

STAGE = CLUSTER_STAGES[0]

UNJUDGED = "measured, and to be judged beside the other members of its block"

GRACE_S = 120.0
"""How long after a member's deadline it is still waited for: shorter than a stage's, since a whole block waits."""

FAREWELL_S = 10.0
"""A member that was lost to the others and still works hears of it, and ends by itself in this time."""

RETRY_S = 5
"""A retry after trouble of ours finds the job that runs already; later than this the others would not be there."""


class MusterMemberOperator(MusterStageOperator):
    """Takes one node through the cluster stage of the block that its run holds. Mapped over ``member``.

    The block is what the task ``claims`` has pushed to XCom under ``block``: members by rank, place and port of the
    meeting, the session's secret, the seed.
    """

    def __init__(self, *, member: str, claims: str, **kwargs: Any) -> None:
        kwargs.setdefault("retry_delay", datetime.timedelta(seconds=RETRY_S))
        super().__init__(stage=STAGE, grace_s=GRACE_S, **kwargs)
        self.member = member
        self.claims = claims

    def execute(self, context: Context) -> Any:
        """Start the member's job, or find it again, and wait for it in the triggerer."""
        ti: Any = context["ti"]
        latest = records.get_job(ti.dag_id, ti.run_id, STAGE, node=self.member)
        if latest and latest.state == attempt.FINAL and attempt.generation(ti.max_tries, latest) == latest.attempt_key:
            # A worker died between recording the result and telling Airflow: nothing is measured twice.
            return {"member": self.member, "end": "recorded before"}
        return super().execute(context)

    def _work(self, context: Context, *, begin: bool) -> Work:
        ti: Any = context["ti"]
        current = settings()
        run = records.get_run(ti.dag_id, ti.run_id, node=self.member)
        sku = load_sku(run.sku, current.sku_folders)
        if begin:
            node = records.begin_stage(ti.dag_id, ti.run_id, STAGE, node=self.member)
        else:
            node = records.get_node(self.member)
        lease = records.get_lease(node.name)
        if lease is None or (lease.dag_id, lease.run_id) != (ti.dag_id, ti.run_id):
            raise LeaseLost(f"this run does not hold {node.name} any more; clear it to start over")
        latest = records.get_job(ti.dag_id, ti.run_id, STAGE, node=self.member)
        if latest is None or begin:
            generation = attempt.generation(ti.max_tries, latest)
        else:
            generation = latest.attempt_key
        key = jobs.job_key(ti.dag_id, ti.run_id, f"{ti.task_id}[{self.member}]", generation)
        if latest is None or latest.attempt_key != generation:
            latest = JobRecord(
                ti.dag_id, ti.run_id, STAGE, generation, attempt.SUBMITTED, "", fence=lease.token, node=self.member
            )
            records.record_job(latest)
        block: dict[str, Any] = ti.xcom_pull(task_ids=self.claims, key="block")
        calls = cluster_calls(
            block["members"],
            master_addr=block["master_addr"],
            master_port=block["master_port"],
            session=block["session"],
            level=run.level,
            seed=block["seed"],
        )
        plan = attempt.plan(
            key=key,
            node=self.member,
            stage=STAGE,
            level=run.level,
            fence=latest.fence,
            deadline_s=cluster_deadline_s(run.level),
            calls=calls[self.member],
            force_reason=run.forced,
        )
        # Always the last attempt: a member that is measured again alone would meet nobody.
        return Work(run, node, sku, latest, key, plan, build_agent(current.home / "agents"), ti.try_number, True)

    def _judge(self, work: Work, end: Ended, collected: jobs.Collected) -> tuple[Judgement, str]:
        """Record what the member sent, not judged yet; only what befell the machine itself counts already."""
        from muster_criteria.stage.findings import evidence_finding

        result, bad = attempt.checked_result(collected.result, work.plan)
        for note in collected.notes:
            self.log.warning("%s", note)
        if result is not None:
            told = result.notes[0] if result.end != "completed" and result.notes else ""
        else:
            told = bad or "; ".join(collected.notes) or end.sentence
        happened = attempt.evidence(end.kind, stage="cluster validation", loads=True, losses=1, neighbours="")
        judgement = Judgement(
            stage=STAGE,
            level=work.run.level,
            verdict=Verdict.FAIL if happened else Verdict.INCONCLUSIVE,
            reason=happened[0].sentence if happened else told or UNJUDGED,
            coverage=Coverage(1, 0, 0, (told or UNJUDGED,)),
            findings=tuple(evidence_finding(each) for each in happened),
            observations=(),
            simulated=work.node.simulated or (result is not None and result.simulated),
            sku=work.sku.name,
            sku_version=work.sku.revision,
        )
        raw = collected.result if result else None
        stored = records.record_stage(
            work.run.dag_id, work.run.run_id, result, judgement, raw, collected.telemetry, work.try_number,
            node=self.member,
        )  # fmt: skip
        now = datetime.datetime.now(datetime.UTC)
        state = attempt.LOST if end.kind is attempt.Kind.LOST else attempt.FINAL
        records.record_job(dataclasses.replace(work.job, state=state, ended_at=now, note=end.sentence[:500]))
        for sentence in stored.swapped:
            self.log.warning("%s", sentence)
        self._end_the_lost(work, result)
        return judgement, result.end if result else ""

    def _end_the_lost(self, work: Work, result: StageResult | None) -> None:
        """End the jobs of members that the others have lost: one that hangs would hold the block until its deadline.

        All of them name the same, so the first of those who are left does it.
        """
        lost = accused(Measurements(result))
        left = [name for name in work.plan.probes[0].params["members"] if name not in lost]
        if left[:1] != [self.member]:
            return
        for name in sorted(lost):
            job = records.get_job(work.run.dag_id, work.run.run_id, STAGE, node=name)
            if job is None or job.state != attempt.RUNNING:
                continue
            key, node = posixpath.basename(job.remote_dir), records.get_node(name)
            try:
                with self._connect(node) as client:
                    self._end_unless_over(client, node, key, work.agent.sha256)
            except MusterError as error:
                self.log.warning("%s was lost to the block and cannot be reached to end its job: %s", name, error)

    def _end_unless_over(self, client: paramiko.SSHClient, node: NodeRecord, key: str, agent_sha256: str) -> None:
        until = time.monotonic() + FAREWELL_S
        while (seen := jobs.look(client, node.work_dir, key, agent_sha256)).state is jobs.State.RUNNING:
            if time.monotonic() > until:
                self.log.warning("%s was lost to the block and its job hangs: ending it", node.name)
                jobs.stop(client, seen.work, key, node.launch)
                return
            time.sleep(1.0)

    def _finish(self, context: Context, work: Work, judgement: Judgement, job_end: str) -> Any:
        """The task shows whether the member took part; the verdict is the block's."""
        if job_end == "completed":
            return {"member": self.member, "end": job_end}
        raise AirflowFailException(f"{self.member} did not take part: {judgement.reason}")
