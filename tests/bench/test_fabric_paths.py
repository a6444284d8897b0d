"""The fabric bench itself, as root: faults between leaves."""

from __future__ import annotations

import pytest

from tests.bench.fabric.proof import MARKS, PARTS, assert_found

pytestmark = [*MARKS, pytest.mark.early(6)]


def test_a_slow_uplink_and_a_path_that_corrupts_are_found_and_nothing_else() -> None:
    assert_found(PARTS["paths"])
