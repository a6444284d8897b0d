"""A stage's XIDs under the SKU's policy: findings, and messages that were counted but not reported.

When an error happened matters. During the stage nothing ran but Muster's own load, so even an application's error is a
warning, and whatever needs a restart is critical. Before it, the log shows other users' jobs: an application's error
is information; one that needed a reset warns, since the reset may have been done; one that needed a reboot or an
inspection is critical, since a reboot would have emptied the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster_criteria.devices import natural
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import XID, Evidence, FaultClass, Finding, Gap, Lack, Severity, measurement_reference
from muster_criteria.words import listed
from muster_criteria.xid.policy import Response, XidEvent, XidPolicy, XidSeverity, response_to, returning

EVENT, TOTAL, BEGAN, PLACE = "xid", "xid_total", "kernel_log_time", "pci_address"
"""Metrics: one driver message, the number of messages, the time in the kernel's log when the stage began, and the PCI
address of each GPU."""

NO_GPU = "node"
"""The device of a message about a GPU that no longer answered when the log was read."""

TEXT_MAX = 120
TEXTS_LISTED = 2

DURING = {
    XidSeverity.ISOLATE: Severity.CRITICAL,
    XidSeverity.REBOOT: Severity.CRITICAL,
    XidSeverity.RESET: Severity.CRITICAL,
    XidSeverity.MONITOR: Severity.WARNING,
}
BEFORE = {
    XidSeverity.ISOLATE: Severity.CRITICAL,
    XidSeverity.REBOOT: Severity.CRITICAL,
    XidSeverity.RESET: Severity.WARNING,
    XidSeverity.MONITOR: Severity.INFO,
}


@dataclasses.dataclass(frozen=True)
class XidJudgement:
    """Findings, gravest first, and a gap for each probe that counted more messages than it reported."""

    findings: tuple[Finding, ...] = ()
    missing: tuple[Gap, ...] = ()


def judge_xids(result: StageResult, policy: XidPolicy | None) -> XidJudgement:
    """Judges every XID of a stage; empty where the SKU has no policy."""
    if policy is None:
        return XidJudgement()
    began = next((each.value for each in result.measurements if each.metric == BEGAN and each.value is not None), None)
    groups: dict[tuple[str, str, int, XidSeverity, bool], list[tuple[XidEvent, Response, str]]] = {}
    messages = [each for each in result.measurements if each.metric == EVENT]
    for event, measured in zip(events_of(result.measurements), messages, strict=True):
        response = response_to(event, policy)
        during = event.after(began)
        key = (event.device, event.kind, event.code, response.severity, during)
        groups.setdefault(key, []).append((event, response, _reference(measured)))
    found = [
        _finding(
            [event for event, _, _ in group], group[0][1], during, tuple(dict.fromkeys(each for *_, each in group))
        )
        for (_, _, _, severity, during), group in groups.items()
        if severity is not XidSeverity.IGNORE
    ]
    return XidJudgement(tuple(sorted(found, key=_gravest_first)), tuple(_unreported(result)))


def events_of(measurements: Iterable[Measured]) -> tuple[XidEvent, ...]:
    """The XIDs and SXIDs among measurements; one whose labels make no sense counts as an unknown code.

    A GPU that was lost under load no longer reports its PCI address: the one from before the load is used.
    """
    given = list(measurements)
    gpus = gpus_at(given)
    return tuple(
        event_of(
            gpus.get(place_of(each.labels.get("pci", "")), NO_GPU) if each.device == NO_GPU else each.device,
            each.labels,
            each.text or "",
            each.samples,
        )
        for each in given
        if each.metric == EVENT
    )


def gpus_at(measurements: Iterable[Measured]) -> dict[tuple[str, ...], str]:
    """{place of a PCI address: the GPU there}, of all that reported their address at some time of the stage."""
    return {place_of(each.text): each.device for each in measurements if each.metric == PLACE and each.text}


def place_of(address: str) -> tuple[str, ...]:
    """Domain, bus and slot of a PCI address: NVML writes it with a longer domain than the kernel, and a function."""
    domain, *rest = address.lower().partition(".")[0].split(":")
    return (domain.lstrip("0"), *rest)


def event_of(device: str, labels: Mapping[str, Any], text: str, count: int) -> XidEvent:
    """One message, from a measurement's labels."""
    code = str(labels.get("code", ""))
    return XidEvent(
        kind="sxid" if labels.get("kind") == "sxid" else "xid",
        code=int(code) if code.isascii() and code.isdigit() else 0,
        device=device,
        pci=str(labels.get("pci", "")),
        text=text,
        at=seconds_of(labels.get("at")),
        count=count,
        last=seconds_of(labels.get("last")),
    )


def seconds_of(label: object) -> float | None:
    """The seconds since boot that a label gives; None for anything else."""
    try:
        return float(str(label))
    except ValueError:
        return None


def returned(boots: Sequence[Iterable[XidEvent]], now: Sequence[XidEvent], policy: XidPolicy) -> tuple[Evidence, ...]:
    """Evidence for each error of ``now`` that came back in so many boots that a restart does not repair it.

    ``boots``: the events of each boot, this one included, with ``pci`` naming the same part in all of them.
    """
    often = returning(boots, policy)
    reported: dict[tuple[str, str, int], Evidence] = {}
    for event in now:
        key = (event.pci or event.device, event.kind, event.code)
        if key in often:
            response = response_to(event, policy)
            sentence = (
                f"{event.device}: {event.name} ({response.meaning}) has come back in {often[key]} boots, so a restart "
                f"does not repair it ({policy.escalation.severity}, XID policy {policy.cited})."
            )
            reported[key] = Evidence(
                "xid_returns", sentence, event.device, FaultClass(response.fault), policy.escalation.action
            )
    return tuple(reported.values())


def _unreported(result: StageResult) -> Iterable[Gap]:
    """Gaps for probes that counted more messages than they reported: these count as missing."""
    events = [each for each in result.measurements if each.metric == EVENT]
    for each in result.measurements:
        if each.metric == TOTAL and each.value is not None:
            reported = sum(event.samples for event in events if event.probe == each.probe)
            if reported < each.value:
                why = f"{each.value:.0f} messages are counted, but only {reported} are reported"
                yield Gap(Lack.NOT_REPORTED, why, "XIDs", each.device)


def _reference(message: Measured) -> str:
    labels = tuple((key, str(value)) for key, value in message.labels.items())
    return measurement_reference(message.probe, message.metric, message.device, labels)


def _finding(events: Sequence[XidEvent], response: Response, during: bool, measurements: tuple[str, ...]) -> Finding:
    first = events[0]
    count = sum(event.count for event in events)
    times = f", {count} times" if count > 1 else ""
    when = "during this stage" if during else "before this stage"
    severity = (DURING if during else BEFORE)[response.severity]
    return Finding(
        rule=XID,
        metric=EVENT,
        device=first.device,
        severity=severity,
        fault_class=response.fault,
        action=response.action,
        observed=f"{first.name}{times} (PCI {first.pci or 'unknown'}{_since(first)}): {_texts(events)}",
        expected="no message graver than IGNORE",
        source=response.source,
        summary=f"{first.device} logged {first.name} {when}{times} ({response.meaning}): {response.severity}.",
        labels=(("code", str(first.code)), ("kind", first.kind), ("when", "during" if during else "before")),
        measurements=measurements,
    )


def _since(event: XidEvent) -> str:
    return "" if event.at is None else f", {event.at:.0f} s after boot"


def _texts(events: Sequence[XidEvent]) -> str:
    texts = [event.text if len(event.text) <= TEXT_MAX else event.text[: TEXT_MAX - 1] + "…" for event in events]
    return listed(list(dict.fromkeys(texts)), TEXTS_LISTED)


_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _gravest_first(finding: Finding) -> tuple[Any, ...]:
    return (_ORDER[finding.severity], natural(finding.device), finding.labels)
