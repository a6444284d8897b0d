"""Device events: errors that a driver reports under a code of its own, in the kernel log or by the vendor's library.

The vendor's folder says which lines are such messages (``Vendor.event_of``); the controller decides what they mean.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

from muster_node.hardware.seam import Fact

_TIME = re.compile(r"^(?:<\d{1,4}>)?\s*\[\s*(\d+(?:\.\d+)?)\]")

PCI_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f](?:\.[0-7])?\b", re.IGNORECASE)
"""Disks behind Intel's VMD have domains of five digits, from 10000 on (drivers/pci/controller/vmd.c)."""
_NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|[0-9a-f]*\d[0-9a-f]*)\b", re.IGNORECASE)

TEXTS_MAX = 20
"""Different texts of one code on one device that are kept apart; in a storm, further ones count as the last of theirs
that has the same form."""
FORMS_MAX = 100
"""Different forms of one code on one device that are kept; messages of further ones are left out."""


@dataclasses.dataclass(frozen=True)
class DeviceEvent:
    """One message, or ``count`` messages with the same text.

    ``kind``: the vendor's name for messages with such codes, as "xid"; ``part``: the device if the message names it, ""
    if only its PCI address does; ``at``: seconds since boot of the first message; ``last``: of the last, None for one
    message. ``form``: what texts of one meaning have in common, "" if that is the text without its numbers.
    """

    kind: str
    code: int
    pci: str
    part: str
    text: str
    at: float | None
    count: int = 1
    last: float | None = None
    form: str = dataclasses.field(default="", compare=False)


def normal_pci(address: str) -> str:
    """ "0000:1b:00" for "00000000:1B:00.0", "0000:1b:00" or "1b:00": driver, NVML and sysfs differ.

    What is no address stays as it is: it names no device, and costs no other its messages.
    """
    parts = address.strip().lower().partition(".")[0].split(":")
    domain = parts[-3] if len(parts) >= 3 else "0"
    try:
        return ":".join(["{:04x}".format(int(domain or "0", 16)), *parts[-2:]])
    except ValueError:
        return address.strip().lower()


def by_pci(inventory: Iterable[Fact]) -> dict[str, str]:
    """{PCI address: device} ({"0000:1b:00": "gpu3"}) of the GPUs that answer; one that two claim is left out."""
    claimed = [(normal_pci(fact.text), fact.device) for fact in inventory if fact.name == "pci_address" and fact.text]
    times = collections.Counter(address for address, _ in claimed)
    return {address: device for address, device in claimed if times[address] == 1}


def labels_of(event: DeviceEvent, number: int) -> dict[str, str]:
    """The labels of a message. ``number``: its place among those of the stage."""
    at = "" if event.at is None else f"{event.at:.6f}"
    labels = {"kind": event.kind, "code": str(event.code), "pci": event.pci, "at": at, "n": str(number)}
    return labels if event.last is None else {**labels, "last": f"{event.last:.6f}"}


def time_of(line: str) -> float | None:
    """Seconds since boot of a line; None if it has no time."""
    stamp = _TIME.match(line)
    return float(stamp.group(1)) if stamp else None


def last_time(lines: Iterable[str]) -> float | None:
    """Seconds since boot of the log's newest line; None if no line has a time."""
    return max((at for line in lines if (at := time_of(line)) is not None), default=None)


def first_time(lines: Iterable[str]) -> float | None:
    """Seconds since boot of the log's oldest line; None if no line has a time. The kernel overwrites older ones."""
    return next((at for line in lines if (at := time_of(line)) is not None), None)


def shape_of(text: str) -> str:
    """A message without its numbers and addresses; names with digits in them ("nvme0", "ata1") stay."""
    return _NUMBER.sub("#", PCI_ADDRESS.sub("@", text))


def folded(events: Iterable[DeviceEvent], texts: int = TEXTS_MAX, forms: int = FORMS_MAX) -> list[DeviceEvent]:
    """Merges messages with the same text on one device and, beyond ``texts`` of one code on one device, those of the
    same form: the controller decides by what differs between forms.

    The counts add up to the number of messages, except for those beyond ``forms`` forms, which are left out.
    """
    kept: dict[tuple[str, int, str], tuple[dict[str, DeviceEvent], dict[str, str]]] = {}
    for event in events:
        alike, latest = kept.setdefault((event.kind, event.code, event.pci), ({}, {}))
        form, text = event.form or shape_of(event.text), event.text
        if text not in alike and len(alike) >= texts:
            text = latest.get(form, text)
        known = alike.get(text)
        if known is not None:
            last = event.last if event.last is not None else event.at
            alike[text] = dataclasses.replace(known, count=known.count + event.count, last=last)
        elif len(alike) < texts or len(latest) < forms:
            alike[text] = event
            latest[form] = text
    return [event for alike, _ in kept.values() for event in alike.values()]
