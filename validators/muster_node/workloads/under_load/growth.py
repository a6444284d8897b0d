"""What a cumulative counter gained over a load, from all readings of it. What cannot be known is never a zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from muster_node.hardware.seam import NOT_SUPPORTED, Fact

NO_COUNTER = "this machine has no such counter"
GONE, LATE = "it could not be read any more after the load", "it could not be read before the load"
WRAPS_FROM = 2.0**31
"""A counter that falls from here on may have wrapped at 32 bits; one that falls from less was reset. And nothing counts
so many between two readings: one that rises as far was read wrongly, before or after."""
_NAMED = 4


@dataclasses.dataclass(frozen=True)
class Growth:
    """``value``: what was added, None where that is unknown, a lower bound where ``note`` says "at least".

    ``reset``: how it was reset meanwhile, "" if it was not.
    """

    value: float | None
    note: str = ""
    reset: str = ""


PORT_CEILINGS = {
    "symbol_error": 65_535.0,
    "link_error_recovery": 255.0,
    "link_downed": 255.0,
    "port_rcv_errors": 65_535.0,
    "port_xmit_discards": 65_535.0,
    "local_link_integrity_errors": 15.0,
    "excessive_buffer_overrun_errors": 15.0,
}
"""Where counters of InfiniBand ports stop: they do not wrap (IBTA volume 1, PortCounters; the widths are those of
PORT_PMA_ATTR in drivers/infiniband/core/sysfs.c). Drivers with wider ones go past these."""


def growth(readings: Sequence[Fact | None], ceiling: float | None = None, falls_to_zero: bool = False) -> Growth:
    """The growth from a counter's readings, the first before the load and the last after it; None: not reported then.

    ``ceiling``: the value at which it stops counting. ``falls_to_zero``: it falls only when it is reset, so its value
    then was counted since the reset; other counters lose only a part, such as a ring of messages.
    """
    known = _without_spikes([fact.value for fact in readings if fact is not None and fact.value is not None])
    steps = list(zip(known, known[1:]))
    grown = sum(later - earlier for earlier, later in steps if 0.0 < later - earlier < WRAPS_FROM)
    if falls_to_zero:
        grown += sum(later for earlier, later in steps if later < earlier < WRAPS_FROM)
    leap = next(((earlier, later) for earlier, later in steps if later - earlier >= WRAPS_FROM), None)
    fall = next(((earlier, later) for earlier, later in steps if later < earlier), None)
    reset = ""
    if fall is not None:
        why = "the counter fell from {:g} to {:g} under load: what was added is not known".format(*fall)
        reset = why if fall[0] < WRAPS_FROM else ""
    elif leap is not None:
        why = (
            "the counter leapt from {:g} to {:g} under load, which nothing counts: what was added is not known".format(
                *leap
            )
        )
    else:
        why = _missing_end(readings)
        if not why and known[-1] == ceiling:
            why = f"it stands at {ceiling:g}, where it stops counting until it is reset (perfquery -R)"
    if not why:
        return Growth(grown)
    return Growth(grown, f"at least, since {why}", reset) if grown > 0 else Growth(None, why, reset)


def _without_spikes(known: Sequence[float]) -> list[float]:
    """Without single readings of more than half of 32 bits between two lower ones, the later not below the earlier: a
    counter that rises so far and returns between two readings was read wrongly."""
    odd = {
        place for place in range(1, len(known) - 1) if known[place] >= WRAPS_FROM > known[place + 1] >= known[place - 1]
    }
    return [value for place, value in enumerate(known) if place not in odd]


def _missing_end(readings: Sequence[Fact | None]) -> str:
    """Why the counter is not known at both ends, "" where it is."""
    ends = [(each, otherwise) for each, otherwise in ((readings[-1], GONE), (readings[0], LATE))] if readings else []
    if all(fact is None for fact in readings):
        return NO_COUNTER
    known = any(fact is not None and fact.value is not None for fact in readings)
    for fact, otherwise in ends:
        if fact is None or fact.value is None:
            note = fact.note if fact is not None else ""
            return otherwise if not note or (known and note == NOT_SUPPORTED) else note
    return ""


def gone(last: Fact | None) -> str:
    """Why a value read before or during the load is unknown after it. It is supported, since it was read."""
    note = "" if last is None else last.note
    return GONE if note in ("", NOT_SUPPORTED) else note


def total(parts: Mapping[str, Growth]) -> tuple[float | None, int, str]:
    """(sum over parts such as links or a port's counters, number of known parts, a note that names the others).

    Parts that the machine does not support do not count; if any other part is unknown, so is the sum, unless the known
    parts have grown.
    """
    counted = {part: each for part, each in parts.items() if each.value is not None or each.note != NOT_SUPPORTED}
    known = {part: each.value for part, each in counted.items() if each.value is not None}
    unknown = [f"{part}: {each.note}" for part, each in counted.items() if each.note]
    grown = [f"{part}: {value:.0f}" for part, value in known.items() if value]
    if not counted:
        return None, 0, NOT_SUPPORTED if parts else NO_COUNTER
    value = sum(known.values())
    note = "; ".join((grown + unknown)[:_NAMED])
    return (None if unknown and not value else value), len(known), note


def resets(grown: Mapping[str, Growth]) -> list[str]:
    """A sentence for each counter that was reset under load."""
    return [f"{name}: {each.reset}" for name, each in grown.items() if each.reset]
