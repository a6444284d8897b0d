"""A block as values: what each member was found to be, and every figure of all members side by side. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from muster.web import keys, plots
from muster_criteria.model import Severity, Verdict
from muster_reports.model import RunReport


@dataclasses.dataclass(frozen=True)
class Proof:
    """A text that members measured, such as the transport that a collective used. ``of``: (text, members)."""

    metric: str
    of: tuple[tuple[str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Block:
    """``notes`` concern all members; ``strips`` and ``proofs`` name each value's member. ``alike``: metrics whose
    values are the same on all of them, with that value.
    """

    members: tuple[RunReport, ...]
    notes: tuple[str, ...]
    strips: Sequence[plots.Strip]
    alike: Sequence[str]
    proofs: Sequence[Proof]


def of_reports(reports: Sequence[RunReport]) -> Block:
    """The block of its members' reports, those with the gravest findings first."""
    members = sorted(reports, key=lambda each: (not _failed(each), each.verdict is Verdict.PASS, each.node))
    observed = [each for report in reports for each in plots.seen(report, by_node=True)]
    notes = dict.fromkeys(note for report in reports for stage in report.stages for note in stage.judgement.notes)
    strips = plots.strips(observed, judged_only=False)
    alike = [f"{each.metric}: {each.low} {each.unit}" for each in strips if not each.most and not each.failed]
    differing = [each for each in strips if each.most or each.failed]
    return Block(tuple(members), tuple(notes), differing, alike, _proofs(observed))


def _failed(report: RunReport) -> bool:
    return any(each.severity is Severity.CRITICAL for each in report.findings)


def _proofs(observed: Iterable[plots.Seen]) -> list[Proof]:
    found: dict[str, dict[str, list[str]]] = {}
    for each in observed:
        if each.of.text is not None:
            found.setdefault(keys.words(each.key), {}).setdefault(each.of.text, []).append(each.device)
    return [
        Proof(metric, tuple((text, tuple(devices)) for text, devices in of.items()))
        for metric, of in sorted(found.items())
    ]
