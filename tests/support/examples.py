"""How many examples a property draws: few in ``make test``, ``TIMES_EXAMPLES`` times as many in ``make test-slow``.

And whether they reached what it asserts under a condition: a property whose examples never meet it holds nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import hypothesis
import pytest

Test = TypeVar("Test", bound=Callable[..., Any])

_TIMES = int(os.environ.get("TIMES_EXAMPLES", "1"))
_reached = set[str]()


def times(few: int) -> int:
    """Hypothesis's ``max_examples``, for a test that is marked ``many_examples``."""
    return few * _TIMES


def examples(few: int, **more: Any) -> Callable[[Test], Test]:
    """Mark a property ``many_examples``, and have it draw ``times(few)``; ``more`` are other settings of Hypothesis."""

    def mark(test: Test) -> Test:
        return pytest.mark.many_examples(hypothesis.settings(max_examples=times(few), **more)(test))

    return mark


def guarded(*branches: str) -> Callable[[Test], Test]:
    """Have a test fail unless its examples ``reached`` each of these branches; above ``examples`` and ``given``."""

    def mark(test: Test) -> Test:
        @functools.wraps(test)
        def all_reached(*args: Any, **kwargs: Any) -> None:
            _reached.clear()
            test(*args, **kwargs)
            assert _reached == set(branches)

        return cast(Test, all_reached)

    return mark


def reached(branch: str) -> None:
    """Say that an example of a ``guarded`` test meets the condition of this branch."""
    _reached.add(branch)
