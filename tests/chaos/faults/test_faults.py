"""The kinds of faults of a campaign."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from muster.errors import AirflowRefused
from tests.chaos import faults
from tests.chaos.world import World


def test_every_class_has_kinds_of_faults() -> None:
    kinds = faults.load()
    assert list(kinds) == list(faults.CLASSES)
    assert all(len(each) >= 5 for each in kinds.values())


def test_a_fault_whose_answer_was_lost_is_lifted() -> None:
    class Client:
        def pause(self, _dag: str) -> None:
            raise AirflowRefused("no answer in time")

    class Lost:
        client, todo = Client(), list[Any]()
        lifted_by = World.lifted_by

    faults.load()
    strike = faults.KINDS["dag_paused"].strike(cast("World", Lost()), random.Random(1))
    with pytest.raises(AirflowRefused):
        next(iter(strike))
    assert len(Lost.todo) == 1
