"""Windows of the week, as "Mon-Fri 08:00-18:00; Sun 00:00-24:00" in UTC: no idle test starts, a mail waits. Pure."""

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


def closed_until(windows: str, now: datetime.datetime) -> datetime.datetime | None:
    """Returns the end of the windows that hold ``now``, those that follow without a gap included; None outside of all.

    Raises ValueError as ``closed``.
    """
    each = [_parsed(window) for window in filter(None, (part.strip() for part in windows.split(";")))]
    moment = now
    for _ in range(14 * len(each)):
        minute = moment.hour * 60 + moment.minute
        ends = [end for days, start, end in each if moment.weekday() in days and start <= minute < end]
        if not ends:
            break
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        moment = midnight + datetime.timedelta(minutes=max(ends))
    return moment if moment != now else None


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
