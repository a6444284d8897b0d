"""XID and SXID messages of the kernel log: a pure parser. What they mean is not decided here.

XIDs are the GPU driver's errors ("NVRM: Xid (PCI:0000:1b:00): 79, ..."; of a part of a GPU under MIG
"NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 94, ..."), SXIDs those of an NVSwitch ("nvidia-nvswitch3:
SXid (PCI:0000:c1:00.0): 28006, Non-fatal, ..."). An SXID is followed by lines of detail under the same code; these are
not errors of their own.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Dict, Iterable, List, Optional, Tuple

XID = "xid"
SXID = "sxid"

_TIME = re.compile(r"^\s*\[\s*(\d+(?:\.\d+)?)\]")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)((?:\s[^()]*)?)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID = re.compile(r"(nvidia-nvswitch\d+): SXid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,6})(?:,|$)\s*(.*)$")
_SXID_DETAIL = re.compile(r"(Severity \d|Data \{|Engine instance)")
_NOBODY = re.compile(r"^pid='?<?unknown>?'?, name='?<?unknown>?'?,\s*")

DISTINCT_MAX = 20
"""Different texts of one code on one device that are kept apart; of a storm, later ones count as the last of them."""


@dataclasses.dataclass(frozen=True)
class XidEvent:
    """One message, or several that say the same. ``at``: seconds since boot of the first, None where untold."""

    kind: str
    code: int
    pci: str
    switch: str
    text: str
    at: Optional[float]
    count: int = 1


def parse_xids(lines: Iterable[str]) -> List[XidEvent]:
    """All XIDs and SXIDs of a kernel log, oldest first; any other line is passed over."""
    events = []
    for line in lines:
        found = _parse(line)
        if found is not None:
            events.append(found)
    return events


def _parse(line: str) -> Optional[XidEvent]:
    stamp = _TIME.match(line)
    at = float(stamp.group(1)) if stamp else None
    xid = _XID.search(line)
    if xid:
        address, instance, code, said = (part.strip() for part in xid.groups())
        # Behind the driver's words, since policies match these from their beginning.
        text = " ".join(filter(None, (_NOBODY.sub("", said), instance and "(%s)" % instance)))
        return XidEvent(XID, int(code), normal_pci(address), "", text, at)
    sxid = _SXID.search(line)
    if sxid and not _SXID_DETAIL.match(sxid.group(4)):
        switch = sxid.group(1)[len("nvidia-") :]
        return XidEvent(SXID, int(sxid.group(3)), normal_pci(sxid.group(2)), switch, sxid.group(4).strip(), at)
    return None


def normal_pci(address: str) -> str:
    """ "0000:1b:00" of "00000000:1B:00.0", "0000:1b:00" or "1b:00": the driver, NVML and sysfs write it differently."""
    parts = address.strip().lower().partition(".")[0].split(":")
    domain = parts[-3] if len(parts) >= 3 else "0"
    return ":".join(["%04x" % int(domain or "0", 16), *parts[-2:]])


def last_time(lines: Iterable[str]) -> Optional[float]:
    """Seconds since boot of the log's newest line; None where no line tells."""
    stamps = (_TIME.match(line) for line in lines)
    return max((float(stamp.group(1)) for stamp in stamps if stamp), default=None)


def folded(events: Iterable[XidEvent]) -> List[XidEvent]:
    """Messages that say the same of the same device as one, with their number; nothing is lost from the count."""
    kept: Dict[Tuple[str, int, str], List[XidEvent]] = {}
    for event in events:
        alike = kept.setdefault((event.kind, event.code, event.pci), [])
        same = next((place for place, known in enumerate(alike) if known.text == event.text), None)
        if same is None and len(alike) < DISTINCT_MAX:
            alike.append(event)
            continue
        place = len(alike) - 1 if same is None else same
        alike[place] = dataclasses.replace(alike[place], count=alike[place].count + event.count)
    return [event for alike in kept.values() for event in alike]
