"""A report for readers who may not see other nodes of its block or of the fleet."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric, FaultyPart, RailMatrix
from muster_criteria.context.goldens import GOLDEN, without_parts
from muster_reports.model import RunReport, StageReport
from muster_reports.text import in_each_text

ANOTHER = "another node"
OPEN = "the circuit breaker is open:"
"""How a reason to hold a verdict begins that continues with the fleet's counts."""
_NAME = re.compile(r"[A-Za-z0-9._-]*[A-Za-z0-9_-]")
_KEPT = frozenset(
    {
        "node", "run_id", "dag_id", "run_url", "result_json", "telemetry", "device", "stage", "metric", "rule",
        "series", "unit", "sku", "level", "state_before", "state_after",
    }
)  # fmt: skip


def without(report: RunReport, others: Collection[str]) -> RunReport:
    """The report without the figures of ``others``; a text that names one, or a run of one, has "another node" there.

    It proposes no spare, names no parts that agreed on a golden, and has no counts of the circuit breaker. Its attached
    JSON, and the id and the address of its run, stay as they are.
    """
    cut = dataclasses.replace(
        report,
        fabric=_fabric(report.fabric, others) if report.fabric else None,
        training=_training(report.training, others) if report.training else None,
        stages=tuple(map(_stage, report.stages)),
        replacement="",
        breaker="",
        why_held=report.why_held.partition(":")[0] if report.why_held.startswith(OPEN) else report.why_held,
    )
    named = set(others) - _devices(report)  # a node may have the name of a device
    return in_each_text(cut, lambda text: unnamed(text, named), _KEPT)


def _devices(report: RunReport) -> set[str]:
    judged = [stage.judgement for stage in report.stages]
    of = {each.device for each in report.findings} | {each.device for one in judged for each in one.observations}
    return of | {what.partition(" ")[0] for what, _ in report.identity}


def unnamed(words: str, others: Collection[str]) -> str:
    """Returns the text with "another node" in place of each name of ``others``, in any case and domain, of each run id
    that begins with one, and of each of their IPv6 addresses, which come first, since ``_NAME`` matches no colon."""
    lower = words.lower()
    addresses = sorted((each for each in others if ":" in each and each in lower), key=len, reverse=True)
    if addresses:
        either = "|".join(map(re.escape, addresses))
        words = re.sub(f"(?<![0-9a-z])({either})(?![0-9a-z])", ANOTHER, words, flags=re.IGNORECASE)

    def shown(found: re.Match[str]) -> str:
        called = {form.partition(end)[0] for form in (found[0], found[0].lower()) for end in ("__", ".")}
        return found[0] if called.isdisjoint(others) else ANOTHER

    return _NAME.sub(shown, words)


def _stage(stage: StageReport) -> StageReport:
    findings = tuple(
        dataclasses.replace(each, source=without_parts(each.source)) if each.rule == GOLDEN else each
        for each in stage.judgement.findings
    )
    return dataclasses.replace(stage, judgement=dataclasses.replace(stage.judgement, findings=findings))


def _fabric(fabric: Fabric, others: Collection[str]) -> Fabric:
    matrices = [
        RailMatrix(
            each.rail, tuple(name for name in each.nodes if name not in others),
            tuple(cell for cell in each.cells if not {cell.sender, cell.receiver} & set(others)),
        )
        for each in fabric.matrices
    ]  # fmt: skip
    parts = tuple(part for each in fabric.parts if (part := _part(each, others)))
    complete = len(parts) == len(fabric.parts)
    return dataclasses.replace(fabric, parts=parts, matrices=tuple(matrices), complete=complete)


def _part(part: FaultyPart, others: Collection[str]) -> FaultyPart | None:
    """The part without ``others`` among what it touches; None if it is of one of them, or touches only them."""
    touches = tuple(name for name in part.touches if name not in others)
    if part.node in others or (part.touches and not touches):
        return None
    return dataclasses.replace(part, touches=touches)


def _training(training: Training, others: Collection[str]) -> Training:
    return dataclasses.replace(training, ranks=tuple(each for each in training.ranks if each.node not in others))
