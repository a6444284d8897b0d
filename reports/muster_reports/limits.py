"""Limits on the length of a report and of its lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

NAME_MAX = 20
"""Characters of a stage's or state's name in a table."""
NODE_MAX = 63
"""Characters of a node's name: as many as the records allow, since commands have it."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much is shown.

    ``rows``: entries of a long list. ``full``: findings in full, the rest take one line each. ``items``: entries of a
    list inside a box. ``first_screen``: entries of a list on the first screen. ``chars``: characters of one text.
    """

    rows: int
    full: int
    items: int
    first_screen: int
    chars: int


def cut(items: Sequence[Item], limit: int) -> tuple[tuple[Item, ...], int]:
    """The first ``limit`` items, and how many there are beyond them."""
    return tuple(items[:limit]), max(0, len(items) - limit)
