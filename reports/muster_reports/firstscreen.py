"""The first screen: coverage, what the verdict is based on, and everything that limits it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from muster_criteria.model import Judgement, Lack
from muster_criteria.words import by_cause
from muster_reports.limits import NAME_MAX, Limits, cut
from muster_reports.model import RunReport
from muster_reports.text import clean, merge_devices, plural

PROBES_MAX = 6
"""How many probes with the same end are named on the first screen."""

_OWN_WHY = (Lack.NOT_COMPARED, Lack.NO_RDMA)
"""Codes of figures that were measured but not judged, for a reason that the reader can remove."""

ENDS = {
    "busy": "not run, the node is in use",
    "fenced": "stopped, because another run had taken the node",
    "terminated": "preempted: the job was stopped before its end",
    "deadline": "timed out: the job reached its deadline",
    "error": "ended by an error in Muster's program on the node",
}
"""How a job that did not complete ended, for readers."""


@dataclasses.dataclass(frozen=True)
class Caution:
    """One limit of the verdict: its code, one sentence, and what it is about. ``more`` counts what was cut."""

    code: str
    sentence: str
    items: tuple[str, ...] = ()
    more: int = 0


def cautions(report: RunReport, limits: Limits) -> tuple[Caution, ...]:
    """Everything that limits the verdict or overrides it, gravest first."""
    found = []
    if report.why_held:
        where = "stays in service" if report.state_after == "production" else "is neither qualified nor quarantined"
        found.append(Caution("held", f"The node {where} until a person decides: {report.why_held}."))
    if report.forced is not None:
        found.append(
            Caution("forced", f"The test ran although the node may be in use: {report.forced or 'no reason given'}")
        )
    if report.shadow:
        found.append(Caution("shadow", "The node is in shadow mode: it stays in production whatever the test finds."))
    if report.waivers:
        found.append(
            Caution("waivers", "Known findings are waived on this node:", *cut(report.waivers, limits.first_screen))
        )
    found.extend(_unfinished(report, limits))
    for stage in report.stages:
        found.extend(_coverage_cautions(stage.judgement, limits))
    if report.not_run:
        because: dict[str, list[str]] = {}
        for name, why in report.not_run:
            because.setdefault(why, []).append(clean(name, NAME_MAX))
        reasons = [f"{', '.join(names)}: {why}" for why, names in because.items()]
        sentence = f"{plural(len(report.not_run), 'stage')} did not run:"
        found.append(Caution("not_run", sentence, *cut(reasons, limits.first_screen)))
    if not report.stages and not report.not_run:
        found.append(Caution("no_result", "No stage of this run has a result."))
    return tuple(found)


def _unfinished(report: RunReport, limits: Limits) -> Iterable[Caution]:
    """Jobs that did not complete, and probes that did not complete within jobs that did."""
    ends = [f"{clean(s.judgement.stage, NAME_MAX)}: {ENDS[s.end]}" for s in report.stages if s.end in ENDS]
    for stage in report.stages:
        by_end: dict[str, list[str]] = {}
        for probe, status, _ in stage.probes:
            if status != "completed":
                by_end.setdefault(status.replace("_", " "), []).append(probe)
        name = clean(stage.judgement.stage, NAME_MAX)
        ends += [f"{name}: {', '.join(probes[:PROBES_MAX])}{', …' if len(probes) > PROBES_MAX else ''} {status}"
                 for status, probes in by_end.items()]  # fmt: skip
    if ends:
        yield Caution("unfinished", "Not everything ran to its end:", *cut(ends, limits.first_screen))


def _coverage_cautions(judgement: Judgement, limits: Limits) -> Iterable[Caution]:
    coverage, stage = judgement.coverage, clean(judgement.stage, NAME_MAX)
    if coverage.required == 0:
        yield Caution(
            "nothing_required", f"{stage}: nothing is required at level {judgement.level}, so it proves nothing."
        )
    if coverage.measured < coverage.required:
        lacking = f"{coverage.required - coverage.measured} of {plural(coverage.required, 'required figure')}"
        items = cut(merge_devices(by_cause(coverage.missing)), limits.first_screen)
        yield Caution("unmeasured", f"{stage}: {lacking} not measured:", *items)
    if coverage.judged < coverage.measured:
        plain = f"{coverage.measured - coverage.judged} of {plural(coverage.measured, 'measured figure')}"
        own = "; ".join(dict.fromkeys(gap.why for gap in coverage.unjudged if gap.code in _OWN_WHY))
        named = (str(dataclasses.replace(gap, why="")) for gap in coverage.unjudged)
        items = cut(merge_devices(named), limits.first_screen)
        why = own or "no limit, no similar nodes, no history"
        yield Caution("unjudged", f"{stage}: {plain} not judged ({why}):", *items)


def covered(report: RunReport) -> str:
    """Coverage over all stages that ran, counted against what these stages require."""
    counted = [stage.judgement.coverage for stage in report.stages]
    required = sum(each.required for each in counted)
    judged = sum(min(each.measured, each.judged, each.required) for each in counted)
    absent = f", {plural(len(report.not_run), 'stage')} not run" if report.not_run else ""
    share = f" ({math.floor(100 * judged / required)} %)" if required else ""
    return f"{judged:,} of {plural(required, 'required figure')} measured and judged{share}{absent}"


def judged_by(report: RunReport) -> str:
    """The peer statistics that the verdict cites, as text."""
    cited = dict.fromkeys(stage.judgement.snapshot for stage in report.stages if stage.judgement.snapshot)
    return (
        f"the limits of its SKU file and statistics of similar nodes ({', '.join(cited)})"
        if cited
        else "the limits of its SKU file only (no statistics of similar nodes)"
    )
