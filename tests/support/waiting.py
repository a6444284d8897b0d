"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until ``true`` returns something true."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)
