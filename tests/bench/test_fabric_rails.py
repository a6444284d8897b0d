"""The fabric bench itself, as root: faults of single ports."""

from __future__ import annotations

import pytest

from tests.bench.fabric.proof import MARKS, PARTS, assert_found

pytestmark = [*MARKS, pytest.mark.early(7)]


def test_a_slow_nic_and_a_dead_cable_are_found_and_nothing_else() -> None:
    assert_found(PARTS["rails"])
