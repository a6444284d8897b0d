"""The kinds of faults of a campaign."""

from __future__ import annotations

from tests.chaos import faults


def test_every_class_has_kinds_of_faults() -> None:
    kinds = faults.load()
    assert list(kinds) == list(faults.CLASSES)
    assert all(len(each) >= 5 for each in kinds.values())
