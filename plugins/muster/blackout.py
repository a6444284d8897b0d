"""Blackout windows, in which no idle test starts: "Mon-Fri 08:00-18:00; Sun 00:00-24:00", in UTC. Pure."""

from __future__ import annotations

import datetime
import re

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WINDOW = re.compile(r"(?P<first>[A-Z][a-z]{2})(-(?P<last>[A-Z][a-z]{2}))? (\d\d):(\d\d)-(\d\d):(\d\d)")


def closed(windows: str, now: datetime.datetime) -> str:
    """Returns why no test starts at ``now``, "" if one may. Raises ValueError, in one sentence, for a bad window."""
    minute = now.hour * 60 + now.minute
    for window in filter(None, (each.strip() for each in windows.split(";"))):
        days, start, end = _parsed(window)
        if now.weekday() in days and start <= minute < end:
            return f"no test starts in the blackout window {window} UTC"
    return ""


def _parsed(window: str) -> tuple[set[int], int, int]:
    found = _WINDOW.fullmatch(window)
    names = [found["first"], found["last"] or found["first"]] if found else []
    if not found or any(name not in DAYS for name in names):
        raise ValueError(f"{window!r} is no blackout window; write it like 'Mon-Fri 08:00-18:00'")
    first, last = (DAYS.index(name) for name in names)
    days = set(range(first, last + 1)) if first <= last else {*range(first, 7), *range(last + 1)}
    start, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (4, 6))
    if not 0 <= start < end <= 24 * 60:
        raise ValueError(f"{window!r} ends before it begins; split a window at midnight")
    return days, start, end
