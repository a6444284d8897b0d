"""Slurm's lists of hosts, as "n[1-3,07],login"."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

HOSTS_MAX = 65_536
"""No list names more (Slurm's own limit of one range, MAX_RANGE)."""

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def expanded(hosts: str) -> Iterator[str]:
    """Yields the names in a list of hosts, at most ``HOSTS_MAX``; what is no such list gives none, or odd ones."""
    return itertools.islice(_expanded(hosts), HOSTS_MAX)


def _expanded(hosts: str) -> Iterator[str]:
    for entry in _ENTRY.findall(hosts):
        texts = _BRACKETS.split(entry)
        numbers = [list(itertools.islice(_numbers(part), HOSTS_MAX)) for part in texts[1::2]]
        for chosen in itertools.product(*numbers):
            yield "".join(itertools.chain.from_iterable(itertools.zip_longest(texts[::2], chosen, fillvalue="")))


def _numbers(spans: str) -> Iterator[str]:
    """Yields each number of "1-3,07", with the leading zeros of its span's first."""
    for span in spans.split(","):
        first, _, last = span.partition("-")
        if first.isdecimal() and not last:
            yield first
        elif first.isdecimal() and last.isdecimal():
            yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
