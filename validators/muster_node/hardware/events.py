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

DISTINCT_MAX = 20
"""Different texts of one code on one device that are kept apart; in a storm, further ones count as the last of them."""


@dataclasses.dataclass(frozen=True)
class DeviceEvent:
    """One message, or ``count`` messages with the same text.

    ``kind``: the vendor's name for messages with such codes, as "xid"; ``part``: the device where the message names it,
    "" where its PCI address says which; ``at``: the first one's seconds since boot; ``last``: the last one's, None for
    one message.
    """

    kind: str
    code: int
    pci: str
    part: str
    text: str
    at: float | None
    count: int = 1
    last: float | None = None


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
    """Device by PCI address ({"0000:1b:00": "gpu3"}) of the GPUs that answer; one that two claim names neither."""
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


def folded(events: Iterable[DeviceEvent], distinct: int = DISTINCT_MAX) -> list[DeviceEvent]:
    """Messages with the same text of the same device as one event; the counts add up to the number of messages.

    ``distinct``: texts of one code on one device that are kept apart.
    """
    kept: dict[tuple[str, int, str], list[DeviceEvent]] = {}
    for event in events:
        alike = kept.setdefault((event.kind, event.code, event.pci), [])
        same = next((place for place, known in enumerate(alike) if known.text == event.text), None)
        if same is None and len(alike) < distinct:
            alike.append(event)
            continue
        place = len(alike) - 1 if same is None else same
        last = event.last if event.last is not None else event.at
        alike[place] = dataclasses.replace(alike[place], count=alike[place].count + event.count, last=last)
    return [event for alike in kept.values() for event in alike]
