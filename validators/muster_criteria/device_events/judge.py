"""A stage's device events under the SKU's policies: findings, and messages that were counted but not reported.

When it happened matters. During the stage nothing ran but Muster's own load, so even an application's error is a
warning, and whatever needs a restart is critical. Before it, the log shows other users' jobs: an application's error is
information; one that needed a reset warns, since the reset may have been done; one that needed a reboot or an
inspection is critical, since a reboot would have emptied the log. Where a person repaired the node since then, one that
needed an inspection is information: it had one; a part that is swapped while the kernel runs is lost from PCIe, and
firmware repeats after the boot what the processor that was replaced had reported. What only matters during a stage says
so (``when``): at boot, firmware makes kernels print errors on sound machines.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster_criteria.device_events.policy import (
    KERNEL,
    DeviceEvent,
    EventPolicy,
    EventSeverity,
    Response,
    key_of,
    policy_of,
    response_to,
    returning,
)
from muster_criteria.devices import natural
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import (
    DEVICE_EVENT,
    Evidence,
    FaultClass,
    Finding,
    Gap,
    Lack,
    PartJudgement,
    Severity,
    measurement_reference,
)
from muster_criteria.text import cut
from muster_criteria.words import duration, listed

INTAKE = "intake"
CODED, PLAIN = "xid", "kernel_event"
EVENTS = (CODED, PLAIN)
TOTALS = {"xid_total": CODED, "kernel_event_total": PLAIN}
BEGAN, OLDEST, PLACE = "kernel_log_time", "kernel_log_begin", "pci_address"
CLOCK = "kernel_log_clock"
"""Metrics: one message, with a code or only with its text; the number of either; times in the kernel's log of the
newest line when the stage began, and of the oldest line at its end; the PCI address of each GPU; and the log's clock
when it was read."""

BOOT_S = 60.0
"""A log whose oldest line is from later after the boot has lost its beginning: kernels print from the boot on."""

NO_GPU = "node"
"""The device of a message about a GPU that no longer answered when the log was read, or about none."""

TEXT_MAX = 200
TEXTS_LISTED = 3

DURING = {
    EventSeverity.ISOLATE: Severity.CRITICAL,
    EventSeverity.REBOOT: Severity.CRITICAL,
    EventSeverity.RESET: Severity.CRITICAL,
    EventSeverity.MONITOR: Severity.WARNING,
}
BEFORE = DURING | {EventSeverity.RESET: Severity.WARNING, EventSeverity.MONITOR: Severity.INFO}


class _When(enum.Enum):
    DURING = "during this stage"
    BEFORE = "before this stage"
    REPAIRED = "before the node was repaired"


SEVERITY: dict[_When, dict[EventSeverity, Severity]] = {
    _When.DURING: DURING, _When.BEFORE: BEFORE, _When.REPAIRED: BEFORE | {EventSeverity.ISOLATE: Severity.INFO},
}  # fmt: skip
"""An event severity that is not listed gives INFO."""


@dataclasses.dataclass(frozen=True)
class _Judged:
    event: DeviceEvent
    response: Response
    reference: str


def judge_events(
    result: StageResult, policies: Sequence[EventPolicy], repaired_for: float | None = None
) -> PartJudgement:
    """Judges every message of a stage. ``repaired_for``: seconds from a person's repair until the log was read.

    Findings, gravest first, of one severity in the order in which they happened; a gap for each probe that counted more
    messages than it reported, or whose log was overwritten or became unreadable meanwhile, and for each kind that no
    policy judges; at intake, a note where the log does not reach back to the boot.
    """
    began, clock = _time(result, BEGAN), _time(result, CLOCK)
    repaired = clock - repaired_for if clock is not None and repaired_for is not None else -math.inf
    groups: dict[tuple[Any, ...], list[_Judged]] = {}
    unjudged: dict[tuple[str, str], Gap] = {}
    messages = [each for each in result.measurements if each.metric in EVENTS]
    for event, measured in zip(events_of(result.measurements), messages, strict=True):
        policy, when = policy_of(policies, event.kind), _when(event, began, repaired)
        if policy is None:
            why = f"no policy of the SKU judges {event.kind} events"
            unjudged[event.device, event.kind] = Gap(Lack.UNJUDGED, why, "device events", event.device)
            continue
        response = response_to(event, policy, when is _When.DURING)
        key = (event.device, event.pci, event.kind, response.name, response.severity, when)
        groups.setdefault(key, []).append(_Judged(event, response, _reference(measured)))
    found = [
        (group[0].event.at or 0.0, _finding(group, when))
        for (*_, severity, when), group in groups.items()
        if severity is not EventSeverity.IGNORE
    ]
    findings = tuple(finding for _, finding in sorted(found, key=lambda each: _gravest_first(*each)))
    missing = (*_unreported(result), *_overwritten(result, began), *_unread(result, began), *unjudged.values())
    return PartJudgement(findings, missing, tuple(_not_since_boot(result)))


def _time(result: StageResult, metric: str) -> float | None:
    return next((each.value for each in result.measurements if each.metric == metric and each.value is not None), None)


def _when(event: DeviceEvent, began: float | None, repaired: float) -> _When:
    if event.after(began):
        return _When.DURING
    return _When.BEFORE if event.after(repaired) else _When.REPAIRED


def events_of(measurements: Iterable[Measured]) -> tuple[DeviceEvent, ...]:
    """The messages among measurements.

    A GPU that was lost under load no longer reports its PCI address: the one from before the load is used.
    """
    given = list(measurements)
    gpus = {place_of(each.text): each.device for each in given if each.metric == PLACE and each.text}
    return tuple(
        event_of(
            gpus.get(place_of(str(each.labels.get("pci", ""))), NO_GPU) if each.device == NO_GPU else each.device,
            each.labels,
            each.text or "",
            each.samples,
        )
        for each in given
        if each.metric in EVENTS
    )


def place_of(address: str) -> tuple[str, ...]:
    """Domain, bus and slot of a PCI address: NVML writes it with a longer domain than the kernel, and a function."""
    domain, *rest = address.lower().partition(".")[0].split(":")
    return (domain.lstrip("0"), *rest)


def event_of(device: str, labels: Mapping[str, Any], text: str, count: int) -> DeviceEvent:
    """One message, from a measurement's labels; invalid labels count as unknown, an invalid code as 0."""
    kind, code, priority = (str(labels.get(key, "")) for key in ("kind", "code", "priority"))
    coded = bool(kind) and kind != KERNEL
    return DeviceEvent(
        kind=kind or KERNEL,
        device=device,
        pci=str(labels.get("pci", "")),
        text=text,
        code=(int(code) if code.isascii() and code.isdigit() and len(code) < 10 else 0) if coded else None,
        priority=int(priority) if priority in tuple("01234567") else None,
        at=seconds_of(labels.get("at")),
        last=seconds_of(labels.get("last")),
        count=count,
    )


def seconds_of(label: object) -> float | None:
    """The seconds since boot that a label gives; None for anything else, NaN too, which is after nothing."""
    try:
        seconds = float(str(label))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def returned(
    boots: Sequence[Iterable[DeviceEvent]], now: Sequence[DeviceEvent], policy: EventPolicy
) -> tuple[Evidence, ...]:
    """Evidence for each event of ``now`` that came back in so many boots that a restart does not repair it.

    ``boots``: the events of each boot that counts, this one included, with ``pci`` naming the same part in all of them.
    """
    if (last := policy.escalation) is None:
        return ()
    often = returning(boots, policy)
    reported: dict[Any, Evidence] = {}
    for event in (each for each in now if each.kind in policy.kinds):
        response = response_to(event, policy)
        if (key := key_of(event, response)) in often:
            sentence = (
                f"{event.device}: {name_of(event, response)} ({response.meaning}) has come back in {often[key]} boots "
                f"within {last.within_days:g} days, so a restart does not repair it ({last.severity}, policy "
                f"{policy.cited})."
            )
            reported[key] = Evidence(
                "event_returns", sentence, event.device, FaultClass(response.fault), last.action,
                labels=(("code", response.name), ("kind", event.kind)),
            )  # fmt: skip
    return tuple(reported.values())


def name_of(event: DeviceEvent, response: Response) -> str:
    """The event as people call it: "XID 79", or the name of the policy's entry."""
    return response.name if event.code is None else f"{event.kind.upper()} {response.name}"


def _unreported(result: StageResult) -> Iterable[Gap]:
    """Gaps for probes that counted more messages than they reported: these count as missing."""
    for each in result.measurements:
        if each.metric in TOTALS and each.value is not None:
            events = (event for event in result.measurements if event.metric == TOTALS[each.metric])
            reported = sum(event.samples for event in events if event.probe == each.probe)
            if reported < each.value:
                why = f"{each.value:.0f} messages are counted, but only {reported} are reported"
                yield Gap(Lack.NOT_REPORTED, why, "device events", each.device)


def _overwritten(result: StageResult, began: float | None) -> Iterable[Gap]:
    """A gap if the kernel's buffer no longer reaches back to the start of the stage: what it lost is unknown."""
    for each in result.measurements:
        if each.metric == OLDEST and each.value is not None and began is not None and each.value > began:
            why = f"the kernel log reaches back to {each.value:.0f} s after boot, and the stage began at {began:.0f} s"
            yield Gap(Lack.NOT_REPORTED, why, "device events", each.device)


def _unread(result: StageResult, began: float | None) -> Iterable[Gap]:
    """Gaps if the log was read when the stage began but not at its end. A log that never could be read is excused."""
    for each in result.measurements:
        if each.metric in TOTALS and each.value is None and began is not None:
            why = f"the kernel log was read when the stage began, and not at its end ({each.note})"
            yield Gap(Lack.UNREADABLE, why, each.metric, each.device)


def _not_since_boot(result: StageResult) -> Iterable[str]:
    """A note if intake's log does not reach back to the boot. It is no gap, since logs are finite."""
    for each in result.measurements:
        if result.stage == INTAKE and each.metric == OLDEST and each.value is not None and each.value > BOOT_S:
            after = duration(each.value)
            yield f"the kernel log reaches back to {after} after boot: what was logged before is not known"


def _reference(message: Measured) -> str:
    labels = tuple((key, str(value)) for key, value in message.labels.items())
    return measurement_reference(message.probe, message.metric, message.device, labels)


def _finding(group: Sequence[_Judged], when: _When) -> Finding:
    event, response = group[0].event, group[0].response
    count = sum(each.event.count for each in group)
    times = f", {count} times" if count > 1 else ""
    where = f"PCI {event.pci}" if event.pci else "no device named"
    since = "" if event.at is None else f", {event.at:.0f} s after boot"
    name = name_of(event, response)
    meaning = response.meaning if event.code is not None else f"{response.meaning}: {cut(event.text, TEXT_MAX)}"
    return Finding(
        rule=DEVICE_EVENT,
        metric=CODED if event.code is not None else PLAIN,
        device=event.device,
        severity=SEVERITY[when].get(response.severity, Severity.INFO),
        fault_class=response.fault,
        action=response.action,
        observed=f"{name}{times} ({where}{since}): {_texts(group)}",
        expected="no message graver than IGNORE",
        source=response.source,
        summary=f"{event.device} logged {name} {when.value}{times} ({meaning}): {response.severity}.",
        labels=(("kind", event.kind), ("code", response.name), ("when", "during" if when is _When.DURING else "before"),
                *((("pci", event.pci),) if event.pci and event.device == NO_GPU else ())),
        measurements=tuple(dict.fromkeys(each.reference for each in group)),
    )  # fmt: skip


def _texts(group: Sequence[_Judged]) -> str:
    return listed(list(dict.fromkeys(cut(each.event.text, TEXT_MAX) for each in group)), TEXTS_LISTED)


def _gravest_first(first: float, finding: Finding) -> tuple[Any, ...]:
    return (finding.severity.rank, first, natural(finding.device), finding.labels)
