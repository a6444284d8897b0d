"""Judges the versions of drivers and firmware that intake recorded, before any load. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.devices import natural
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import Action, FaultClass, Finding, Gap, Lack, PartJudgement, Severity, measurement_reference
from muster_criteria.rows import counted_gpus
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.versions import KIND, Allowed
from muster_criteria.words import listed

VERSION = "version"
"""The rule of findings about a version that is not allowed."""
STAGE = "intake"
AGREE_MIN = 8
"""Nodes that must run a version before the fleet counts as agreed on it."""

Running = Mapping[str, Mapping[str, int]]
"""{part: {version: how many other nodes of the SKU run it}}"""


def judge_versions(result: StageResult, sku: Sku, running: Running) -> PartJudgement:
    """Judges the versions in ``result``; empty for any stage but intake."""
    if result.stage != STAGE:
        return PartJudgement()
    findings: list[Finding] = []
    missing: list[Gap] = []
    notes: list[str] = []
    for allowed in sku.versions:
        counts = running.get(allowed.part, {})
        fleet = {version: nodes for version, nodes in sorted(counts.items()) if nodes >= AGREE_MIN}
        unknown = allowed.as_the_fleet and not fleet
        if unknown:
            best = max(running.get(allowed.part, {}).values(), default=0)
            notes.append(
                f"{allowed.part} is not compared with the fleet: {best} nodes agree on a version, of {AGREE_MIN}"
            )
        rows = [
            each
            for each in result.measurements
            if each.metric == allowed.part and allowed.labels.items() <= each.labels.items()
        ]
        missing += _unknown(allowed, rows, result, sku)
        if unknown:  # the other forms only widen what the fleet runs
            continue
        wrong: dict[str, list[Measured]] = collections.defaultdict(list)
        for row in rows:
            permitted = allowed.allows(row.text, fleet) if row.text else True
            if permitted is None:
                why = f"{row.text} cannot be compared with {allowed.at_least or allowed.below}"
                missing.append(Gap(Lack.UNJUDGED, why, allowed.part, row.device))
            elif not permitted:
                wrong[row.text or ""].append(row)
        findings += [_finding(allowed, version, found, fleet) for version, found in sorted(wrong.items())]
    return PartJudgement(tuple(findings), tuple(missing), tuple(notes))


def _unknown(allowed: Allowed, rows: Sequence[Measured], result: StageResult, sku: Sku) -> list[Gap]:
    """A version that the file names and no device reports was not checked, so it counts as missing."""
    kind = KIND.get(allowed.part, "node")
    expected = (counted_gpus(result, sku) if kind == "gpu" and not allowed.labels else None) or frozenset()
    unread = {row.device: row.note or "it is empty" for row in rows if not row.text}
    devices = expected | {row.device for row in rows}
    if not devices:
        return [Gap(Lack.NOT_REPORTED, f"no {kind} reports it", allowed.part)]
    known = {row.device for row in rows if row.text}
    return [
        Gap(Lack.UNREADABLE, unread[device], allowed.part, device)
        if device in unread
        else Gap(Lack.NOT_REPORTED, "it was not reported", allowed.part, device)
        for device in sorted(devices - known, key=natural)
    ]


def _finding(allowed: Allowed, version: str, rows: Sequence[Measured], fleet: Mapping[str, int]) -> Finding:
    """One finding for all devices that have the same wrong version."""
    devices = sorted({row.device for row in rows}, key=natural)
    forms = [allowed.expected] if allowed.expected else []
    if allowed.as_the_fleet:
        forms += [f"{each}, as {nodes} other nodes" for each, nodes in fleet.items()]
    expected, who = " or ".join(forms), listed(devices, 8)
    return Finding(
        rule=VERSION,
        metric=allowed.part,
        device=devices[0] if len(devices) == 1 else "node",
        severity=Severity.CRITICAL,
        fault_class=FaultClass.SOFTWARE,
        action=Action.FIX_SOFTWARE,
        observed=version,
        expected=expected,
        source=f"{allowed.source} ({allowed.date.isoformat()})",
        summary=f"{who}: {allowed.part} is {version}, allowed is {expected}.",
        labels=(("version", version),),
        measurements=tuple(
            measurement_reference(row.probe, row.metric, row.device, tuple(sorted(row.labels.items()))) for row in rows
        ),
    )


def differing(members: Mapping[str, Mapping[str, str]], names: Iterable[str]) -> list[str]:
    """A sentence for each of ``names`` in which the environments of ``members`` differ; unknown ones count as one."""
    sentences = []
    for name in names:
        who: dict[str, list[str]] = collections.defaultdict(list)
        for member, environment in members.items():
            who[environment.get(name) or "unknown"].append(member)
        if len(who) > 1:
            versions = "; ".join(f"{version} on {listed(found, 8)}" for version, found in sorted(who.items()))
            sentences.append(f"its members differ in {name}: {versions}")
    return sentences
