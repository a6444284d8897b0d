"""The main job once more, with other faults, and with a person who is asked before a node enters production.

Early, but not at the same time as the other: both measure this machine.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster.demo.draw import draw_faults
from muster.demo.service import ACTOR
from tests.demo import test_demo
from tests.demo.started import Demo
from tests.demo.unattended import examine

SEED = 5

pytestmark = [pytest.mark.demo, pytest.mark.needs_torch, pytest.mark.early(5)]


@pytest.mark.timeout(1900)
def test_unattended_it_finds_every_fault_and_asks_before_anybody_enters_service(
    start: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch
) -> None:
    examine(start, monkeypatch, SEED, "--ask", entered=f"{{node}} was admitted by {ACTOR}")


def test_this_seed_plants_every_fault_elsewhere() -> None:
    for one, other in zip(draw_faults(test_demo.SEED), draw_faults(SEED), strict=True):
        assert one.node != other.node
        assert one.gpu != other.gpu
