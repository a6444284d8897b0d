"""A node's result: parsed, judged and reported. Seeds are healthy results of three SKUs in all stages."""

from __future__ import annotations

import copy
import datetime
import json
import random
from collections.abc import Iterator
from typing import Any

from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.model import Judgement, Verdict
from muster_criteria.sku_files.programme import needs
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stages import STAGES
from muster_reports import page
from muster_reports.model import RunReport, StageReport
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken
from tests.muster_criteria.nodes import healthy_raw, shipped
from tests.muster_criteria.violations import violations

SKUS = ("cpu-generic", "h100-sxm-8")
LEVEL = "demo"
RENDERED_EACH = 20
"""One result of so many is rendered as a page, which takes several times as long as judging it."""
_MADE: dict[tuple[str, str], dict[str, Any]] = {}


def _draw(rng: random.Random) -> Sample:
    sku, stage = rng.choice(SKUS), rng.choice(STAGES)
    if (sku, stage) not in _MADE:
        _MADE[sku, stage] = healthy_raw(shipped(sku), stage, LEVEL)
    result: Any = copy.deepcopy(_MADE[sku, stage])
    if rng.random() < 0.7:
        result = mutate.document(rng, result)
    spoilt = _spoil(rng, result, sku, stage) if rng.random() < 0.5 else ""
    sent = json.dumps(result).encode()
    if not spoilt and rng.random() < 0.1:
        sent = mutate.raw(rng, sent)
    return Sample((sku, stage, sent, rng.random() < 1 / RENDERED_EACH), spoilt)


def _spoil(rng: random.Random, result: Any, sku: str, stage: str) -> str:
    """Takes evidence away or plants a fault; returns what it did, "" if the mutations left nothing to spoil."""
    rows = result.get("measurements") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ""
    ways = [_without_metric, _without_value, _ended_early, _corrupting]
    return rng.choice(ways)(rng, result, sku, stage)


def _without_metric(rng: random.Random, result: dict[str, Any], sku: str, stage: str) -> str:
    metric = rng.choice(needs(shipped(sku), stage, LEVEL)).requirement.metric
    result["measurements"] = [row for row in result["measurements"] if row.get("metric") != metric]
    return f"{stage} of {sku} without {metric}"


def _without_value(rng: random.Random, result: dict[str, Any], sku: str, stage: str) -> str:
    wanted = [need.requirement for need in needs(shipped(sku), stage, LEVEL) if not need.requirement.where_readable]
    if not wanted:
        return ""
    metric = rng.choice(wanted).metric
    for row in result["measurements"]:
        if row.get("metric") == metric:
            row |= {"value": None, "text": None, "note": "unsupported"}
    return f"{stage} of {sku} without a value of {metric}"


def _ended_early(rng: random.Random, result: dict[str, Any], sku: str, stage: str) -> str:
    result["end"] = rng.choice(("busy", "fenced", "terminated", "deadline", "error"))
    return f"{stage} of {sku} that ended by {result['end']}"


def _corrupting(rng: random.Random, result: dict[str, Any], sku: str, stage: str) -> str:
    wanted = {need.requirement.metric for need in needs(shipped(sku), stage, LEVEL)}
    rows = [
        row
        for row in result["measurements"]
        if str(row.get("metric")).endswith("_mismatches") and row.get("metric") in wanted and row.get("value") == 0
    ]
    if not rows:
        return ""
    row = rng.choice(rows)
    row["value"] = rng.choice((1, 3.0, 1e17))
    return f"{stage} of {sku} with {row['metric']} on {row.get('device')}"


def _read(sample: Sample) -> Taken:
    sku, stage, sent, rendered = sample.data
    result = parse_result(sent)
    case = Case(shipped(sku), stage, LEVEL, result, simulated=True)
    judgement = judge(case, evaluate=violations)
    if "the judge failed with an error" in judgement.reason:
        raise AssertionError(judgement.reason)
    well = judgement.verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL)
    injections = _in_page(judgement, result) if rendered else ()
    return Taken(_texts(judgement), injections, well=well)


def _texts(judgement: Judgement) -> Iterator[str]:
    yield judgement.reason
    yield from judgement.notes
    for finding in judgement.findings:
        yield from (finding.summary, finding.device, finding.observed, finding.expected)


def _in_page(judgement: Judgement, result: StageResult) -> Iterator[str]:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    probes = tuple((end.probe, end.status, end.reason) for end in result.probes)
    report = RunReport(
        node=result.node, sku=judgement.sku, run_id="n__r", dag_id="d", reason="r", simulated=True,
        verdict=judgement.verdict, headline=judgement.reason, state_before="intake", state_after="intake",
        started_at=now, ended_at=now, run_url="http://localhost/", result_json="{}",
        identity=tuple((key, str(value)) for key, value in result.identity.items()),
        environment=tuple((key, str(value)) for key, value in result.environment.items()),
        stages=(StageReport(judgement=judgement, started_at=now, duration_s=1.0, probes=probes),),
    )  # fmt: skip
    html = page.render_page(report)
    for tag in ("<script>alert", "<img src=x"):
        if tag in html:
            yield f"{tag} in the page of {judgement.stage}"


EDGE = Edge(_draw, _read, (BadResult,), peak_bytes=128 * 2**20)
