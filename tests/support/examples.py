"""How many examples a property draws: few in ``make test``, ``TIMES_EXAMPLES`` times as many in ``make test-slow``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
import pytest

Test = TypeVar("Test", bound=Callable[..., Any])

_TIMES = int(os.environ.get("TIMES_EXAMPLES", "1"))


def times(few: int) -> int:
    """Hypothesis's ``max_examples``, for a test that is marked ``many_examples``."""
    return few * _TIMES


def examples(few: int, **more: Any) -> Callable[[Test], Test]:
    """Mark a property ``many_examples``, and have it draw ``times(few)``; ``more`` are other settings of Hypothesis."""

    def mark(test: Test) -> Test:
        return pytest.mark.many_examples(hypothesis.settings(max_examples=times(few), **more)(test))

    return mark
