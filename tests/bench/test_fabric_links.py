"""The fabric bench itself, as root: faults of ports, uplinks and paths, two at once, and a host that is late."""

from __future__ import annotations

import pytest

from tests.bench.fabric.proof import MARKS, assert_found

pytestmark = [*MARKS, pytest.mark.early(7)]


def test_slow_ones_dead_ones_one_that_corrupts_and_a_late_host_are_found_and_nothing_else() -> None:
    assert_found("links")
