"""What a user reads of a refusal; each room's test_wording.py compares it with a snapshot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.errors import MusterError


def refused(call: Callable[..., object], *args: object, **options: object) -> str:
    """The class and the message of the error with which ``call`` refuses its arguments."""
    with pytest.raises(MusterError) as refusal:
        call(*args, **options)
    return f"{type(refusal.value).__name__}: {refusal.value}"
