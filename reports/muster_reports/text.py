"""Words and figures for reports: cleaning what came from outside, and writing numbers, times and lists.

Everything a node, a person or a SKU file supplied passes through ``clean`` once, before any template sees it.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from muster_criteria.devices import natural
from muster_criteria.text import printable
from muster_criteria.words import figure, number

Value = TypeVar("Value")

# CSI (colours, cursor moves), OSC (titles, links) and two-byte escapes of ECMA-48, which a terminal would obey.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]|\x9b[0-?]*[ -/]*[@-~]")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")
_DEVICE = re.compile(r"\b[cg]pu\d{1,4}\b")
LISTED_MAX = 6


def mark(simulated: bool) -> str:
    """What each sentence about a simulated node begins with; "" for a real one."""
    return "[simulated] " if simulated else ""


def clean(text: str, limit: int = 400) -> str:
    """One line of showable text of at most ``limit`` characters.

    Terminal escapes, control characters (line breaks become spaces), invisible and text-reversing characters and lone
    surrogates are removed, so that no text from outside can add a header, move a cursor or reverse text.
    """
    spaced = " ".join(_ANSI.sub("", text[: limit * 4]).split())
    text = " ".join(printable(spaced, "").split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def shorten(text: str, limit: int) -> str:
    """``clean``, cut between two words; within a word that fills more than half of the limit."""
    whole = clean(text, 4 * limit)
    if text[:1] == " ":
        whole = f" {whole}"
    if len(whole) <= limit:
        return whole
    head = whole[: limit - 1]
    words = head if whole[limit - 1] == " " else head.rpartition(" ")[0]
    return (words if len(words) > limit // 2 else head).rstrip(" ,;:") + "…"


def in_each_text(value: Value, change: Callable[[str], str], keep: frozenset[str] = frozenset()) -> Value:
    """A copy of a (nested, frozen) dataclass with every string in it changed, but for fields named in ``keep``.

    Enum members stay themselves; tuples of numbers (telemetry) are not walked.
    """
    if value is None or isinstance(value, (enum.Enum, int, float)):
        return value
    if isinstance(value, str):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        if value and isinstance(value[0], (int, float)):
            return value
        return tuple([in_each_text(item, change, keep) for item in value])  # type: ignore[return-value]
    if names := _fields(type(value)):  # type: ignore[arg-type]
        texts = {name: in_each_text(getattr(value, name), change, keep) for name in names if name not in keep}
        return dataclasses.replace(value, **texts)  # type: ignore[type-var]
    return value


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields; none of any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def span(low: float, high: float, unit: str, digits: int = 4) -> str:
    """A range with its unit ("698–721 TFLOPS"), or the one figure if both ends read the same."""
    first, last = number(low, digits), number(high, digits)
    whole = figure(high, unit, digits=digits)
    return whole if first == last else f"{first}–{whole}"


def aligned(rows: Iterable[Sequence[str]], widest: int = 40) -> list[str]:
    """The lines of a table of plain text: each column begins at one place, below cells of up to ``widest``."""
    shown = [[clean(cell, 160) for cell in row] for row in rows]
    widths = [min(widest, max(map(len, column))) for column in itertools.zip_longest(*shown, fillvalue="")]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def moment(when: datetime.datetime | None) -> str:
    """A time in UTC, to the second; a time without zone is taken as UTC."""
    if when is None:
        return "–"
    aware = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    return aware.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(count: int, noun: str) -> str:
    """The count with its noun: "1 figure", "3 figures"."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def device_list(devices: Iterable[str]) -> str:
    """Devices in natural order, neighbours joined, after ``LISTED_MAX`` a count ("gpu0–gpu3, gpu6 and 2 more")."""
    runs: list[list[str]] = []
    for device in sorted(set(devices), key=natural):
        if runs and _follows(runs[-1][-1], device):
            runs[-1].append(device)
        else:
            runs.append([device])
    # Two neighbours read better as two names than as a range.
    parts = [part for run in runs for part in ([f"{run[0]}–{run[-1]}"] if len(run) > 2 else run)]
    if len(parts) > LISTED_MAX:
        return f"{', '.join(parts[:LISTED_MAX])} and {len(parts) - LISTED_MAX} more"
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "none"


def _follows(first: str, second: str) -> bool:
    stem, digits = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(second)
    return bool(stem and digits and stem[1] == digits[1] and int(stem[2]) + 1 == int(digits[2]))


def merge_devices(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines that differ only in the one GPU or core they name become one line that names them all."""
    merged: dict[str, list[str]] = {}
    for line in lines:
        named = _DEVICE.findall(line)
        merged.setdefault(_DEVICE.sub("\0", line) if len(named) == 1 else line, []).extend(named)
    return tuple(key.replace("\0", device_list(devices)) for key, devices in merged.items())


def label_text(labels: Sequence[tuple[str, str]]) -> str:
    """Labels as "dtype=bf16, op=copy"."""
    return ", ".join(f"{key}={value}" for key, value in labels)


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """``text`` filled to ``width`` columns; ``first`` opens the first line, ``rest`` (spaces if None) the others.

    A longer word is broken; but not one with a slash: a path or an address that is broken in two cannot be copied.
    """
    rest = " " * len(first) if rest is None else rest
    whole = any("/" in word for word in text.split() if len(word) > width - len(rest))
    filled = textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=not whole
    )
    return filled or first
