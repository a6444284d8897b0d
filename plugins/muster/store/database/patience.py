"""Waiting for records that are away for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from muster.errors import DatabaseNotReady

AWAY_S, AGAIN_S = 120.0, 0.5
"""For how long, and at what interval (s), a step is repeated: a database that restarts, or moves to another machine, is
back sooner.
"""

Result = TypeVar("Result")


def outlasting(step: Callable[[], Result]) -> Result:
    """Returns what ``step`` returns; while the records are away it is repeated, for up to ``AWAY_S`` seconds.

    A step that failed may have committed some of its transactions: it must be safe to repeat, as a task is.
    Raises DatabaseNotReady if the records stay away.
    """
    until = None
    while True:
        try:
            return step()
        except DatabaseNotReady:
            now = time.monotonic()
            until = now + AWAY_S if until is None else until
            if now >= until:
                raise
        time.sleep(AGAIN_S)
