"""Assembles a run's report from its stored parts. Pure; ``muster.store.reporting.run`` loads the input."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster.model.breaker import Breaker
from muster.model.names import SPARE_LABEL
from muster.model.nodes import Node
from muster.model.runs import Job, Run
from muster.model.stages import in_order
from muster.model.states import State
from muster.rules.lifecycle.waivers import Standing
from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_criteria.context.waivers import concerns
from muster_criteria.model import Verdict
from muster_reports.model import RunReport, StageReport


def assemble(
    run: Run,
    node: Node,
    stages: Mapping[str, StageReport],
    jobs: Mapping[str, Job],
    facts: tuple[Mapping[str, Any], Mapping[str, Any]],
    waivers: Sequence[str],
    breaker: Breaker,
    *,
    began: datetime.datetime,
    run_url: str | None,
    now: datetime.datetime,
    attached: bool = True,
    fabric: Fabric | None = None,
    training: Training | None = None,
    replacement: str = "",
    why_left: str = "",
) -> RunReport:
    """Returns the report of a run.

    ``stages``: by name, those that have a verdict. ``jobs``: the latest job of each stage that was begun. ``facts``:
    (identity, environment) of the node in the run. ``waivers``: a sentence each. ``began``: when its first job did.
    ``attached``: with its JSON, which takes longer than all the rest. ``replacement``: which node may take its place,
    as a sentence. ``why_left``: why it left service for no failure.
    """
    listed = tuple(stages[name] for name in in_order(stages))
    report = RunReport(
        node=run.node, sku=run.sku, run_id=run.run_id, dag_id=run.dag_id, reason=run.reason,
        simulated=run.simulated or any(each.judgement.simulated for each in listed),
        verdict=run.verdict or Verdict.INCONCLUSIVE,
        headline=run.headline or "The run has not ended yet.",
        state_before=run.state_before, state_after=run.state_after or node.state,
        started_at=began, ended_at=run.ended_at or now,
        identity=_pairs(facts[0]), environment=_pairs(facts[1]), stages=listed,
        not_run=tuple((name, _why_not_run(name, listed, jobs)) for name in run.required_stages if name not in stages),
        waivers=tuple(waivers), shadow=node.shadow, forced=_forced(run), run_url=run_url,
        why_held=run.why_held, breaker=f"{breaker.state}: {breaker.sentence}",
        fabric=fabric, training=training, replacement=replacement,
        why_left=why_left, spare=bool(node.labels.get(SPARE_LABEL)),
    )  # fmt: skip
    return dataclasses.replace(report, result_json=report_json(report)) if attached else report


def _forced(run: Run) -> str | None:
    if run.forced is None or not run.started_by:
        return run.forced
    return f"{run.forced} (started by {run.started_by})"


def report_json(report: RunReport) -> str:
    """Returns the report as JSON, schema "muster.report/1", without the charts' points."""
    # A block's matrices and ranks are as large as all else; each member's report would have them again.
    fabric = dataclasses.replace(report.fabric, matrices=()) if report.fabric else None
    own = tuple(each for each in report.training.ranks if each.node == report.node) if report.training else ()
    training = dataclasses.replace(report.training, ranks=own) if report.training else None
    short = dataclasses.replace(report, fabric=fabric, training=training)
    # With an indent, or by dataclasses.asdict, it takes several times as long, for thousands of measurements.
    return json.dumps({"schema": "muster.report/1", **_fields(short)}, default=_plain)


def waiver_sentences(standing: Standing) -> tuple[str, ...]:
    """Returns a sentence for each valid waiver about a part of this machine."""
    sentences = []
    for waiver in standing.waivers:
        if concerns(waiver, standing.machine):
            found = f"{waiver.finding}; then {waiver.observed}"
            sentences.append(f"{waiver.what} of {waiver.device} ({found}) is waived {waiver}")
    return tuple(sentences)


def _why_not_run(stage: str, stages: Iterable[StageReport], jobs: Mapping[str, Job]) -> str:
    if stage in jobs:
        return f"begun, but not judged ({jobs[stage].note or jobs[stage].state})"
    failed = next((each.judgement.stage for each in stages if each.judgement.verdict is Verdict.FAIL), "")
    return f"{failed} failed before it" if failed else "the run ended before it"


def _pairs(facts: Mapping[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for key, value in sorted(facts.items()):
        if isinstance(value, dict):
            pairs.extend(_pairs(value, f"{prefix}{key} "))
        elif value not in (None, ""):
            pairs.append((f"{prefix}{key}", str(value)))
    return tuple(pairs)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(State(value))


def _fields(value: Any) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if name not in ("result_json", "telemetry")}
