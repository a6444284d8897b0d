"""What must be read before a verdict is believed: what was covered, by what it was judged, what weakens it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from muster_criteria.model import UNJUDGED, Judgement
from muster_reports.limits import NAME_MAX, Limits, cut
from muster_reports.model import RunReport
from muster_reports.text import clean, merge_devices, plural

PROBES_MAX = 6
"""So many probes that ended alike are named on the first screen."""

ENDS = {
    "busy": "not run, the node is in use",
    "fenced": "stopped, another run had taken the node",
    "terminated": "preempted, the job was stopped before its end",
    "deadline": "timed out, the job reached its deadline",
    "error": "ended by an error of the node side",
}
"""The ends of a job that leave something undone."""


@dataclasses.dataclass(frozen=True)
class Caution:
    """Something the reader must know before believing the verdict: one sentence, and what it is about."""

    sentence: str
    items: tuple[str, ...] = ()
    more: int = 0


def cautions(report: RunReport, limits: Limits) -> tuple[Caution, ...]:
    """Everything that weakens the verdict or sets it aside, the gravest first."""
    found = []
    if report.held:
        where = "goes on serving" if report.state_after == "production" else "is neither qualified nor quarantined"
        found.append(Caution(f"The node {where}, and a person has to decide: {report.held}."))
    if report.forced is not None:
        found.append(Caution(f"The in-use guard was overruled (--force): {report.forced or 'no reason given'}"))
    if report.shadow:
        found.append(
            Caution(
                "The node is in shadow mode: it was adopted while it served, and stays in production whatever is found"
            )
        )
    if report.waivers:
        found.append(Caution("Waivers stand for this node:", *cut(report.waivers, limits.first_screen)))
    found.extend(_unfinished(report, limits))
    for stage in report.stages:
        found.extend(_coverage_cautions(stage.judgement, limits))
    if report.not_run:
        because: dict[str, list[str]] = {}
        for name, why in report.not_run:
            because.setdefault(why, []).append(clean(name, NAME_MAX))
        reasons = [f"{', '.join(names)}: {why}" for why, names in because.items()]
        sentence = f"{plural(len(report.not_run), 'stage')} did not run:"
        found.append(Caution(sentence, *cut(reasons, limits.first_screen)))
    if not report.stages and not report.not_run:
        found.append(Caution("No stage of this run left a result."))
    return tuple(found)


def _unfinished(report: RunReport, limits: Limits) -> Iterable[Caution]:
    """What was cut short: whole jobs, and single probes within jobs that ran to their end."""
    told = [f"{clean(s.judgement.stage, NAME_MAX)}: {ENDS[s.end]}" for s in report.stages if s.end in ENDS]
    for stage in report.stages:
        by_end: dict[str, list[str]] = {}
        for probe, status, _ in stage.probes:
            if status != "completed":
                by_end.setdefault(status.replace("_", " "), []).append(probe)
        name = clean(stage.judgement.stage, NAME_MAX)
        told += [f"{name}: {', '.join(probes[:PROBES_MAX])}{', …' if len(probes) > PROBES_MAX else ''} {status}"
                 for status, probes in by_end.items()]  # fmt: skip
    if told:
        yield Caution("Not everything ran to its end:", *cut(told, limits.first_screen))


def _coverage_cautions(judgement: Judgement, limits: Limits) -> Iterable[Caution]:
    coverage, stage = judgement.coverage, clean(judgement.stage, NAME_MAX)
    if coverage.required == 0:
        yield Caution(f"{stage}: no figure was required at level {judgement.level}, so nothing is proven by it.")
    if coverage.measured < coverage.required:
        lacking = f"{coverage.required - coverage.measured} of {plural(coverage.required, 'required figure')}"
        items = cut(merge_devices(coverage.missing), limits.first_screen)
        yield Caution(f"{stage}: {lacking} not measured:", *items)
    if coverage.judged < coverage.measured:
        plain = f"{coverage.measured - coverage.judged} of {plural(coverage.measured, 'measured figure')}"
        named = (sentence.removesuffix(f": {UNJUDGED}") for sentence in coverage.unjudged)
        items = cut(merge_devices(named), limits.first_screen)
        yield Caution(f"{stage}: {plain} not judged, having no limit, peers or history:", *items)


def covered(report: RunReport) -> str:
    """Coverage over all stages that ran, counted against what they require."""
    counted = [stage.judgement.coverage for stage in report.stages]
    required = sum(each.required for each in counted)
    judged = sum(min(each.measured, each.judged, each.required) for each in counted)
    absent = f", {plural(len(report.not_run), 'stage')} not run" if report.not_run else ""
    share = f" ({math.floor(100 * judged / required)} %)" if required else ""
    return f"{judged:,} of {plural(required, 'required figure')} measured and judged{share}{absent}"


def judged_by(report: RunReport) -> str:
    """The peer statistics that the verdict cites; which SKU revision stands beside the node's name."""
    cited = dict.fromkeys(stage.judgement.snapshot for stage in report.stages if stage.judgement.snapshot)
    return f"peer snapshot {', '.join(cited)}" if cited else "the SKU's limits alone, no peer snapshot"
