"""A run's records put together into what its report shows."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.lifecycle import transitions as lifecycle
from muster.lifecycle.transitions import State
from muster.records.database import access
from muster.records.database.engine import reading
from muster.records.database.models import FindingRow, Job, MeasurementRow, Node, Run, StageRecord
from muster.records.output import charts
from muster.records.waivers import holding, machine_of
from muster_criteria.context.waivers import concerns
from muster_criteria.model import (
    Action,
    Coverage,
    FaultClass,
    Finding,
    Judgement,
    Observation,
    Severity,
    Variant,
    Verdict,
)
from muster_reports.model import RunReport, StageReport


def run_report(dag_id: str, run_id: str, *, run_url: str | None = None, node: str = "") -> RunReport:
    """Everything a report of the run shows, of ``node`` if it tests several. Raises UnknownRun."""
    with reading() as session:
        run = access.run_row(session, dag_id, run_id, node)
        row = access.node_row(session, run.node)
        rows = {
            row.stage: row
            for row in session.scalars(select(StageRecord).where(StageRecord.run == run.id, StageRecord.current))
        }
        order = [*lifecycle.STAGES, *sorted(set(rows) - set(lifecycle.STAGES))]
        stages = tuple(_stage(session, rows[name]) for name in order if name in rows)
        report = RunReport(
            node=run.node, sku=run.sku, run_id=run.run_id, dag_id=run.dag_id, reason=run.reason,
            simulated=run.simulated or any(each.judgement.simulated for each in stages),
            verdict=Verdict(run.verdict or Verdict.INCONCLUSIVE),
            headline=run.headline or "The run has not ended yet.",
            state_before=run.state_before, state_after=run.state_after or row.state,
            started_at=run.started_at, ended_at=run.ended_at or access.now(),
            identity=_pairs(run.identity), environment=_pairs(run.environment), stages=stages,
            not_run=tuple((name, _why_not(session, run, name)) for name in run.required_stages if name not in rows),
            waivers=_waivers(session, row), shadow=row.shadow, forced=run.forced, run_url=run_url,
            held=run.held, breaker=_breaker(session, run.simulated),
        )  # fmt: skip
    return dataclasses.replace(report, result_json=report_json(report))


def _breaker(session: Session, simulated: bool) -> str:
    from muster.records.withdrawals import breaker_now  # which needs the lifecycle of runs, as this does not

    state = breaker_now(session, simulated=simulated)
    return f"{state.state}: {state.sentence}"


def report_json(report: RunReport) -> str:
    """The report as JSON, machine-readable: all but the charts' points."""
    content = dataclasses.asdict(report)
    del content["result_json"]
    for stage in content["stages"]:
        del stage["telemetry"]
    return json.dumps({"schema": "muster.report/1", **content}, default=_plain, indent=1)


def _stage(session: Session, row: StageRecord) -> StageReport:
    started, ended = row.started_at, row.ended_at
    return StageReport(
        judgement=Judgement(
            stage=row.stage, level=row.level, verdict=Verdict(row.verdict), reason=row.reason,
            coverage=Coverage(row.required, row.measured, row.judged, tuple(row.missing), tuple(row.unjudged)),
            findings=_findings(session, row), observations=_observations(session, row),
            simulated=row.simulated, sku=row.sku, sku_version=row.sku_version, notes=tuple(row.notes),
            snapshot=row.snapshot,
        ),
        started_at=started,
        duration_s=(ended - started).total_seconds() if started and ended else None,
        probes=tuple((probe, status, reason) for probe, status, reason in row.probes),
        telemetry=charts.from_json(row.charts),
        attempts=row.attempts,
        end=row.job_end,
    )  # fmt: skip


def _findings(session: Session, stage: StageRecord) -> tuple[Finding, ...]:
    rows = session.scalars(select(FindingRow).where(FindingRow.stage == stage.id).order_by(FindingRow.id))
    return tuple(finding_of(row) for row in rows)


def finding_of(row: FindingRow) -> Finding:
    """The finding as a value, with its id, and the waiver that held when it was judged."""
    return Finding(
        rule=row.rule, metric=row.metric, device=row.device, severity=Severity(row.severity),
        fault_class=FaultClass(row.fault_class), action=Action(row.action), observed=row.observed,
        expected=row.expected, source=row.source, summary=row.summary, labels=_labels(row.labels),
        confidence=row.confidence, id=row.finding_id, waived=row.waived, measurements=tuple(row.measurements),
        variant=Variant(row.variant),
    )  # fmt: skip


def _observations(session: Session, stage: StageRecord) -> tuple[Observation, ...]:
    rows = session.scalars(
        select(MeasurementRow)
        .where(MeasurementRow.stage == stage.id, MeasurementRow.judged.is_not(None))
        .order_by(MeasurementRow.judged)
    )
    return tuple(
        Observation(
            probe=row.probe, metric=row.metric, device=row.device, unit=row.unit, value=row.value, text=row.text,
            labels=_labels(row.labels), samples=row.samples, spread=row.spread, floor=row.floor, ceiling=row.ceiling,
            source=row.source, ok=bool(row.ok), note=row.note,
        )
        for row in rows
    )  # fmt: skip


def _why_not(session: Session, run: Run, stage: str) -> str:
    job = session.scalar(select(Job).where(Job.run == run.id, Job.stage == stage).order_by(Job.id.desc()))
    if job is not None:
        return f"begun, but never judged ({job.note or job.state})"
    failed = session.scalar(
        select(StageRecord.stage).where(
            StageRecord.run == run.id, StageRecord.current, StageRecord.verdict == str(Verdict.FAIL)
        )
    )
    return f"{failed} failed before it" if failed else "the run ended before it"


def _waivers(session: Session, node: Node) -> tuple[str, ...]:
    machine = machine_of(session, node)
    told = []
    for waiver in holding(session, access.now()):
        if concerns(waiver, machine):
            labels = ", ".join(f"{key} {value}" for key, value in waiver.labels)
            what = f"{waiver.rule} of {waiver.metric}{f' ({labels})' if labels else ''} on {waiver.device}"
            told.append(f"{what} ({waiver.finding}) is waived {waiver}")
    return tuple(told)


def _labels(labels: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(key), str(value)) for key, value in labels.items()))


def _pairs(facts: dict[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for key, value in sorted(facts.items()):
        if isinstance(value, dict):
            pairs.extend(_pairs(value, f"{prefix}{key} "))
        elif value not in (None, ""):
            pairs.append((f"{prefix}{key}", str(value)))
    return tuple(pairs)


def _plain(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(State(value))
