"""Slurm's lists of hosts, as "n[1-3,07],login"."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

HOSTS_MAX = 65_536
"""No list of Slurm's own names more (its limit of one range, MAX_RANGE)."""

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def expanded(hosts: str, limit: int = HOSTS_MAX, bad: Callable[[str], None] = lambda spans: None) -> Iterator[str]:
    """Yields the names in a list of hosts, in order, at most ``limit``.

    ``bad`` gets what is in brackets and no list of numbers and ranges; unless it raises, that gives no names.
    """
    return itertools.islice(_expanded(hosts, limit, bad), limit)


def _expanded(hosts: str, limit: int, bad: Callable[[str], None]) -> Iterator[str]:
    for entry in _ENTRY.findall(hosts):
        texts = _BRACKETS.split(entry)
        numbers = [list(itertools.islice(_numbers(spans, bad), limit)) for spans in texts[1::2]]
        for chosen in itertools.product(*numbers):
            yield "".join(itertools.chain.from_iterable(itertools.zip_longest(texts[::2], chosen, fillvalue="")))


def _numbers(spans: str, bad: Callable[[str], None]) -> Iterator[str]:
    """Yields each number of "1-3,07", with the leading zeros of its span's first."""
    for span in spans.split(","):
        found = _SPAN.fullmatch(span.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or last < first:
            bad(spans)
            continue
        yield from (f"{number:0{len(found[1])}}" for number in range(first, last + 1))
