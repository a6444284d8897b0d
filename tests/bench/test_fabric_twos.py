"""The fabric bench itself, as root: two faults at once."""

from __future__ import annotations

import pytest

from tests.bench.fabric.proof import MARKS, assert_found

pytestmark = [*MARKS, pytest.mark.early(8)]


def test_two_faults_at_once_are_both_found_and_nothing_else() -> None:
    assert_found((), twos=2)
