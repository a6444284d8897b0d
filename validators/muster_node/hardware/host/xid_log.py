"""XID and SXID messages of the kernel log: a pure parser. The controller decides what they mean.

XIDs are the GPU driver's errors ("NVRM: Xid (PCI:0000:1b:00): 79, ..."; of a MIG instance
"NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 94, ..."), SXIDs those of an NVSwitch ("nvidia-nvswitch3:
SXid (PCI:0000:c1:00.0): 28006, Non-fatal, ..."). Lines of detail that follow an SXID under its code are not counted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from muster_node.hardware.seam import Fact

XID = "xid"
SXID = "sxid"

_TIME = re.compile(r"^(?:<\d{1,4}>)?\s*\[\s*(\d+(?:\.\d+)?)\]")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)((?:\s[^()]*)?)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID = re.compile(r"(nvidia-nvswitch\d+): SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID_DETAIL = re.compile(r"(Severity \d|Data \{|Engine instance)")
_UNKNOWN_PROCESS = re.compile(r"^pid='?<?unknown>?'?, name='?<?unknown>?'?,\s*")
_PROCESS = re.compile(r"^(pid=[^,]*, name=[^,]*),\s*")
_NVLINK5 = range(144, 151)
"""XIDs whose text begins with the name of a unit, padded to a column (NVIDIA XID catalogue, "XID 144-150 Decode")."""

DISTINCT_MAX = 20
"""Different texts of one code on one device that are kept apart; in a storm, further ones count as the last of them."""


@dataclasses.dataclass(frozen=True)
class XidEvent:
    """One message, or ``count`` messages with the same text. ``at``: the first one's seconds since boot; ``last``: the
    last one's, None for one message."""

    kind: str
    code: int
    pci: str
    switch: str
    text: str
    at: float | None
    count: int = 1
    last: float | None = None


def parse_xids(lines: Iterable[str]) -> list[XidEvent]:
    """All XIDs and SXIDs of a kernel log, oldest first; other lines are ignored."""
    events = (_parse(line) for line in lines)
    return [event for event in events if event is not None]


def _parse(line: str) -> XidEvent | None:
    stamp = _TIME.match(line)
    at = float(stamp.group(1)) if stamp else None
    xid = _XID.search(line)
    if xid:
        address, instance, code, text = (part.strip() for part in xid.groups())
        return XidEvent(XID, int(code), normal_pci(address), "", _xid_text(int(code), text, instance), at)
    sxid = _SXID.search(line)
    if sxid and not _SXID_DETAIL.match(sxid.group(4)):
        switch = sxid.group(1)[len("nvidia-") :]
        return XidEvent(SXID, int(sxid.group(3)), normal_pci(sxid.group(2)), switch, sxid.group(4).strip(), at)
    return None


def _xid_text(code: int, text: str, instance: str) -> str:
    """The driver's message first, since XID policies match its beginning; then MIG instance and process in brackets."""
    text = _UNKNOWN_PROCESS.sub("", text)
    process = ""
    if code in _NVLINK5:
        found = _PROCESS.match(text)
        process = found.group(1) if found else ""
        text = " ".join(_PROCESS.sub("", text).split())
    return " ".join(filter(None, (text, instance and f"({instance})", process and f"({process})")))


def normal_pci(address: str) -> str:
    """ "0000:1b:00" for "00000000:1B:00.0", "0000:1b:00" or "1b:00": driver, NVML and sysfs differ."""
    parts = address.strip().lower().partition(".")[0].split(":")
    domain = parts[-3] if len(parts) >= 3 else "0"
    return ":".join(["{:04x}".format(int(domain or "0", 16)), *parts[-2:]])


def by_pci(inventory: Iterable[Fact]) -> dict[str, str]:
    """Device by PCI address ({"0000:1b:00": "gpu3"}) of the GPUs that answer."""
    return {normal_pci(fact.text): fact.device for fact in inventory if fact.name == "pci_address" and fact.text}


def labels_of(event: XidEvent, number: int) -> dict[str, str]:
    """The labels of a message. ``number``: its place among those of the stage."""
    at = "" if event.at is None else f"{event.at:.6f}"
    labels = {"kind": event.kind, "code": str(event.code), "pci": event.pci, "at": at, "n": str(number)}
    return labels if event.last is None else {**labels, "last": f"{event.last:.6f}"}


def last_time(lines: Iterable[str]) -> float | None:
    """Seconds since boot of the log's newest line; None if no line has a time."""
    stamps = (_TIME.match(line) for line in lines)
    return max((float(stamp.group(1)) for stamp in stamps if stamp), default=None)


def first_time(lines: Iterable[str]) -> float | None:
    """Seconds since boot of the log's oldest line; None if no line has a time. The kernel overwrites older ones."""
    stamps = (_TIME.match(line) for line in lines)
    return next((float(stamp.group(1)) for stamp in stamps if stamp), None)


def folded(events: Iterable[XidEvent]) -> list[XidEvent]:
    """Messages with the same text of the same device as one event; the counts add up to the number of messages."""
    kept: dict[tuple[str, int, str], list[XidEvent]] = {}
    for event in events:
        alike = kept.setdefault((event.kind, event.code, event.pci), [])
        same = next((place for place, known in enumerate(alike) if known.text == event.text), None)
        if same is None and len(alike) < DISTINCT_MAX:
            alike.append(event)
            continue
        place = len(alike) - 1 if same is None else same
        last = event.last if event.last is not None else event.at
        alike[place] = dataclasses.replace(alike[place], count=alike[place].count + event.count, last=last)
    return [event for alike in kept.values() for event in alike]
