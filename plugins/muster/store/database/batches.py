"""Names of many nodes in queries: a database takes a bounded number of values in one (PostgreSQL 65,535)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 500


def batches(values: Iterable[T], size: int = AT_ONCE) -> Iterator[list[T]]:
    """Returns the values, so many at a time."""
    listed = list(values)
    for first in range(0, len(listed), size):
        yield listed[first : first + size]
