"""The health sweep's records: one node that cannot be recorded costs no other node of its batch."""

from __future__ import annotations

import dataclasses

import pytest

from muster import store
from muster.model.health import Cursor
from muster.model.nodes import Node
from muster.operators.lifecycle import sweep
from muster.operators.lifecycle.sweep import Tally
from muster.remote.sweeping import Answer
from tests.muster import fleet

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]


def test_a_node_that_cannot_be_recorded_costs_no_other_of_its_batch() -> None:
    """One was removed while the sweep read it, so the transaction of the whole batch fails."""
    nodes: list[Node] = []
    for name in ("a", "gone", "z"):
        store.nodes.add(fleet.new_node(name))
        nodes.append(store.nodes.get(name))
    nodes[1] = dataclasses.replace(nodes[1], name="never-enrolled")
    answers = [Answer(node, trouble="it does not answer") for node in nodes]
    tally = Tally()
    sweep.record(answers, {node.name: Cursor(node.name) for node in nodes}, tally)
    assert [each.check for name in ("a", "z") for each in store.health.of_node(name)] == ["unreachable"] * 2
    assert tally.new == 2
