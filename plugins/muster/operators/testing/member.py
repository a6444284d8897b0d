"""One member of a block as one mapped Airflow task.

A member's measurements can only be judged together with the others', so its verdict is INCONCLUSIVE until
``operators.testing.block`` judges all members.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.integration import logins
from muster.model.runs import UNJUDGED, Run, RunKey
from muster.model.stages import CLUSTER_STAGES
from muster.operators.testing.remote_job import RemoteJobOperator, ToJudge, replanned
from muster.remote.job import attempt as remote
from muster.remote.job import outcome
from muster.remote.job.attempt import Attempt, Programme
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.outcome import Ended
from muster.settings import settings
from muster_criteria.cluster.model import Measurements
from muster_criteria.cluster.plan import Asked, cluster_calls, cluster_deadline_s
from muster_criteria.cluster.presence import PROBES, reported_lost
from muster_criteria.measured import StageResult
from muster_criteria.model import Coverage, Gap, Judgement, Lack, Verdict
from muster_criteria.sku_files.model import Sku

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

STAGE = CLUSTER_STAGES[0]


GRACE_S = 120.0
"""How long (s) to wait after a member's deadline: shorter than for a stage, since the whole block waits."""

PATIENCE_S = 10.0
"""A member that lost its connection ends by itself within this time (s), unless it hangs."""

RETRY_DELAY = datetime.timedelta(seconds=5)
"""Delay of a retry after a controller error: the other members give up soon after. The DAG file sets it, since
``partial`` passes Airflow's default of five minutes."""


class MusterMemberOperator(RemoteJobOperator):
    """Takes one node through the cluster stage of the block that its run holds. Mapped over ``member``.

    The block's rendezvous is in the records (``store.attempts.block_of``).
    """

    def __init__(self, *, member: str, **kwargs: Any) -> None:
        super().__init__(stage=STAGE, grace_s=GRACE_S, member=member, **kwargs)

    def _programme(self, context: Context, run: Run, sku: Sku, key: AttemptKey, job_key: str) -> Programme:
        block = store.attempts.block_of(run.key)
        asked = Asked(**block["asked"])
        calls = cluster_calls(
            sku.block,
            block["members"],
            master_addr=block["master_addr"],
            master_ports=block["ports"],
            session=block["session"],
            level=run.level,
            seed=block["seed"],
            shared_path=settings().shared_path,
            asked=asked,
        )
        deadline_s = cluster_deadline_s(sku.block, run.level, len(block["members"]), asked)
        return Programme(calls[self.member], deadline_s)

    def _is_last(self, context: Context) -> bool:
        """Always true: a member cannot be measured again without the others."""
        return True

    def _to_judge(self, attempt: Attempt, end: Ended, result: StageResult | None, why_missing: str) -> ToJudge:
        """INCONCLUSIVE until the block is judged, but FAIL on evidence about the machine itself."""
        from muster_criteria.stage.findings import evidence_finding

        trouble = why_missing
        if result is not None and result.end != "completed" and result.notes:
            trouble = result.notes[0]
        evidence = outcome.evidence(
            end.kind, job=attempt.job_key, stage="cluster validation", loads=True, losses=1, neighbours=""
        )
        gap = Gap(Lack.NO_RESULT, trouble) if trouble else Gap(Lack.UNJUDGED, UNJUDGED)
        if result is not None and not evidence and (why := replanned(attempt)):
            gap = Gap(Lack.REPLANNED, why)
        judgement = Judgement(
            stage=STAGE,
            level=attempt.run.level,
            verdict=Verdict.FAIL if evidence else Verdict.INCONCLUSIVE,
            reason=evidence[0].sentence if evidence else gap.why,
            coverage=Coverage(1, 0, 0, (gap,)),
            findings=tuple(evidence_finding(each) for each in evidence),
            observations=(),
            simulated=attempt.node.simulated or (result is not None and result.simulated),
            sku=attempt.sku.name,
            sku_version=attempt.sku.revision,
        )
        return ToJudge(judgement, result)

    def _state(self, end: Ended, judgement: Judgement) -> str:
        return outcome.final(end.kind)

    def _after(self, attempt: Attempt, result: StageResult | None) -> None:
        """Stop the jobs of lost members: one that hangs would hold the block until its deadline.

        When a member is lost, the others' jobs end. A member that was itself cut off also reports the others as lost,
        so nothing is stopped while half of the rest, or more, are at work. The report of a member that was never let in
        stops nothing until all others have ended.
        """
        key, rows = attempt.task.key, Measurements(result)
        lost = reported_lost(rows)
        left = [name for name in attempt.plan.probes[0].params["members"] if name not in lost]
        at_work = sum(name != self.member and _at_work(key, name) for name in left)
        if not lost or 2 * at_work >= len(left) or (at_work and not reported_lost(rows, PROBES)):
            return
        for name in sorted(lost):
            job = store.runs.get_job(key, STAGE, node=name)
            if job is None or job.state != outcome.RUNNING:
                continue
            try:
                remote.stop_hung(job, logins.connect, PATIENCE_S)
            except Exception as error:
                self.log.warning("%s was lost to the block, and its job cannot be stopped: %s", name, error)

    def _finish(self, context: Context, attempt: Attempt, recorded: Judgement, job_end: str) -> Any:
        """Fails the task if the member did not complete; the block's judge decides the verdict."""
        if job_end == "completed":
            return {"member": self.member, "end": job_end}
        raise AirflowFailException(f"{self.member} did not take part: {recorded.reason}")


def _at_work(key: RunKey, name: str) -> bool:
    job = store.runs.get_job(key, STAGE, node=name)
    return job is not None and job.state in (outcome.SUBMITTED, outcome.RUNNING)
