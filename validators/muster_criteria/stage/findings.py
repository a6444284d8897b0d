"""Findings: one for each row that breaks a rule, with what an operator needs to act on it."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from muster_criteria.context.goldens import GOLDEN
from muster_criteria.devices import kind_of, natural
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import given_name
from muster_criteria.fleet.single import FLEET_PROBE, LEVEL, Runs
from muster_criteria.model import (
    COMMON_CAUSE,
    DEVICE_EVENT,
    EVIDENCE,
    Action,
    Evidence,
    Extent,
    FaultClass,
    Finding,
    Severity,
    Variant,
    measurement_reference,
)
from muster_criteria.rows import NOT_COUNTED, PRESENCE, SLOT_KNOWN, first_gpus
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.fleet_findings import fleet_finding
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.plausible import plausible_finding
from muster_criteria.stage.row_findings import row_finding
from muster_criteria.stage.rules import FLEET_KINDS, INVALID_KINDS, KINDS, Rule, Violations
from muster_criteria.text import cut
from muster_criteria.words import measured

MODULE_ID = "module_id"
DETAIL_MAX = 160
"""Characters of a measurement's note that its finding quotes; the observation has all of it."""

FINDINGS_MAX = 1000
"""Findings of a stage that are kept: far more than a node's devices times its limits."""

_RANK = {rule: rank for rank, rule in enumerate((COMMON_CAUSE, *KINDS, GOLDEN, DEVICE_EVENT))}


@dataclasses.dataclass(frozen=True)
class Breaking:
    """A row that breaks a rule, and its finding."""

    position: int
    rule: Rule
    finding: Finding


def findings_of(
    frame: Frame, rules: Sequence[Rule], broken: Violations, sku: Sku, runs: Runs | None = None
) -> list[Breaking]:
    """Every row that breaks a rule; one that breaks both its fail and its warn rule counts once, as failing."""
    failing: set[tuple[str, int]] = set()
    found: list[Breaking] = []
    origins = Origins(frame)
    for rule in rules:  # rules whose breach fails come before those whose breach warns
        for position in broken.get(rule.column, ()):
            if rule.breach == "warn" and (rule.kind, position) in failing:
                continue
            if rule.breach == "fail":
                failing.add((rule.kind, position))
            values = (runs or {}).get(position, ())
            found.append(Breaking(position, rule, _finding(frame, position, rule, sku, values, origins)))
    return found


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The gravest first, then by rule and device, each once; always the same order for the same findings."""
    return tuple(sorted(dict.fromkeys(findings), key=_importance))


def bounded(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, at most ``FINDINGS_MAX``; a last one counts those left out and is as grave as the gravest of them.

    The first finding of each rule, metric and device is kept before any second one. Thousands of findings come from a
    node that reports arbitrary labels or devices, and would fill records, reports and mails.
    """
    if len(findings) <= FINDINGS_MAX:
        return tuple(findings)
    seen: collections.Counter[tuple[str, str, str]] = collections.Counter()
    places = []
    for at, each in enumerate(findings):
        key = (each.rule, each.metric, each.device)
        places.append((seen[key], at))
        seen[key] += 1
    chosen = sorted(at for _, at in sorted(places)[:FINDINGS_MAX])
    dropped = [findings[at] for _, at in sorted(places)[FINDINGS_MAX:]]
    gravest = min((each.severity for each in dropped), key=lambda severity: severity.rank)
    rest = Finding(
        rule="left_out", metric="findings", device="node", severity=gravest, fault_class=FaultClass.NODE,
        action=Action.INSPECT, observed=f"{len(dropped)} findings", expected=f"at most {FINDINGS_MAX} findings",
        source="the number of findings that are kept",
        summary=f"{len(dropped)} further findings are left out; the stored result has every measurement.",
    )  # fmt: skip
    return (*(findings[at] for at in chosen), rest)


def evidence_finding(evidence: Evidence) -> Finding:
    """Returns a fact that the controller itself established as a finding."""
    return Finding(
        rule=evidence.kind,
        metric=EVIDENCE,
        device=evidence.device,
        severity=evidence.severity,
        fault_class=evidence.fault_class,
        action=evidence.action,
        observed=evidence.sentence,
        expected=evidence.expected,
        source="established by the controller",
        summary=evidence.sentence,
        labels=evidence.labels,
        extent=Extent(evidence.incident) if evidence.incident else None,
    )


def _importance(finding: Finding) -> tuple[Any, ...]:
    in_time = finding.rule == DEVICE_EVENT  # they stay in the order in which they happened: the first one is the origin
    return (
        finding.severity.rank,
        _RANK.get(finding.rule, len(_RANK)),
        finding.rule,
        natural("" if in_time else finding.device),
        finding.metric,
        () if in_time else finding.labels,
    )


def _finding(frame: Frame, position: int, rule: Rule, sku: Sku, runs: Sequence[float], origins: Origins) -> Finding:
    row = frame.row(position)
    if rule.kind == "expected_devices":
        return _presence_finding(row, sku, frame)
    if rule.kind in FLEET_KINDS:
        comparison = sku.programme.compare[int(row[f"{rule.column}_by"])]
        behind = [frame.row(at) for at in origins.of(row, comparison, sku)]
        return fleet_finding(row, rule, comparison, tuple(_reference(each) for each in behind), runs)
    if rule.kind in INVALID_KINDS:
        return plausible_finding(row, rule, sku.programme.compare[int(row[f"{rule.column}_by"])].worse)
    return limit_finding(row, rule, sku)


def limit_finding(row: Mapping[str, Any], rule: Rule, sku: Sku) -> Finding:
    """The finding of a row that breaks a limit."""
    limit = sku.all_limits[int(row[f"{rule.column}_by"])]
    at = float(row[f"{rule.column}_at"])
    observed, expected = observed_text(row, limit, at), limit.kind.expected(limit, at, row)
    return row_finding(
        row,
        rule,
        fault_class=limit.fault,
        action=limit.action,
        lead=f"{row['device']} {limit.meaning}" if limit.meaning else row["device"],
        observed=observed,
        expected=expected,
        source=f"{limit.source} ({limit.date.isoformat()})",
        detail=f" ({cut(row['note'], DETAIL_MAX)})" if row["note"] else "",
        extent=_extent(row, limit, at),
    )


class Origins:
    """Finds the measured rows that a row of the fleet's rules is derived from. Indexed once per frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._labels = frame, frame["labels"]

    @functools.cached_property
    def _of_device(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        columns = (self._frame[name].tolist() for name in ("probe", "metric", "device"))
        for position, (probe, metric, device) in enumerate(zip(*columns, strict=True)):
            if probe != FLEET_PROBE:
                found.setdefault((metric, device), []).append(position)
        return found

    @functools.cached_property
    def _of_kind(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for (metric, device), positions in self._of_device.items():
            found.setdefault((metric, kind_of(device)), []).extend(positions)
        return found

    def of(self, row: Mapping[str, Any], comparison: Comparison, sku: Sku) -> list[int]:
        """Positions in the frame: the row itself; for a family's index or a node's level, all rows that it combines."""
        metric, device, labels = row["metric"], row["device"], row["labels"]
        if row["probe"] != FLEET_PROBE:
            return [at for at in self._of_device.get((metric, device), ()) if self._labels[at] == labels]
        level = metric.removesuffix(LEVEL) if device == "node" else ""
        rows, of = (self._of_kind, comparison.device) if level else (self._of_device, device)
        if level == comparison.metric:
            return sorted(at for at in rows.get((level, of), ()) if self._labels[at] == labels)
        metrics = {each.metric for each in sku.programme.compare if each.family == comparison.family}
        if comparison.given and given_name(comparison) in (metric, level):
            metrics.add(comparison.given)
        return sorted(at for each in metrics for at in rows.get((each, of), ()))


def _reference(row: Mapping[str, Any]) -> str:
    return measurement_reference(row["probe"], row["metric"], row["device"], row["labels"])


def _presence_finding(row: Mapping[str, Any], sku: Sku, frame: Frame) -> Finding:
    """Names a slot only if every GPU has a module id, and so a known slot; else GPUs are numbered in the driver's
    order, in which those after a missing one move up. Nor is a slot named if the counted GPUs are not those of the
    first slots, since it is then not known which of the board's other slots belonged to the node.
    """
    counted, device = int(sku.devices.get("gpu") or 1), row["device"]
    modules = frame["value"][frame["metric"] == MODULE_ID]
    guessed = ((frame["metric"] == SLOT_KNOWN) & (frame["value"] == 0)).any()
    of_counted = (frame["metric"] == PRESENCE) & (frame["note"] != NOT_COUNTED)
    in_first = set(frame["device"][of_counted].tolist()) == first_gpus(counted)
    known = in_first and not np.isnan(modules).any() and not guessed
    missing = row["value"] == 0
    rows, variant, action = [row], Variant.EXTRA, Action.INSPECT
    summary = f"{device} is extra: SKU {sku.name} counts {counted} GPUs; check the SKU and the slot numbers."
    if missing:
        variant, action = Variant.MISSING, Action.RESEAT
        summary = (
            f"{device} is missing: SKU {sku.name} counts {counted} GPUs, and the one in this slot does not answer."
        )
    if missing and not known:
        device, action = "node", Action.INSPECT
        silent = (frame["metric"] == PRESENCE) & (frame["value"] == 0)
        rows = [frame.row(at) for at in np.flatnonzero(silent).tolist()]
        summary = (
            f"{len(rows)} of {counted} GPUs do not answer: no module ids name their slots, so compare the serials to "
            "find them."
        )
    return Finding(
        rule="expected_devices",
        metric=row["metric"],
        device=device,
        severity=Severity.CRITICAL,
        fault_class=FaultClass.GPU,
        action=action,
        observed="does not answer" if missing else "answers",
        expected=f"{counted} GPUs, and no other",
        source=f"SKU {sku.name}, devices",
        summary=summary,
        measurements=tuple(_reference(each) for each in rows),
        variant=variant,
        extent=Extent(float(len(rows)), "count", "higher"),
    )


def _extent(row: Mapping[str, Any], limit: Limit, at: float) -> Extent:
    if row["text"] is not None:
        return Extent(row["text"])
    value, unit = limit.kind.judged(row)
    # By the limit rather than by the value, which in a noisy test may be that of a run that passed.
    lower = value < at if limit.kind.side == "exact" else limit.kind.side == "lower"
    return Extent(value, unit, "lower" if lower else "higher")


def observed_text(row: Mapping[str, Any], limit: Limit, at: float) -> str:
    """Returns the measured value as a text with unit."""
    if (own := limit.kind.observed(limit, row)) is not None:
        return own
    if row["text"] is not None:
        return repr(row["text"])
    return measured(row["metric"], row["value"], row["unit"], unlike=at)
