"""Merges what several probes of a stage saw alike into one finding, and adds facts for people.

These are where a GPU of unknown slot is, and how often the same part failed before: neither affects the verdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.model import Action, Finding, Severity
from muster_criteria.rows import SLOT_KNOWN, Row
from muster_criteria.stage.rules import FLEET_KINDS, KINDS


def once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; of several for one rule, metric and device, only the gravest, with all evidence."""
    merged: dict[object, Finding] = {}
    for each in findings:
        of_a_limit = each.rule in KINDS and each.rule not in FLEET_KINDS
        key: object = (each.rule, each.metric, each.device, each.labels) if of_a_limit else each
        known = merged.get(key)
        if known is None:
            merged[key] = each
            continue
        first, other = sorted((known, each), key=lambda finding: finding.severity.rank)
        evidence = tuple(dict.fromkeys((*first.measurements, *other.measurements)))
        merged[key] = dataclasses.replace(first, measurements=evidence)
    return list(merged.values())


def with_past(findings: Iterable[Finding], past: Mapping[str, int]) -> list[Finding]:
    """The findings; those above severity ``info`` name the number of earlier runs in which their part failed.

    ``past``: {device: earlier runs in which the part that sits there failed}.
    """
    return [
        dataclasses.replace(
            each, summary=f"{each.summary} It failed in {count} {'run' if count == 1 else 'runs'} before."
        )
        if each.severity is not Severity.INFO and (count := past.get(each.device, 0))
        else each
        for each in findings
    ]


def with_unknown_places(findings: Iterable[Finding], rows: Sequence[Row]) -> list[Finding]:
    """The findings; those of a GPU whose slot is not known say where it is, and do not name a slot."""
    places = {row.device: row.note for row in rows if row.metric == SLOT_KNOWN and row.value == 0.0}

    def amended(finding: Finding) -> Finding:
        if finding.device not in places or finding.metric == SLOT_KNOWN:
            return finding
        action = Action.INSPECT if finding.action in (Action.RMA, Action.RESEAT) else finding.action
        summary = f"{finding.summary} Its slot is not known: {places[finding.device] or 'go by its serial number'}."
        return dataclasses.replace(finding, summary=summary, action=action)

    return [amended(finding) for finding in findings]
