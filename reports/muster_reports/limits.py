"""How much of a report is shown, and where a list that is longer ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

NAME_MAX = 20
"""Stages and states have short names; what is longer is not one, and must not break a table."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is shown: entries of a long list, findings told in full (the rest take one line each), entries of a list
    inside a box, entries of a list on the first screen, and characters of one text.
    """

    rows: int
    full: int
    items: int
    first_screen: int
    chars: int


def cut(items: Sequence[Item], limit: int) -> tuple[tuple[Item, ...], int]:
    """The first ``limit`` items, and how many there are beyond them."""
    return tuple(items[:limit]), max(0, len(items) - limit)
