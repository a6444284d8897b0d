"""The content of a report, computed before any template: order, groups, and where long lists end.

Mail, plain text and page all show the one ``View`` built here.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_criteria.devices import natural
from muster_criteria.labels import Key
from muster_criteria.model import COMMON_CAUSE, Finding, Judgement, Observation, Severity, Verdict
from muster_criteria.words import apart, beyond, duration, figure
from muster_reports import training_view
from muster_reports.advice import ADVICE, PART, least_sure, next_steps, serials_of
from muster_reports.firstscreen import Caution, cautions, covered, judged_by
from muster_reports.limits import NAME_MAX, NODE_MAX, Limits, cut
from muster_reports.model import RunReport, Section, StageReport
from muster_reports.sections import all_sections
from muster_reports.text import (
    clean,
    device_list,
    in_each_text,
    label_text,
    moment,
    plural,
    span,
)

SYMBOL = {
    Verdict.PASS: "✓",
    Verdict.WARN: "!",
    Verdict.PROVISIONAL: "~",
    Verdict.INCONCLUSIVE: "?",
    Verdict.FAIL: "✗",
    Verdict.SKIPPED: "–",
}

FACTS = frozenset({"text", "bool"})
GRAVEST_FIRST = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


@dataclasses.dataclass(frozen=True)
class FindingView:
    """Findings of one rule on one or more devices, as one entry. ``observed``: (device or "", figure). ``confidence``:
    ", confidence 80 %", or empty for what was measured outright. ``ids``: the argument of `muster waive`; empty for
    findings that were not recorded.
    """

    severity: Severity
    stage: str
    devices: str
    metric: str
    summary: str
    also: str
    observed: tuple[tuple[str, str], ...]
    more_observed: int
    expected: str
    source: str
    part: str
    serial: str
    advice: str
    rule: str
    confidence: str
    ids: str
    waived: str


@dataclasses.dataclass(frozen=True)
class StageView:
    """One line of the stages table; a stage that did not run has verdict None."""

    name: str
    verdict: Verdict | None
    symbol: str
    reason: str
    coverage: str
    duration: str
    attempts: int
    troubles: tuple[str, ...] = ()
    more_troubles: int = 0


@dataclasses.dataclass(frozen=True)
class FigureView:
    """One metric across its devices."""

    metric: str
    labels: str
    devices: str
    median: str
    spread: str
    limit: str
    source: str
    ok: bool
    broken_on: str


@dataclasses.dataclass(frozen=True)
class View:
    """Everything a template shows, in the order it is shown, and the limits to which it is cut. ``more_…`` count what
    was cut. ``failed``: whether there is a critical finding that is not waived.
    """

    node: str
    sku: str
    verdict: Verdict
    symbol: str
    headline: str
    next_steps: tuple[str, ...]
    coverage: str
    judged_by: str
    breaker: str
    held: bool
    state: str
    state_before: str
    state_after: str
    simulated: bool
    why_run: str
    cautions: tuple[Caution, ...]
    failed: bool
    findings: tuple[FindingView, ...]
    brief_findings: tuple[FindingView, ...]
    more_findings: int
    stages: tuple[StageView, ...]
    telemetry_recorded: bool
    figures: tuple[tuple[str, tuple[FigureView, ...]], ...]
    more_figures: int
    fabric: Fabric | None
    more_parts: int
    training: training_view.TrainingView | None
    sections: tuple[Section, ...]
    run_id: str
    dag_id: str
    run_url: str | None
    started: str
    ended: str
    duration: str
    limits: Limits


def build(report: RunReport, limits: Limits) -> View:
    """The view of a report; every text is cleaned and cut to the limits."""
    kept = frozenset({"result_json", "run_url", "telemetry"})
    # Thousands of measurements have the same few names.
    cleaned = in_each_text(report, functools.cache(lambda text: clean(text, limits.chars)), kept)
    report = dataclasses.replace(cleaned, node=clean(report.node, NODE_MAX))
    findings = group_findings(report.stages, limits)
    figures = figure_rows(report.stages)
    shown_figures = _cut_sections(figures, limits.rows)
    shown_findings, more_findings = cut(findings, limits.rows)
    fabric, more_parts = report.fabric, 0
    if fabric:
        parts, more_parts = cut(fabric.parts, limits.rows)
        fabric = dataclasses.replace(fabric, parts=parts, notes=cut(fabric.notes, limits.items)[0])
    return View(
        node=report.node,
        sku=_sku(report),
        verdict=report.verdict,
        symbol=SYMBOL[report.verdict],
        headline=report.headline or "No reason was recorded.",
        next_steps=next_steps(report),
        coverage=covered(report),
        judged_by=judged_by(report),
        breaker=report.breaker,
        held=bool(report.why_held),
        state=_state(report),
        state_before=clean(report.state_before, NAME_MAX),
        state_after=clean(report.state_after, NAME_MAX),
        simulated=is_simulated(report),
        why_run=report.reason,
        cautions=cautions(report, limits),
        failed=any(each.severity is Severity.CRITICAL and not each.waived for each in findings),
        findings=shown_findings[: limits.full],
        brief_findings=shown_findings[limits.full :],
        more_findings=more_findings,
        stages=tuple(_stage_rows(report, limits)),
        telemetry_recorded=any(stage.telemetry for stage in report.stages),
        figures=shown_figures,
        more_figures=sum(len(rows) for _, rows in figures) - sum(len(rows) for _, rows in shown_figures),
        fabric=fabric,
        more_parts=more_parts,
        training=training_view.of(report.training, limits) if report.training else None,
        sections=tuple(all_sections(report, limits)),
        run_id=report.run_id,
        dag_id=report.dag_id,
        run_url=_web_address(report.run_url),
        started=moment(report.started_at),
        ended=moment(report.ended_at),
        duration=duration((report.ended_at - report.started_at).total_seconds()),
        limits=limits,
    )


def is_simulated(report: RunReport) -> bool:
    """Returns whether any stage was simulated."""
    return report.simulated or any(stage.judgement.simulated for stage in report.stages)


def devices_at_fault(report: RunReport) -> frozenset[str]:
    """Devices with a critical or warning finding in any stage."""
    return frozenset(each.device for each in report.findings if each.severity is not Severity.INFO)


def group_findings(stages: Sequence[StageReport], limits: Limits) -> tuple[FindingView, ...]:
    """Common causes first, then by severity, open before waived, in the order of the stages.

    The same rule broken on several devices of a stage is one entry.
    """
    serials = serials_of(stages)
    grouped: dict[tuple[object, ...], list[Finding]] = {}
    found = [(stage.judgement.stage, finding) for stage in stages for finding in stage.judgement.findings]
    for stage, finding in sorted(found, key=lambda each: _importance(each[1])):
        alike = dataclasses.replace(finding, device="", observed="", summary="", confidence=1.0, id="", measurements=())
        grouped.setdefault((stage, alike), []).append(finding)
    return tuple(_finding_view(str(key[0]), alike, serials, limits) for key, alike in grouped.items())


def _importance(finding: Finding) -> tuple[bool, int, bool]:
    return finding.rule != COMMON_CAUSE, GRAVEST_FIRST.index(finding.severity), bool(finding.waived)


def _finding_view(stage: str, alike: list[Finding], serials: dict[str, str], limits: Limits) -> FindingView:
    alike = sorted(alike, key=lambda finding: natural(finding.device))
    first = alike[0]
    several = len(alike) > 1
    observed, more_observed = cut([(f.device if several else "", f.observed) for f in alike], limits.items)
    ids, more_ids = cut([f"{f.id}{f' ({f.device})' if several else ''}" for f in alike if f.id], limits.items)
    return FindingView(
        severity=first.severity,
        stage=stage,
        devices=device_list(finding.device for finding in alike),
        metric=_metric(first.metric, first.labels),
        summary=first.summary,
        also=f"The same on {plural(len(alike) - 1, 'more device')}." if several else "",
        observed=observed,
        more_observed=more_observed,
        expected=first.expected,
        source=first.source or "not stated",
        part=PART[first.fault_class],
        serial="" if several else serials.get(first.device, ""),
        advice=ADVICE[first.action],
        rule=first.rule,
        confidence=least_sure(alike),
        ids=", ".join(ids) + (", …" if more_ids else ""),
        waived=first.waived,
    )


def figure_rows(stages: Sequence[StageReport]) -> tuple[tuple[str, tuple[FigureView, ...]], ...]:
    """Per stage, each measured figure as median and range across its devices, with its limits.

    Intake's facts are left out; performance comes first, since readers look for it.
    """
    by_stage = [(clean(stage.judgement.stage, NAME_MAX), _figure_views(stage.judgement)) for stage in stages]
    shown = [(name, rows) for name, rows in by_stage if rows and name != "intake"]
    return tuple(sorted(shown, key=lambda section: section[0] != "performance"))


def _figure_views(judgement: Judgement) -> tuple[FigureView, ...]:
    grouped: dict[Key, list[Observation]] = {}
    for seen in judgement.observations:
        if seen.value is not None and seen.unit not in FACTS:
            grouped.setdefault(Key.of(seen.device, seen.metric, seen.labels, seen.unit), []).append(seen)
    return tuple(_figure_view(rows) for rows in grouped.values())


def _figure_view(rows: list[Observation]) -> FigureView:
    first = rows[0]
    values = [row.value for row in rows if row.value is not None]
    broken = [row.device for row in rows if not row.ok]
    digits = apart(beyond((row.value, row.floor, row.ceiling) for row in rows))
    sources = dict.fromkeys(row.source for row in rows if row.source and (row.floor, row.ceiling) != (None, None))
    return FigureView(
        metric=first.metric,
        labels=label_text(first.labels),
        devices=device_list(row.device for row in rows),
        median=figure(statistics.median(values), first.unit, digits=digits),
        spread=span(min(values), max(values), first.unit, digits) if len(values) > 1 else "",
        limit=_limit_text(rows, digits),
        source="; ".join(sources),
        ok=not broken,
        broken_on=device_list(broken) if broken else "",
    )


def _limit_text(rows: list[Observation], digits: int) -> str:
    unit = rows[0].unit
    floors = [row.floor for row in rows if row.floor is not None]
    ceilings = [row.ceiling for row in rows if row.ceiling is not None]
    if floors and len({*floors, *ceilings}) == 1 and ceilings:
        return f"= {figure(floors[0], unit, digits=digits)}"
    parts = [f"≥ {span(min(floors), max(floors), unit, digits)}"] if floors else []
    if ceilings:
        parts.append(f"≤ {span(min(ceilings), max(ceilings), unit, digits)}")
    return " and ".join(parts)


def _stage_rows(report: RunReport, limits: Limits) -> Iterable[StageView]:
    for stage in report.stages:
        judgement = stage.judgement
        troubles = [f"{probe}: {status}{f' ({why})' if why else ''}" for probe, status, why in stage.probes
                    if status != "completed"]  # fmt: skip
        shown, more = cut([*troubles, *judgement.notes], limits.items)
        coverage = judgement.coverage
        yield StageView(
            name=clean(judgement.stage, NAME_MAX),
            verdict=judgement.verdict,
            symbol=SYMBOL[judgement.verdict],
            reason=judgement.reason,
            coverage=f"{min(coverage.measured, coverage.judged)}/{coverage.required}",
            duration=duration(stage.duration_s),
            attempts=stage.attempts,
            troubles=shown,
            more_troubles=more,
        )
    for name, why in report.not_run:
        yield StageView(clean(name, NAME_MAX), None, SYMBOL[Verdict.SKIPPED], why, "–", "–", 0)


def _metric(metric: str, labels: Sequence[tuple[str, str]]) -> str:
    return f"{metric} ({label_text(labels)})" if labels else metric


def _sku(report: RunReport) -> str:
    versions = dict.fromkeys(s.judgement.sku_version for s in report.stages if s.judgement.sku_version)
    return f"{report.sku} ({', '.join(versions)})" if versions else report.sku


def _state(report: RunReport) -> str:
    before, after = clean(report.state_before, NAME_MAX), clean(report.state_after, NAME_MAX)
    if report.why_held:
        return f"{after} (verdict held)"
    return f"{after} (unchanged)" if before == after else f"{before} → {after}"


def _web_address(url: str | None) -> str | None:
    """``url`` if it is an http or https address, else None."""
    if not url or len(url) > 2000 or any(ord(char) <= 32 or ord(char) > 126 for char in url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if parts.scheme in ("http", "https") and parts.netloc else None


def _cut_sections(
    sections: tuple[tuple[str, tuple[FigureView, ...]], ...], limit: int
) -> tuple[tuple[str, tuple[FigureView, ...]], ...]:
    shown = []
    for name, rows in sections:
        if limit <= 0:
            break
        shown.append((name, rows[:limit]))
        limit -= len(rows)
    return tuple(shown)
