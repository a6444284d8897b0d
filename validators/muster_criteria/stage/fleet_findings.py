"""Findings of the fleet's rules, and common causes of devices that fail alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from muster_criteria.devices import kind_of
from muster_criteria.fleet.budget import NODE_RULES, varies_by_part
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.labels import labelled
from muster_criteria.model import (
    COMMON_CAUSE,
    SHARED_CAUSE,
    Action,
    Extent,
    FaultClass,
    Finding,
    Severity,
    Variant,
    subject,
)
from muster_criteria.stage.rules import FLEET_KINDS, SEVERITY, Rule
from muster_criteria.words import figure, listed

FAILED, CONFIRMED, SUSPECTED, CLEARED = 0.95, 0.99, 0.5, 0.05
"""Confidence of a fleet finding: beyond the threshold; beyond it by several rules or readings; an outlier below it; an
outlier in one reading only. Chosen here: an order, not measured probabilities."""

DEVICE_SHARE = 0.75
"""From this share of a node's devices on, the node is the cause: two to four bad siblings of eight still fail."""
DEVICES_MIN = 4

_CONCLUSION = {
    Variant.PLAIN: "",
    Variant.RETEST: ": to be measured again",
    Variant.PERSISTENT: ": seen again, but not enough to fail",
    Variant.RARE: ": rare among healthy parts, but not enough to fail",
    Variant.CLEARED: ": not seen again",
}

_REFERENCE = {
    "peers": "the median of {count} peers{of}",
    "siblings": "the median of the node's {count} devices",
    "drift": "its own median over {count} visits, relative to its siblings",
    "node_peers": "its peers{of}",
    "node_drift": "its own median over {count} visits",
}


def fleet_finding(
    row: Mapping[str, Any], rule: Rule, comparison: Comparison, behind: tuple[str, ...], runs: Sequence[float] = ()
) -> Finding:
    """The finding of a row that breaks a rule of the fleet.

    ``behind``: references to the measurements that the row is derived from. ``runs``: each run's value, if several.
    """
    of_node = rule.kind in NODE_RULES
    name, column = labelled(row["metric"], row["labels"]), rule.column
    count, repeats = int(row[f"{column}_count"]), int(row[f"{column}_repeats"])
    share, usual, at = (float(row[f"{column}_{part}"]) for part in ("share", "expected", "at"))
    observed = figure(row["value"], row["unit"], unlike=usual)
    if repeats > 1:
        listed_runs = listed([figure(each, row["unit"], unlike=usual) for each in runs])
        observed = f"{observed} ({repeats} runs{': ' if runs else ''}{listed_runs})"
    less = at < usual
    among = _REFERENCE[rule.kind].format(count=count, of=" of another stack" if row[f"{column}_foreign"] == 1.0 else "")
    reference = f"{figure(usual, row['unit'], unlike=row['value'])}, {among}"
    limit = f"{'≥' if less else '≤'} {figure(at, row['unit'], unlike=row['value'])} (" if np.isfinite(at) else "near ("
    expected = f"{limit}{reference})"
    if of_node:
        meaning = "is off with all its devices together"
    else:
        meaning = comparison.meaning or "is unlike its peers"
    variant = _variant(rule, comparison, cleared=row[f"{column}_cleared"] == 1.0, repeats=repeats)
    conclusion = _CONCLUSION[variant]
    return Finding(
        rule=rule.kind,
        metric=row["metric"],
        device=row["device"],
        severity=SEVERITY[rule.breach],
        fault_class=FaultClass.SOFTWARE if of_node else comparison.fault,
        action=_action(variant, of_node, comparison),
        observed=observed,
        expected=expected,
        source=fleet_source(rule.kind, rule.breach, comparison),
        summary=f"{row['device']} {meaning}: {name} is {observed}, {100.0 * share:.1f} % off {reference}{conclusion}.",
        labels=row["labels"],
        confidence=_confidence(variant, repeats),
        measurements=behind,
        variant=variant,
        extent=Extent(float(row["value"]), row["unit"], "lower" if row["value"] < usual else "higher"),
    )


def _variant(rule: Rule, comparison: Comparison, *, cleared: bool, repeats: int) -> Variant:
    if rule.breach == "fail":
        return Variant.PLAIN
    if cleared:
        return Variant.CLEARED
    if varies_by_part(rule.kind, comparison.spread):
        return Variant.RARE
    return Variant.PERSISTENT if repeats > 1 else Variant.RETEST


def _confidence(variant: Variant, repeats: int) -> float:
    if variant is Variant.CLEARED:
        return CLEARED
    if variant is not Variant.PLAIN:
        return SUSPECTED
    return CONFIRMED if repeats > 1 else FAILED


def _action(variant: Variant, of_node: bool, comparison: Comparison) -> Action:
    if variant is Variant.CLEARED:
        return Action.NONE
    if variant in (Variant.RETEST, Variant.PERSISTENT):
        return Action.RETEST
    return Action.FIX_SOFTWARE if of_node else comparison.action


def fleet_source(kind: str, breach: str, comparison: Comparison) -> str:
    """The source of a fleet rule's threshold, for findings."""
    if breach == "fail":
        return f"{kind}: the fleet's empirical tail, at 1 healthy node failed in 1,000 visits; at least 3 % effect"
    if varies_by_part(kind, comparison.spread):
        return f"{kind}: the fleet's empirical tail, at 1 healthy node warned in 100 visits, and robust z above 3.5"
    return (
        f"{kind}: robust z above 3.5 (Iglewicz and Hoaglin) and at least 2.5 % effect; asks for a retest, never fails"
    )


def corroborated(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a higher confidence where several fleet rules fail one device in one metric."""
    rules: dict[tuple[str, str], set[str]] = {}
    for each in findings:
        if each.rule in FLEET_KINDS and each.severity is Severity.CRITICAL:
            rules.setdefault((each.device, each.metric), set()).add(each.rule)
    return [
        dataclasses.replace(each, confidence=CONFIRMED)
        if each.confidence == FAILED and len(rules.get((each.device, each.metric), ())) > 1
        else each
        for each in findings
    ]


def compared_with(findings: Iterable[Finding], devices: Mapping[str, int]) -> list[Finding]:
    """The findings, and one more for each metric (or driver message) in which most devices of a kind fail alike.

    The node still fails. The devices' own findings get the action ``fix software`` and at most the confidence
    ``SHARED_CAUSE``. Where all are known to be faults of software, no further finding has to say so.
    ``devices``: {kind: number in the node}.
    """
    given = list(findings)
    failing: dict[tuple[str, str], set[str]] = {}
    unexplained: set[tuple[str, str]] = set()
    for each in given:
        if each.severity is Severity.CRITICAL:
            key = (kind_of(each.device), subject(each))
            failing.setdefault(key, set()).add(each.device)
            unexplained |= {key} if each.fault_class is not FaultClass.SOFTWARE else set()
    common = {
        (kind, metric): sorted(alike)
        for (kind, metric), alike in failing.items()
        if len(alike) >= DEVICES_MIN and len(alike) >= DEVICE_SHARE * devices.get(kind, 0)
    }
    causes = [
        _cause(kind, metric, alike, given)
        for (kind, metric), alike in sorted(common.items())
        if (kind, metric) in unexplained
    ]
    kept = [
        dataclasses.replace(each, confidence=min(each.confidence, SHARED_CAUSE), action=Action.FIX_SOFTWARE)
        if each.severity is Severity.CRITICAL and (kind_of(each.device), subject(each)) in common
        else each
        for each in given
    ]
    return [*causes, *kept]


def _cause(kind: str, metric: str, alike: Sequence[str], findings: Sequence[Finding]) -> Finding:
    of = [each for each in findings if subject(each) == metric and each.device in alike]
    return Finding(
        rule=COMMON_CAUSE,
        metric=metric,
        device="node",
        severity=Severity.CRITICAL,
        fault_class=FaultClass.SOFTWARE,
        action=Action.FIX_SOFTWARE,
        observed=f"{listed(list(alike))} fail alike",
        expected="faults of devices to come one at a time",
        source=f"chosen here: {100 * DEVICE_SHARE:.0f} % of a node's devices alike are no coincidence",
        summary=(
            f"{len(alike)} {kind}s of the node fail alike in {metric}: suspect software, the golden reference or "
            "the facility first; return no device until these are ruled out."
        ),
        confidence=FAILED,
        measurements=tuple(dict.fromkeys(reference for each in of for reference in each.measurements)),
    )
