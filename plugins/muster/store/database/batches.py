"""Splits long lists of values for queries: a query takes a bounded number of them (PostgreSQL: 65,535)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 500


def batches(values: Iterable[T], size: int = AT_ONCE) -> Iterator[list[T]]:
    """Yields the values in lists of at most ``size``."""
    listed = list(values)
    for first in range(0, len(listed), size):
        yield listed[first : first + size]
