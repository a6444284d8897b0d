"""Silent data corruption: which findings make a part a suspect for life, and whether reruns confirm them. Pure.

Neither a reboot nor a clean test clears a suspect (docs/science.md#silent-data-corruption).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.context.goldens import DIGEST
from muster_criteria.devices import kind_of, natural
from muster_criteria.model import COMMON_CAUSE, Action, Finding, Severity, Variant
from muster_criteria.rows import Row
from muster_criteria.words import listed

RERUNS = {
    "gemm_mismatches": "gemm_rerun",
    "full_entropy_mismatches": "full_entropy_rerun",
    "memory_mismatches": "memory_rerun",
    "memory_burn_mismatches": "memory_burn_rerun",
    "round_trip_mismatches": "round_trip_rerun",
    "transfer_mismatches": "transfer_rerun",
    "disk_mismatches": "disk_rerun",
}
"""{metric of mismatches: metric of their reruns}; a rerun's label ``on`` is the device that ran it."""

METRICS = frozenset({*RERUNS, DIGEST, "host_product_mismatches", "pulse_mismatches"} - {"disk_mismatches"})
"""A critical finding of one of these is silent data corruption."""

CORRUPTING = METRICS | {
    "self_mismatches",
    "step_digest",
    "collective_mismatches",
    "pair_wrong_bytes",
    "nccl_mismatches",
    "nvbandwidth_corruptions",
    "disk_mismatches",
}
"""A critical finding of one of these is corrupted data; those that ``METRICS`` lacks may not name the part."""

PEERS_MIN = 2
SIBLINGS = ("gpu", "cpu")
"""Kinds of device with siblings that can repeat a computation; the host's memory has none."""
CONFIRMED, UNCONFIRMED = 0.99, 0.9

_Where = tuple[str, str, tuple[tuple[str, str], ...]]
"""Metric, device and labels of reruns, without ``on``."""


def makes_suspect(finding: Finding) -> bool:
    """Returns whether the part that the finding names is a suspect from now on.

    Where most siblings fail alike, the cause is sought elsewhere first and no part is a suspect yet.
    """
    return (
        finding.severity is Severity.CRITICAL
        and finding.metric in METRICS
        and finding.rule != COMMON_CAUSE
        and finding.action is not Action.FIX_SOFTWARE
        and finding.device != "node"
    )


def confirmed(findings: Iterable[Finding], rows: Iterable[Row]) -> list[Finding]:
    """The findings; those of corrupted data state whether reruns confirm them. What no rerun confirms is tested again
    before a part is replaced.
    """
    reruns: dict[_Where, list[Row]] = {}
    for row in rows:
        if row.metric in RERUNS.values() and row.value is not None and "on" in dict(row.labels):
            labels = tuple(label for label in row.labels if label[0] != "on")
            reruns.setdefault((row.metric, row.device, labels), []).append(row)
    return [_with_reruns(each, reruns) for each in findings]


def _with_reruns(finding: Finding, reruns: Mapping[_Where, Sequence[Row]]) -> Finding:
    if finding.metric not in CORRUPTING or finding.severity is not Severity.CRITICAL:
        return finding
    again = reruns.get((RERUNS.get(finding.metric, ""), finding.device, finding.labels), [])
    reason, sure = _conclusion(finding.device, again) if again else ("no rerun tells whether it recurs", False)
    return dataclasses.replace(
        finding,
        summary=f"{finding.summary.rstrip('.')}; {'confirmed' if sure else 'unconfirmed'}: {reason}.",
        action=finding.action if sure else Action.RETEST,
        confidence=min(finding.confidence, CONFIRMED if sure else UNCONFIRMED),
        variant=Variant.CONFIRMED if sure else Variant.UNCONFIRMED,
    )


def _conclusion(device: str, again: Sequence[Row]) -> tuple[str, bool]:
    """Returns (outcome of the reruns, whether they confirm the fault)."""
    own, peers = _own(device, again), _peers(device, again)
    wrong, runs = sum(int(row.value or 0) for row in own), sum(row.samples for row in own)
    clean, bad = ([on for on, row in peers.items() if bool(row.value) is is_wrong] for is_wrong in (False, True))
    outcome = f"wrong again in {wrong} of {runs} reruns" if wrong else f"intermittent, right in {runs} reruns"
    if bad:
        return f"{outcome}, but wrong on {listed(bad)} too", False
    if kind_of(device) not in SIBLINGS:
        return outcome, bool(wrong)
    if len(clean) < PEERS_MIN:
        return f"{outcome}, and fewer than two siblings repeated it: run it again on peers", False
    return f"{outcome}, and right on {listed(clean)}", bool(wrong)


def _own(device: str, again: Sequence[Row]) -> list[Row]:
    """Reruns where it was found: on the device itself, or on the cores that share the memory or node that it names."""
    return [row for row in again if _on(row) == device or kind_of(_on(row)) != kind_of(device)]


def _peers(device: str, again: Sequence[Row]) -> dict[str, Row]:
    alike = [row for row in again if _on(row) != device and kind_of(_on(row)) == kind_of(device)]
    return {_on(row): row for row in sorted(alike, key=lambda row: natural(_on(row)))}


def _on(row: Row) -> str:
    return dict(row.labels)["on"]
