"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANGS_S = 240.0
"""After this, what a test waits for has hung. Generous: it says nothing of how fast a machine is."""


def until(true: Callable[[], T], *, what: Callable[[], str] = str, limit_s: float = HANGS_S, step_s: float = 0.1) -> T:
    """Wait until ``true`` returns something true, and return it.

    ``what``: says, once the limit has passed, what did not come. Raises AssertionError then.
    """
    end = time.monotonic() + limit_s
    while not (answer := true()):
        assert time.monotonic() < end, what()
        time.sleep(step_s)
    return answer
