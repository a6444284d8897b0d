"""Which of the rounds that a node missed are still owed."""

from __future__ import annotations

import numpy as np
import pytest

from muster_criteria.cluster.fabric.judging.made import Missed, Rounds, unmade
from muster_criteria.cluster.fabric.rounds import Kind, Round, RoundResult
from tests.muster_criteria.cluster.fabric.worlds import fabric, places

FABRIC = fabric(2, 3)
NEAR, FAR = (0, 1), (0, 3)
"""Pairs of the node 0 within its leaf, and between leaves."""


def owed(missed: list[bool], *made: tuple[int, int], kind: Kind = Kind.CONFIRM, first: int = 10) -> list[bool]:
    """What is owed of rounds that node 0 missed, by whether they lay between leaves, after rounds of these pairs."""
    results = tuple(
        RoundResult(Round(first + at, kind, (pair,)), np.full((1, 4, 1), 100.0), np.zeros((1, 4), dtype=bool))
        for at, pair in enumerate(made)
    )
    name = FABRIC.nodes[0]
    known = {name: [Missed(number, "silent", across) for number, across in enumerate(missed, 1)]}
    return [each.across for each in unmade(Rounds(FABRIC, places(FABRIC), results, missed=known), name)]


@pytest.mark.parametrize(
    ("missed", "made", "left"),
    [
        ([False], [NEAR], []), ([False], [FAR], []), ([True], [FAR], []), ([True], [NEAR], [True]),
        ([False, True], [NEAR, FAR], []), ([False, True], [FAR], [False]), ([False, True], [NEAR, NEAR], [True]),
        ([False], [(1, 3)], [False]), ([True, False], [], [True, False]),
    ],
)  # fmt: skip
def test_a_round_between_leaves_is_made_up_for_only_between_leaves(
    missed: list[bool], made: list[tuple[int, int]], left: list[bool]
) -> None:
    """Some faults show under such load alone; each round makes up for one."""
    assert owed(missed, *made) == left


def test_only_a_later_round_of_confirmation_that_the_node_made_counts() -> None:
    assert owed([True], FAR, kind=Kind.OTHER_LEAF) == [True]
    assert owed([True], FAR, first=1) == [True]
