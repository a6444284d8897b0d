"""The steps of a pair test: how often a rail that carries nothing is tried."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from muster_node.cluster.pair.backend import NotSent, Rail, Receiver, Step
from muster_node.cluster.pair.measure import TOGETHER, TOGETHER_VARIANTS, Pair
from muster_node.cluster.pair.tcp import Tcp
from tests.muster_node.cluster.pair.pairs import both, figures, sides

SEED = 5
"""Of the tests' probes; each flow's is its own."""


@pytest.mark.parametrize(("fails", "tried"), [({0, 1, 2, 3}, 2), ({1, 2}, 3), ({0, 2}, 4), (set(), 4)])
def test_of_a_dead_rail_no_further_flows_are_tried(
    fails: set[int], tried: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Tcp.receive

    def failing(self: Tcp, rail: Rail, step: Step) -> Receiver:
        if rail.name == "r0" and (step.seed - SEED) // 1009 in fails:
            raise NotSent("the port is down")
        return receive(self, rail, step)

    monkeypatch.setattr(Tcp, "receive", failing)
    together = range(min({*fails, TOGETHER_VARIANTS - 1}) + 1)
    for rows in both(sides(2, variants=4, seconds=0.05), tmp_path):
        at_once = figures(rows, "pair_bandwidth", "together")
        assert sorted(at_once) == [(rail, each) for rail in ("r0", "r1") for each in together]
        rates = figures(rows, "pair_bandwidth")
        assert sorted(rates) == [*(("r0", each) for each in range(tried)), *(("r1", each) for each in range(4))]
        assert {variant for (rail, variant), rate in rates.items() if rail == "r0" and rate == 0} == {
            each for each in fails if each < tried
        }


def test_the_receivers_of_rails_that_are_measured_together_are_opened_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of some backends takes a second until it listens: here none does before all of them are being opened."""
    receive, rails = Tcp.receive, 3
    all_open = threading.Barrier(rails)

    def slow(self: Tcp, rail: Rail, step: Step) -> Receiver:
        if together.is_set():
            all_open.wait(10)
        return receive(self, rail, step)

    together = threading.Event()
    transfer = Pair._transfer

    def noted(self: Pair, at: list[int], mode: str, *rest: Any) -> list[int]:
        if mode == TOGETHER:
            together.set()
        return transfer(self, at, mode, *rest)

    monkeypatch.setattr(Tcp, "receive", slow)
    monkeypatch.setattr(Pair, "_transfer", noted)
    for rows in both(sides(rails, seconds=0.05), tmp_path):
        rates = figures(rows, "pair_bandwidth", TOGETHER)
        assert len(rates) == rails
        assert all(rates.values())
