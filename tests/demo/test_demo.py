"""The main job itself, unattended, as a user runs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.demo.started import Demo
from tests.demo.unattended import examine

SEED = 1

pytestmark = [pytest.mark.demo, pytest.mark.needs_torch, pytest.mark.early(1)]


@pytest.mark.timeout(1900)
def test_unattended_it_finds_every_fault_and_takes_everybody_else_into_service(
    start: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch
) -> None:
    examine(start, monkeypatch, SEED, entered="{node} entered production by itself")
