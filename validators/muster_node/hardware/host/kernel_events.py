"""Messages of the kernel log that may report a fault: a pure parser. The controller's policy decides what they mean.

Selected are all messages of priority "error" and graver, and those of lower or unknown priority that have a word of
trouble in them: drivers report lost links, resets and corrected errors as warnings or information. What a vendor's
driver says under a code of its own (an XID) is a device event.

Several lines are one event where the kernel prints one record in several: lines under the same record number
("{3}[Hardware Error]: …", drivers/firmware/efi/cper.c and amdgpu), a machine check's lines, an AER record's indented
details, and a message of NVIDIA's driver with line breaks, whose lines have one time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from muster_node.hardware.events import PCI_ADDRESS, DeviceEvent, normal_pci, shape_of
from muster_node.hardware.vendors import vendors

ERROR = 3
"""The kernel's priority KERN_ERR; 0 is the gravest (include/linux/kern_levels.h)."""

DISTINCT_MAX = 200
"""Different events that are kept apart. Beyond these the gravest and latest are kept; the others are counted."""

TEXT_MAX = 500
WITHIN_S = 0.05
"""Lines of one record follow each other within that time."""

TROUBLE = re.compile(
    r"error|unable to|fail(?!over)|(?<!de)fault|corrupt|correct(able|ed)|poison|\bRAS\b|\bBUG\b|oops|panic|lockup|"
    r"\bstall|starved|blocked for|hung|hang\b|out of memory|oom[-_ ]|killed process|time(d )?.?out|abort|"
    r"reset(?! state)|link( is)? down|fallen off|lost|offline|not respond|unrespons|dead\b|rejecting I/O|critical|"
    r"throttl|unexpected|dropped out|machine check|\bmce\b|call trace|warning:|cut here|page fault|remount|"
    r"read-only|bad (block|page|sector)|\bACA\b|check architecture|exception|controller is down|wedged|"
    r"\bata[\d.]+: disabled|queue is closed|isn't ready|didn't (send|receive)",
    re.IGNORECASE,
)
"""Words of trouble: wide on purpose, since a message that is not sent cannot be judged. ``muster device-events``
refuses a policy whose examples they miss."""

_LINE = re.compile(
    r"(?:<(\d{1,4})>)?\s*(?:(?:\w{3} [ \d]\d [\d:.]+|\d{4}-\d\d-\d\d\S+) \S+ kernel: )?"
    r"(?:\[\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\]\s?)?"
    r"(?:\[\s*(\d+(?:\.\d+)?)\]\s?)?(?:\[\s*[TC]\d+\]\s?)?(?:(?:[^\s:]+ )?kernel: )?(.*)$",
    re.DOTALL,
)
"""Priority, syslog's date and host, the date of ``dmesg -T``, time, and of some kernels the task or CPU that printed it
(CONFIG_PRINTK_CALLER), then the message."""
_RECORD = re.compile(r"^(.*?)\{(\d+)\}")
_MACHINE_CHECK = re.compile(r"^(?:mce: )?\[Hardware Error\]: ")
_DETAIL = re.compile(r"^\S+ \S+: (?:AER: )?\s{2,}\S|^\S+ \S+: AER:\s+(?:TLP Header|Error of this Agent)")


@dataclasses.dataclass(frozen=True)
class KernelEvent:
    """One message or record, or ``count`` of the same form.

    ``priority``: 0 (gravest) to 7, None if unknown; ``pci``: the first address in it ("0000:1b:00"); ``first``,
    ``last``: seconds since boot of the first and last one, None if unknown.
    """

    text: str
    priority: int | None
    pci: str
    first: float | None
    last: float | None
    count: int = 1


def device_event(line: str) -> DeviceEvent | None:
    """A line as a vendor's driver reports an error under a code of its own; None for any other line."""
    found = _LINE.match(line)
    if found is None or _of_user_space(found.group(1)):
        return None
    at = float(found.group(2)) if found.group(2) else None
    return next((event for vendor in vendors() if (event := vendor.event_of(found.group(3), at)) is not None), None)


def _of_user_space(number: str | None) -> bool:
    """Whether something in user space wrote the line into the kernel's log: its facility is not the kernel's, 0."""
    return number is not None and int(number) >> 3 > 0


def device_events(lines: Iterable[str]) -> list[DeviceEvent]:
    """All of them in a kernel log, oldest first."""
    return [event for line in lines if (event := device_event(line)) is not None]


def parse_events(lines: Iterable[str]) -> list[KernelEvent]:
    """All events of a kernel log, oldest first."""
    return [each for each in _records(lines) if selected(each)]


def selected(event: KernelEvent) -> bool:
    """Whether the event is sent to the controller."""
    return (event.priority is not None and event.priority <= ERROR) or bool(TROUBLE.search(event.text))


def _records(lines: Iterable[str]) -> list[KernelEvent]:
    records: list[KernelEvent] = []
    open_by_key: dict[str, int] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None or not found.group(3).strip() or device_event(line) is not None:
            continue
        number, at = found.group(1), float(found.group(2)) if found.group(2) else None
        if _of_user_space(number):
            continue
        priority = None if number is None else int(number) & 7
        text = found.group(3).rstrip()
        place = _place(text, at, records, open_by_key)
        if place is None:
            _remember(text, len(records), open_by_key)
            records.append(KernelEvent(text.strip()[:TEXT_MAX], priority, _pci(text), at, at))
        else:
            records[place] = _extended(records[place], text, priority)
    return records


def _place(text: str, at: float | None, records: list[KernelEvent], open_by_key: dict[str, int]) -> int | None:
    """The record that a line continues; None if it begins one."""
    numbered = _RECORD.match(text)
    if numbered:
        place = open_by_key.get(numbered.group(0))
        return place if place is not None and _near(records[place], at) else None
    if not records or not _near(records[-1], at):
        return None
    last, pci = records[-1], _pci(text)
    if _MACHINE_CHECK.match(text) and _MACHINE_CHECK.match(last.text):
        return len(records) - 1
    if _DETAIL.match(text) and pci and pci == last.pci:
        return len(records) - 1
    same = at is not None and at == last.first and text.split()[:1] == last.text.split()[:1]
    if same and text.startswith("NVRM:") and not (pci and last.pci and pci != last.pci):
        return len(records) - 1
    return None


def _remember(text: str, place: int, open_by_key: dict[str, int]) -> None:
    numbered = _RECORD.match(text)
    if numbered:
        open_by_key[numbered.group(0)] = place


def _near(record: KernelEvent, at: float | None) -> bool:
    return at is None or record.last is None or abs(at - record.last) <= WITHIN_S


def _extended(record: KernelEvent, text: str, priority: int | None) -> KernelEvent:
    """The record with one more line; its priority is that of its gravest line."""
    known = [each for each in (record.priority, priority) if each is not None]
    body = _RECORD.sub("", _MACHINE_CHECK.sub("", text)).strip()
    body = re.sub(r"^\[Hardware Error\]:\s*|^NVRM:\s*", "", body)
    return dataclasses.replace(
        record,
        text=f"{record.text} | {body}"[:TEXT_MAX],
        priority=min(known) if known else None,
        pci=record.pci or _pci(text),
    )


def _pci(text: str) -> str:
    found = PCI_ADDRESS.search(text)
    return normal_pci(found.group()) if found else ""


def folded(events: Iterable[KernelEvent], limit: int = DISTINCT_MAX) -> list[KernelEvent]:
    """Events of the same form, device and priority as one, numbers left out of the comparison; at most ``limit``.

    The counts add up to the number of events, but for those left out.
    """
    kept: dict[tuple[str, int | None, str], KernelEvent] = {}
    for event in events:
        key = (shape_of(event.text), event.priority, event.pci)
        known = kept.get(key)
        if known is None:
            kept[key] = event
        else:
            last = event.last if event.last is not None else known.last
            kept[key] = dataclasses.replace(known, last=last, count=known.count + event.count)
    if len(kept) <= limit:
        return list(kept.values())
    every = list(kept.values())
    gravest = sorted(range(len(every)), key=lambda at: (_gravity(every[at]), -(every[at].last or 0.0)))[:limit]
    return [every[at] for at in sorted(gravest)]


def _gravity(event: KernelEvent) -> int:
    return ERROR + 1 if event.priority is None else event.priority


def labels_of(event: KernelEvent, number: int) -> dict[str, str]:
    """The labels of an event. ``number``: its place among those of the stage."""
    first, last = ("" if at is None else f"{at:.6f}" for at in (event.first, event.last))
    priority = "" if event.priority is None else str(event.priority)
    return {"priority": priority, "pci": event.pci, "at": first, "last": last, "n": str(number)}
