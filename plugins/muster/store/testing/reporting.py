"""Loads the contents of a run's report, and keeps which runs were reported."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer

from muster.model.runs import RunKey
from muster.model.stages import in_order
from muster.model.states import BROKEN, State
from muster.rules import run_report as building
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, FindingRow, JobRow, MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.decisions import replacing
from muster.store.decisions.waivers import standing
from muster.store.decisions.withdrawals import breaker_now
from muster.store.output import charts
from muster.store.testing.runs import to_job
from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_criteria.model import Coverage, Finding, Gap, Judgement, Lack, Observation, Verdict
from muster_reports.model import RunReport, StageReport

REPORT_WITHIN = datetime.timedelta(days=7)
"""How long after a run's end a missing report is made up for: an outage may last a weekend; later it is useless."""


def run(
    key: RunKey, *, run_url: str | None = None, node: str = "", attached: bool = True, fabric: Fabric | None = None,
    training: Training | None = None,
) -> RunReport:  # fmt: skip
    """Everything a report of the run shows, for ``node`` if it tests several. ``attached``: with its JSON.

    ``fabric``, ``training``: from ``store.rounds`` and ``store.trainings``; all members of a block share them. Raises
    UnknownRun.
    """
    with reading() as session:
        run = access.run_row(session, key, node)
        row = access.node_row(session, run.node)
        query = select(StageRow).where(StageRow.run == run.id, StageRow.current).options(undefer(StageRow.charts))
        stages = session.scalars(query)
        jobs = session.scalars(select(JobRow).where(JobRow.run == run.id).order_by(JobRow.id)).all()
        return building.assemble(
            access.to_run(run),
            access.to_node(row),
            {stage.stage: _stage(session, stage) for stage in stages},
            {job.stage: to_job(run, job) for job in jobs},
            (run.identity, run.environment),
            building.waiver_sentences(standing(session, row)),
            breaker_now(session, simulated=run.simulated),
            began=min((job.started_at for job in jobs if job.started_at), default=run.started_at),
            run_url=run_url,
            now=access.now(),
            attached=attached,
            fabric=fabric,
            training=training,
            replacement=_replacement(session, row),
            why_left=_why_left(session, run),
        )


def _replacement(session: Session, node: NodeRow) -> str:
    """Which node is proposed for the place of one that left production; "" if none is."""
    proposed = replacing.proposed(session, node.name) if State(node.state) in BROKEN else None
    return f"{proposed.spare} {proposed.sentence}. To let it: {proposed.command}" if proposed else ""


def _why_left(session: Session, run: RunRow) -> str:
    """Why the run ended the node's service though it found no failure; "" if it did not."""
    left = (access.GOES, EventRow.to_state == State.QUALIFIED)
    mine = (EventRow.node == run.node, EventRow.evidence["run"].as_string() == str(run.key))
    why = session.scalar(select(EventRow.reason).where(*mine, *left).order_by(EventRow.id.desc()).limit(1)) or ""
    return why.removesuffix(f": {run.headline}")


def reported(key: RunKey, *, node: str = "") -> None:
    """Note that the report of the run's verdict is queued, for ``node`` if it tests several. A run that has not ended
    stays unreported. Raises UnknownRun.
    """
    with writing() as session:
        run = access.run_row(session, key, node)
        run.reported_at = access.now() if run.ended_at is not None else None


def unreported() -> list[RunKey]:
    """The runs that ended within ``REPORT_WITHIN`` and whose verdict has no report queued, sorted."""
    recent = RunRow.ended_at >= access.now() - REPORT_WITHIN
    query = select(RunRow.dag_id, RunRow.run_id).where(recent, RunRow.reported_at.is_(None)).distinct()
    with reading() as session:
        return sorted(RunKey(dag_id, run_id) for dag_id, run_id in session.execute(query))


def judgements(key: RunKey, *, node: str = "", observed: bool = True) -> dict[str, Judgement]:
    """The current judgement of each judged stage of the run, of ``node`` if it tests several. Raises UnknownRun.

    ``observed``: with its observations, which may be thousands.
    """
    with reading() as session:
        run = access.run_row(session, key, node)
        rows = session.scalars(select(StageRow).where(StageRow.run == run.id, StageRow.current))
        found = {row.stage: _judgement(session, row, observed=observed) for row in rows}
    return {stage: found[stage] for stage in in_order(found)}


def _judgement(session: Session, row: StageRow, *, observed: bool = True) -> Judgement:
    return Judgement(
        stage=row.stage, level=row.level, verdict=Verdict(row.verdict), reason=row.reason,
        coverage=Coverage(row.required, row.measured, row.judged, _gaps(row.missing), _gaps(row.unjudged)),
        findings=_findings(session, row), observations=_observations(session, row) if observed else (),
        simulated=row.simulated, sku=row.sku, sku_version=row.sku_version, notes=tuple(row.notes),
        snapshot=row.snapshot,
    )  # fmt: skip


def _stage(session: Session, row: StageRow) -> StageReport:
    started, ended = row.started_at, row.ended_at
    return StageReport(
        judgement=_judgement(session, row),
        started_at=started,
        duration_s=(ended - started).total_seconds() if started and ended else None,
        probes=tuple((probe, status, reason) for probe, status, reason in row.probes),
        telemetry=charts.from_json(row.charts),
        attempts=row.attempts,
        end=row.job_end,
    )  # fmt: skip


def _gaps(stored: list[dict[str, Any]]) -> tuple[Gap, ...]:
    return tuple(Gap(Lack(each["code"]), each["why"], each["what"], each["device"]) for each in stored)


def _findings(session: Session, stage: StageRow) -> tuple[Finding, ...]:
    rows = session.scalars(select(FindingRow).where(FindingRow.stage == stage.id).order_by(FindingRow.id))
    return tuple(access.to_finding(row) for row in rows)


def _observations(session: Session, stage: StageRow) -> tuple[Observation, ...]:
    rows = session.scalars(
        select(MeasurementRow)
        .where(MeasurementRow.stage == stage.id, MeasurementRow.judged.is_not(None))
        .order_by(MeasurementRow.judged)
    )
    return tuple(map(access.to_observation, rows))
