"""The versions that the fleet runs: each node once, by its latest intake; not itself, not those out of service."""

from __future__ import annotations

import pytest

from muster import store
from muster.model.states import State
from muster_node.contract import Measurement
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")


def intake(name: str, version: str, run_id: str) -> None:
    lease = fleet.begin(name, run_id)
    rows = [Measurement("inventory", "vbios", f"gpu{slot}", "text", text=version if slot else "0") for slot in range(2)]
    parsed, raw = fleet.result("intake", node=name, measurements=rows)
    store.runs.begin_stage(lease.key, "intake", node=name)
    fleet.record(lease.key, parsed, fleet.judgement("intake"), raw, node=name)
    store.leases.release(lease.key, "over")


def test_each_other_node_counts_once_by_what_it_reported_last() -> None:
    for name in ("a", "b", "c", "d"):
        store.nodes.add(fleet.new_node(name))
        intake(name, "1", f"{name}__1")
    intake("b", "2", "b__2")
    store.nodes.move("d", State.RETIRED, "Ada", "gone")

    def seen(sku: str = "cpu-generic", node: str = "a", simulated: bool = False) -> object:
        return store.running.versions(sku, node, {"vbios"}, simulated=simulated)

    assert seen() == {"vbios": {"0": 2, "1": 1, "2": 1}}
    assert seen(node="b") == {"vbios": {"0": 2, "1": 2}}
    assert seen("other") == seen(simulated=True) == {}
