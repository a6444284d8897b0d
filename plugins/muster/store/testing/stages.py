"""Storing a stage: measurements, findings, verdict and raw bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, inspect, update
from sqlalchemy.orm import Session

from muster.model.runs import RunKey
from muster.model.states import SERVING, State
from muster.rules.identity import as_known
from muster.rules.lifecycle.waivers import Standing
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import ArtifactRow, FindingRow, MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.decisions import certificates, waivers
from muster.store.fleet import goldens, suspects
from muster.store.fleet.revisions import keep_revision
from muster.store.machines.contested import unsure
from muster.store.machines.parts import current_serials, place
from muster.store.output import charts
from muster.store.testing.runs import require_lease
from muster_criteria.model import Judgement, Observation, Severity

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult

RESULT = "result"
TELEMETRY = "telemetry"
CHASSIS = "chassis"

_Key = tuple[str, str, str, tuple[tuple[str, str], ...]]


@dataclasses.dataclass(frozen=True)
class Sent:
    """What the node sent for an attempt at a stage.

    ``result``: None if the node returned none. ``raw``, ``telemetry``: its bytes, as the node sent them. ``chassis``:
    the readings of its BMC. ``attempts``: how often the stage was tried. ``refused``: as another machine's.
    """

    result: StageResult | None = None
    raw: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    chassis: bytes | None = None
    refused: bool = False


class Recording:
    """A stage that is being stored. Call ``standing`` just before the verdict is made, then ``write`` it."""

    def __init__(self, key: RunKey, sent: Sent, node: str, stack: contextlib.ExitStack) -> None:
        self._key, self._sent, self._node, self._stack = key, sent, node, stack
        self._charts = charts.to_json(charts.chart_series(sent.telemetry) if sent.telemetry else [])
        self.swapped: tuple[str, ...] = ()
        """A sentence for each part that the result shows swapped."""

    def standing(self) -> Standing:
        """Begin the transaction, and store which machine sent the result.

        Returns the waivers that hold for the machine; they cannot change until the transaction ends.
        """
        self._session = session = self._stack.enter_context(writing())
        self._run = run = access.run_row(session, self._key, self._node)
        self._row = row = access.node_row(session, run.node, lock=True)
        require_lease(session, run)
        self.swapped = tuple(_observe(session, run, row, self._sent.result)) if self._sent.result is not None else ()
        # Which waivers apply depends on the parts that the node reported just now.
        serials = current_serials(session, row.name)
        self._unsure = unsure(serials, self._sent.result)
        return waivers.standing(session, row, self._sent.result, serials)

    def write(self, judgement: Judgement) -> None:
        """Store every measurement, the findings, the verdict with its coverage, the raw bytes and the charts."""
        session, run, row, result = self._session, self._run, self._row, self._sent.result
        keep_revision(session, judgement.sku, judgement.sku_version)
        stage = _stage_row(run, self._sent, judgement)
        stage.charts = self._charts
        _supersede(session, run, stage)
        session.add(stage)
        session.flush()
        stage.origin = stage.id
        _store_rows(session, stage, run.node, result, judgement)
        suspects.mark(session, run, judgement, self._unsure)
        if any(each.severity is Severity.CRITICAL for each in judgement.findings) and State(row.state) in SERVING:
            access.recheck(session, row.name, f"run {run.run_id} found it")
        if result is not None and result.simulated <= row.simulated:
            goldens.observe(session, run, result, self._unsure, simulated=row.simulated)
        _store_bytes(session, stage, self._sent)


@contextlib.contextmanager
def recording(key: RunKey, sent: Sent, node: str = "") -> Iterator[Recording]:
    """Store a stage whose verdict is made within the block. ``node``: which one, if the run tests several.

    The same raw result again (a retried task) replaces itself; any other supersedes the stage's former verdict, which
    is kept. Stores nothing if it raises: LeaseLost if the run does not hold the node, DifferentMachine if the result
    comes from another machine, UnknownRun.
    """
    with contextlib.ExitStack() as stack:
        yield Recording(key, sent, node, stack)


def supersede(
    session: Session, run: RunRow, node: NodeRow, former: StageRow, result: StageResult, judgement: Judgement
) -> None:
    """Make ``judgement`` the stage's current verdict instead of ``former``, which is kept.

    ``result``: the result behind both. Times of measurement, stored bytes and charts are taken over.
    """
    keep_revision(session, judgement.sku, judgement.sku_version)
    former.current = False
    session.flush()
    same = {column.key: getattr(former, column.key) for column in inspect(StageRow).column_attrs}
    del same["id"]
    verdict = _verdict_columns(judgement)
    first = f"{former.verdict} at first; re-evaluated on {access.now():%Y-%m-%d %H:%M} UTC with newer peer statistics."
    stage = StageRow(**{**same, **verdict, "current": True, "notes": [*verdict["notes"], first]})
    session.add(stage)
    session.flush()
    _store_rows(session, stage, run.node, result, judgement)
    suspects.mark(session, run, judgement, unsure(current_serials(session, node.name), result))
    session.execute(update(ArtifactRow).where(ArtifactRow.stage == former.id).values(stage=stage.id))


def _observe(session: Session, run: RunRow, node: NodeRow, result: StageResult) -> list[str]:
    """Store the machine's serials, identity and environment, and whether it is simulated, from the result."""
    identity = dict(result.identity)
    serials = identity.get("serials")
    swapped = []
    if isinstance(serials, dict):
        swapped = place(session, node.name, {slot: serial for slot, serial in serials.items() if serial})
        identity["serials"] = as_known(serials, current_serials(session, node.name))
    for sentence in swapped:
        access.remark(session, node, "muster", sentence, {"run": run.run_id})
    if result.simulated:
        # Only a person says that a node is simulated. The run is marked, and on a real node it proves nothing.
        run.simulated = True
    run.identity = {**run.identity, **identity}
    run.environment = {**run.environment, **result.environment}
    if run.environment and run.machine == node.machine:
        node.environment = {**node.environment, **run.environment}  # not each run measures all of it
    certificates.compare(session, node, result.environment)
    node.contact_at = access.now()
    return swapped


def _stage_row(run: RunRow, sent: Sent, judgement: Judgement) -> StageRow:
    result = sent.result
    return StageRow(
        run=run.id, node=run.node, machine=run.machine, stage=judgement.stage, level=judgement.level, current=True,
        **_verdict_columns(judgement),
        simulated=judgement.simulated or (result is not None and result.simulated),
        attempts=sent.attempts, recorded_at=access.now(),
        started_at=_moment(result.started_at) if result else None,
        ended_at=_moment(result.ended_at) if result else None,
        job_end=result.end if result else access.OTHER_MACHINE if sent.refused else "",
        agent_sha256=result.agent_sha256 if result else "",
        probes=[[each.probe, each.status, each.reason] for each in result.probes] if result else [],
        environment=run.environment,  # a person may replace a driver before the run's next stage
        result_sha256=hashlib.sha256(sent.raw).hexdigest() if sent.raw else "",
    )  # fmt: skip


def _verdict_columns(judgement: Judgement) -> dict[str, Any]:
    """The columns of a stage's row that hold its verdict, and the SKU and peers that it was judged by."""
    coverage = judgement.coverage
    return {
        "verdict": str(judgement.verdict), "reason": judgement.reason, "notes": list(judgement.notes),
        "required": coverage.required, "measured": coverage.measured, "judged": coverage.judged,
        "missing": [dataclasses.asdict(gap) for gap in coverage.missing],
        "unjudged": [dataclasses.asdict(gap) for gap in coverage.unjudged],
        "sku": judgement.sku, "sku_version": judgement.sku_version, "snapshot": judgement.snapshot,
    }  # fmt: skip


def supersede_pass(key: RunKey, stage: str, *, node: str = "") -> None:
    """Supersede the stage's current verdict if it passed, before another one is recorded; the row is kept.

    ``node``: which one, if the run tests several. Raises LeaseLost if the run does not hold the node, UnknownRun.
    """
    with writing() as session:
        run = access.run_row(session, key, node)
        access.node_row(session, run.node, lock=True)
        require_lease(session, run)
        old = update(StageRow).where(StageRow.run == run.id, StageRow.stage == stage, StageRow.current)
        session.execute(old.where(StageRow.verdict.in_(access.SOUND)).values(current=False))


def _supersede(session: Session, run: RunRow, stage: StageRow) -> None:
    """Delete the stage's current verdict if it rests on the same raw result, else keep it as superseded."""
    current = (StageRow.run == run.id, StageRow.stage == stage.stage, StageRow.current)
    if stage.result_sha256:
        session.execute(delete(StageRow).where(*current, StageRow.result_sha256 == stage.result_sha256))
    session.execute(update(StageRow).where(*current).values(current=False))


def _store_rows(session: Session, stage: StageRow, node: str, result: StageResult | None, judgement: Judgement) -> None:
    measurements = list(_measurement_rows(stage.id, result, judgement.observations))
    if measurements:
        # One statement for all rows: by default, rows with NULLs in other columns would get another one.
        session.execute(insert(MeasurementRow).execution_options(render_nulls=True), measurements)
    findings = [
        {
            "stage": stage.id, "node": node, "rule": each.rule, "metric": each.metric, "device": each.device,
            "severity": str(each.severity), "fault_class": str(each.fault_class), "action": str(each.action),
            "observed": each.observed, "expected": each.expected, "source": each.source, "summary": each.summary,
            "labels": dict(each.labels), "confidence": each.confidence, "finding_id": each.id,
            "waived": each.waived, "measurements": list(each.measurements), "variant": str(each.variant),
            "extent": dataclasses.asdict(each.extent) if each.extent else {},
        }
        for each in judgement.findings
    ]  # fmt: skip
    if findings:
        session.execute(insert(FindingRow), findings)


def _measurement_rows(
    stage: int, result: StageResult | None, observations: Iterable[Observation]
) -> Iterable[dict[str, Any]]:
    """A row for each measurement, with its limits if it was judged, and one for each derived observation."""
    judged: dict[_Key, tuple[int, Observation]] = {}
    extra: list[tuple[int, Observation]] = []
    for place_, each in enumerate(observations):
        key = (each.probe, each.metric, each.device, tuple(sorted(each.labels)))
        if key in judged:
            extra.append((place_, each))
        else:
            judged[key] = (place_, each)
    for measured in result.measurements if result else ():
        key = (measured.probe, measured.metric, measured.device, tuple(sorted(measured.labels.items())))
        found = judged.get(key)
        if found is not None and (found[1].value, found[1].text) == (measured.value, measured.text):
            del judged[key]
            # The judge's note, if any: the node's own is often empty.
            yield _row(stage, found[1], found[1].note or measured.note, found)
        else:
            yield _row(stage, measured, measured.note, None)
    for remaining in [*judged.values(), *extra]:
        yield _row(stage, remaining[1], remaining[1].note, remaining)


def _row(stage: int, figure: Any, note: str, judged: tuple[int, Observation] | None) -> dict[str, Any]:
    limits = judged[1] if judged else None
    return {
        "stage": stage, "probe": figure.probe, "metric": figure.metric, "device": figure.device, "unit": figure.unit,
        "value": figure.value, "text": figure.text, "labels": dict(figure.labels), "samples": figure.samples,
        "spread": figure.spread, "note": note, "judged": judged[0] if judged else None,
        "floor": limits.floor if limits else None, "ceiling": limits.ceiling if limits else None,
        "source": limits.source if limits else "", "ok": limits.ok if limits else None,
    }  # fmt: skip


def _store_bytes(session: Session, stage: StageRow, sent: Sent) -> None:
    parts, now = ((RESULT, sent.raw), (TELEMETRY, sent.telemetry), (CHASSIS, sent.chassis)), access.now()
    if rows := [{"stage": stage.id, "kind": kind, "created_at": now, "data": data} for kind, data in parts if data]:
        session.execute(insert(ArtifactRow), rows)


def _moment(epoch: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC)
