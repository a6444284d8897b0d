"""The judge of a block: what its members sent becomes a verdict on each, whoever of them was at fault.

Pure, and the order of members does not matter. Nobody passes on doubt: a member is cleared only if everything required
was measured, another device confirmed each of its digests, and nothing was found on it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.digests import judge_digests
from muster_criteria.cluster.model import (
    COLLECTIVES,
    GRAVITY,
    STAGE,
    TRAINING,
    Case,
    ClusterJudgement,
    Measurements,
    MemberResult,
    MemberVerdict,
)
from muster_criteria.cluster.payloads import judge_payloads
from muster_criteria.cluster.presence import judge_presence
from muster_criteria.cluster.stragglers import judge_pace
from muster_criteria.model import Coverage, Severity, Verdict
from muster_criteria.stage.rows import natural

__all__ = ["GRAVITY", "STAGE", "ClusterJudgement", "MemberResult", "MemberVerdict", "convict"]

log = logging.getLogger(__name__)

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Operations whose payload must have been checked."""

ON_NODE = ("training_devices", "step_compute", "step_wait", "weights_digest")
ON_DEVICES = ("digest_key", "self_mismatches", "step_digest")

_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
REASON_MAX = 400


def convict(members: Sequence[MemberResult]) -> ClusterJudgement:
    """Judge a block. Raises ValueError for fewer than two members, or two of one name; for nothing that a node sent."""
    names = [member.name for member in members]
    if len(names) < 2 or len(set(names)) != len(names):
        raise ValueError(f"a block is at least two members, each named once, not {names!r}.")
    ordered = sorted(members, key=lambda member: member.name)
    case = Case()
    measured = {member.name: Measurements(member.result) for member in ordered}
    for part in (functools.partial(judge_presence, ordered), judge_digests, judge_pace, judge_payloads, _judge_loss):
        try:
            part(measured, case)
        except Exception as error:  # whatever is wrong with the judge must not become a pass
            log.exception("judging the block failed")
            case.doubt(names, f"the judge could not do its work ({type(error).__name__}: {error})")
    devices = _devices_expected(ordered, measured)
    verdicts = [_verdict(member, measured[member.name], devices[member.name], case) for member in ordered]
    return ClusterJudgement(tuple(verdicts), tuple(case.notes))


def _judge_loss(members: Mapping[str, Measurements], case: Case) -> None:
    """After the all-reduce corruption is everybody's: a loss that is no number counts where nobody is convicted."""
    spoilt = [
        name
        for name, measured in members.items()
        if any(row.value is None and row.text is None for row in measured.rows(TRAINING, "loss"))
    ]
    if spoilt and not case.has_critical():
        case.doubt(spoilt, "the loss was not a finite number, and nobody is found who spoilt it")


def _devices_expected(members: Sequence[MemberResult], measured: Mapping[str, Measurements]) -> dict[str, int]:
    """What the SKU counts; else as many GPUs as the best of the block has, or as many CPUs as the node itself has."""
    tested = {member.name: measured[member.name].devices(TRAINING, "self_mismatches") for member in members}
    gpus = {name: sum(device.startswith("gpu") for device in devices) for name, devices in tested.items()}
    most = max(gpus.values())
    return {
        member.name: member.devices or (most if gpus[member.name] else max(1, len(tested[member.name])))
        for member in members
    }


def _verdict(member: MemberResult, measured: Measurements, devices: int, case: Case) -> MemberVerdict:
    coverage = _coverage(measured, devices)
    doubts = case.doubts.get(member.name, [])
    findings = sorted(
        case.findings.get(member.name, []),
        key=lambda finding: (_ORDER[finding.severity], finding.rule, natural(finding.device), finding.summary),
    )
    graves = [finding.severity for finding in findings]
    if Severity.CRITICAL in graves:
        verdict, reason = Verdict.FAIL, _first([f.summary for f in findings if f.severity is Severity.CRITICAL])
    elif doubts:
        verdict, reason = Verdict.INCONCLUSIVE, _first(doubts)
    elif coverage.missing:
        count = f"Not measured ({len(coverage.missing)} of {coverage.required} required): "
        verdict, reason = Verdict.INCONCLUSIVE, _first([count + sentence for sentence in coverage.missing])
    elif Severity.WARNING in graves:
        verdict, reason = Verdict.WARN, _first([f.summary for f in findings])
    else:
        verdict = Verdict.PASS
        reason = f"All {coverage.required} required measurements were taken, and the block confirms them."
    if doubts:
        coverage = dataclasses.replace(coverage, missing=(*coverage.missing, *doubts))
    return MemberVerdict(member.name, verdict, reason, coverage, tuple(findings), member.name in case.missing)


def _coverage(measured: Measurements, devices: int) -> Coverage:
    """What a member must have measured to be cleared, whatever its plan asked of it."""
    missing: list[str] = []
    required = 0

    def need(there: bool, what: str) -> None:
        nonlocal required
        required += 1
        if not there:
            missing.append(what)

    for op in OPS:
        rows = [row for row in measured.rows(COLLECTIVES, "collective_mismatches") if row.labels.get("op") == op]
        need(any(row.value is not None for row in rows), f"collective_mismatches[op={op}]")
    for probe in (COLLECTIVES, TRAINING):
        need(measured.value(probe, "block_intact") == 1, f"{probe} to the block's end")
    for metric in ON_NODE:
        rows = [row for row in measured.rows(TRAINING, metric) if row.device == "node"]
        need(any(row.value is not None or row.text for row in rows), metric)
    need(bool(measured.rows(TRAINING, "loss")), "loss")
    for metric in ON_DEVICES:
        usable = {row.device for row in measured.rows(TRAINING, metric) if row.value is not None or row.text}
        found = len(usable)
        for number in range(devices):
            need(number < found, f"{metric} on each of {devices} devices: {found} reported it")
    told = tuple(dict.fromkeys(missing))
    return Coverage(required=required, measured=required - len(missing), judged=required - len(missing), missing=told)


def _first(sentences: Sequence[str]) -> str:
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return sentences[0].rstrip(".")[: REASON_MAX - len(more) - 1] + more + "."
