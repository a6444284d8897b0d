"""The fabric bench itself, as root: faults of whole hosts."""

from __future__ import annotations

import pytest

from tests.bench.fabric.proof import MARKS, assert_found

pytestmark = [*MARKS, pytest.mark.early(7)]


def test_a_slow_host_and_one_that_dies_are_found_and_nothing_else() -> None:
    assert_found("hosts")
