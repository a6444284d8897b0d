"""How many examples a property draws: few in ``make test``, ``TIMES_EXAMPLES`` times as many in ``make test-slow``."""

from __future__ import annotations

import os

_TIMES = int(os.environ.get("TIMES_EXAMPLES", "1"))


def times(few: int) -> int:
    """Hypothesis's ``max_examples``, for a file that is marked ``many_examples``."""
    return few * _TIMES
