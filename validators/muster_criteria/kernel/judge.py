"""A stage's kernel messages under the SKU's policy: findings, and messages that were counted but not reported.

As for XIDs, when it happened matters (``xid.judge``): during the stage nothing ran but Muster's own load. Messages that
no entry knows count by the kernel's own priority, and only during the stage: at boot, firmware makes kernels print
errors on sound machines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster_criteria.devices import natural
from muster_criteria.kernel.policy import KernelEvent, KernelPolicy, Response, response_to
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import KERNEL, Finding, Gap, Lack, Severity, measurement_reference
from muster_criteria.words import listed
from muster_criteria.xid.judge import BEFORE, BEGAN, DURING, NO_GPU, gpus_at, place_of, seconds_of
from muster_criteria.xid.policy import XidSeverity

EVENT, TOTAL, OLDEST = "kernel_event", "kernel_event_total", "kernel_log_begin"
"""Metrics: one message or record, the number of them, and the time of the oldest line that the log still has."""

TEXT_MAX = 200
TEXTS_LISTED = 3


@dataclasses.dataclass(frozen=True)
class KernelJudgement:
    """Findings, gravest first, of one severity in the order in which they happened; a gap for each probe that counted
    more messages than it reported, or whose log was overwritten meanwhile."""

    findings: tuple[Finding, ...] = ()
    missing: tuple[Gap, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Judged:
    event: KernelEvent
    response: Response
    reference: str


def judge_kernel(result: StageResult, policy: KernelPolicy) -> KernelJudgement:
    """Judges every message of a stage."""
    began = next((each.value for each in result.measurements if each.metric == BEGAN and each.value is not None), None)
    groups: dict[tuple[str, str, str, bool], list[_Judged]] = {}
    messages = [each for each in result.measurements if each.metric == EVENT]
    for event, measured in zip(events_of(result.measurements), messages, strict=True):
        during = event.after(began)
        response = response_to(event, during, policy)
        key = (event.device, event.pci, response.name, during)
        groups.setdefault(key, []).append(_Judged(event, response, _reference(measured)))
    found = [
        (group[0].event.first or 0.0, _finding(group, during))
        for (*_, during), group in groups.items()
        if group[0].response.severity is not XidSeverity.IGNORE
    ]
    findings = tuple(finding for _, finding in sorted(found, key=lambda each: _gravest_first(*each)))
    return KernelJudgement(findings, (*_unreported(result), *_overwritten(result, began)))


def events_of(measurements: Iterable[Measured]) -> tuple[KernelEvent, ...]:
    """The messages among measurements. A GPU that was lost under load no longer reports its PCI address: the one from
    before the load is used."""
    given = list(measurements)
    gpus = gpus_at(given)
    return tuple(
        event_of(
            gpus.get(place_of(str(each.labels.get("pci", ""))), NO_GPU) if each.device == NO_GPU else each.device,
            each.labels,
            each.text or "",
            each.samples,
        )
        for each in given
        if each.metric == EVENT
    )


def event_of(device: str, labels: Mapping[str, Any], text: str, count: int) -> KernelEvent:
    """One message, from a measurement's labels; what makes no sense in them is unknown."""
    priority = str(labels.get("priority", ""))
    return KernelEvent(
        device=device,
        pci=str(labels.get("pci", "")),
        text=text,
        priority=int(priority) if priority in tuple("01234567") else None,
        first=seconds_of(labels.get("at")),
        last=seconds_of(labels.get("last")),
        count=count,
    )


def _unreported(result: StageResult) -> Iterable[Gap]:
    events = [each for each in result.measurements if each.metric == EVENT]
    for each in result.measurements:
        if each.metric == TOTAL and each.value is not None:
            reported = sum(event.samples for event in events if event.probe == each.probe)
            if reported < each.value:
                why = f"{each.value:.0f} messages are counted, but only {reported} are reported"
                yield Gap(Lack.NOT_REPORTED, why, "kernel messages", each.device)


def _overwritten(result: StageResult, began: float | None) -> Iterable[Gap]:
    """A gap where the kernel's buffer no longer reaches back to the begin of the stage: what it lost is unknown."""
    for each in result.measurements:
        if each.metric == OLDEST and each.value is not None and began is not None and each.value > began:
            why = f"the kernel log reaches back to {each.value:.0f} s after boot, and the stage began at {began:.0f} s"
            yield Gap(Lack.NOT_REPORTED, why, "kernel messages", each.device)


def _reference(message: Measured) -> str:
    labels = tuple((key, str(value)) for key, value in message.labels.items())
    return measurement_reference(message.probe, message.metric, message.device, labels)


def _finding(group: Sequence[_Judged], during: bool) -> Finding:
    event, response = group[0].event, group[0].response
    count = sum(each.event.count for each in group)
    times = f", {count} times" if count > 1 else ""
    when = "during this stage" if during else "before this stage"
    where = f"PCI {event.pci}" if event.pci else "no device named"
    since = "" if event.first is None else f", {event.first:.0f} s after boot"
    return Finding(
        rule=KERNEL,
        metric=EVENT,
        device=event.device,
        severity=(DURING if during else BEFORE)[response.severity],
        fault_class=response.fault,
        action=response.action,
        observed=f"{response.name}{times} ({where}{since}): {_texts(group)}",
        expected="no message graver than IGNORE",
        source=response.source,
        summary=f"{event.device} logged {when}{times}: {response.meaning} ({_short(event.text)}): {response.severity}.",
        labels=(("kind", "kernel"), ("code", response.name), ("when", "during" if during else "before"),
                *((("pci", event.pci),) if event.pci else ())),
        measurements=tuple(dict.fromkeys(each.reference for each in group)),
    )  # fmt: skip


def _texts(group: Sequence[_Judged]) -> str:
    return listed(list(dict.fromkeys(_short(each.event.text) for each in group)), TEXTS_LISTED)


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _gravest_first(first: float, finding: Finding) -> tuple[Any, ...]:
    return (_ORDER[finding.severity], first, natural(finding.device), finding.labels)
