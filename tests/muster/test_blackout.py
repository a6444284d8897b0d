"""Windows without tests, as the setting writes them."""

from __future__ import annotations

import pytest

from muster.blackout import closed
from tests.muster.rules.idle.fleets import NOW


@pytest.mark.parametrize(
    ("windows", "shut"),
    [
        ("", False),
        ("Mon 00:00-24:00", True),
        ("Mon-Fri 00:00-00:01", True),
        ("Tue-Sun 00:00-24:00", False),
        ("Sat-Mon 00:00-24:00", True),
        ("Mon 08:00-10:00; Mon 00:00-01:00", True),
        ("Mon 08:00-10:00", False),
    ],
)
def test_blackout_windows(windows: str, shut: bool) -> None:
    assert NOW.weekday() == 0
    assert bool(closed(windows, NOW)) is shut


BAD = ("Mo 08:00-10:00", "Mon 8-10", "Mon 10:00-08:00", "Mon-Fri", "Mon 00:00-25:00", "Mon 08:75-10:00")


@pytest.mark.parametrize("windows", [*BAD, *(f"Mon 00:00-24:00; {bad}" for bad in BAD)])
def test_a_bad_window_is_one_sentence_whatever_the_time_is(windows: str) -> None:
    """The second one too, while the first is open: a setting that is accepted must not fail hours later."""
    with pytest.raises(ValueError, match=r"Mon|Mo "):
        closed(windows, NOW)
