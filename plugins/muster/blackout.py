"""Windows of the week, as "Mon-Fri 08:00-18:00; Sun 00:00-24:00" in UTC: no idle test starts, a mail waits. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import re

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WINDOW = re.compile(r"(?P<first>[A-Z][a-z]{2})(-(?P<last>[A-Z][a-z]{2}))? (\d\d):([0-5]\d)-(\d\d):([0-5]\d)")


@dataclasses.dataclass(frozen=True)
class _Window:
    """One window, as ``written``: its days (0: Monday), and the minutes of the day from ``start`` to before ``end``."""

    written: str
    days: frozenset[int]
    start: int
    end: int

    def holds(self, moment: datetime.datetime) -> bool:
        return moment.weekday() in self.days and self.start <= moment.hour * 60 + moment.minute < self.end


def closed(windows: str, now: datetime.datetime) -> str:
    """Returns why no test starts at ``now``, "" if one may. Raises ValueError, in one sentence, for a bad window."""
    holding = [window for window in _parsed(windows) if window.holds(now)]
    return f"no test starts in the blackout window {holding[0].written} UTC" if holding else ""


def closed_until(windows: str, now: datetime.datetime) -> datetime.datetime | None:
    """Returns the end of the windows that hold ``now``, including those that follow without a gap; None outside all.

    Raises ValueError as ``closed``.
    """
    each = _parsed(windows)
    moment = now
    for _ in range(14 * len(each)):
        ends = [window.end for window in each if window.holds(moment)]
        if not ends:
            break
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        moment = midnight + datetime.timedelta(minutes=max(ends))
    return moment if moment != now else None


def _parsed(windows: str) -> list[_Window]:
    """All of the windows: a bad one is refused whatever the time is."""
    return [_window(written) for written in filter(None, (part.strip() for part in windows.split(";")))]


def _window(written: str) -> _Window:
    found = _WINDOW.fullmatch(written)
    names = [found["first"], found["last"] or found["first"]] if found else []
    if not found or any(name not in DAYS for name in names):
        raise ValueError(f"{written!r} is no blackout window; write it like 'Mon-Fri 08:00-18:00'")
    first, last = (DAYS.index(name) for name in names)
    days = range(first, last + 1) if first <= last else (*range(first, 7), *range(last + 1))
    start, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (4, 6))
    if end > 24 * 60:
        raise ValueError(f"{written!r} ends after 24:00; split a window at midnight")
    if start >= end:
        raise ValueError(f"{written!r} ends before it begins; split a window at midnight")
    return _Window(written, frozenset(days), start, end)
