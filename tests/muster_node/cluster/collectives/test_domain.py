"""Collectives over groups that grow to the whole domain: real agents and ranks over gloo, every sum checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_node.cluster.collectives import domain
from muster_node.cluster.collectives.domain import node_counts
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Fact
from muster_node.probe import Context
from tests.muster_node.cluster import blocks

pytestmark = pytest.mark.needs_torch


@pytest.mark.parametrize("nodes", [1, 2, 3, 9, 18, 36])
def test_groups_grow_to_all_nodes(nodes: int) -> None:
    counts = node_counts(nodes)
    assert counts[-1] == nodes
    assert counts == sorted(set(counts))
    assert counts[0] == 1


@pytest.mark.parametrize("grow", [True, None])
def test_a_block_grows_where_it_is_asked_and_not_for_a_zero_identity(grow: bool | None, tmp_path: Path) -> None:
    """Simulated H100 nodes report a zero ClusterUUID: without being asked, they share no domain, which is no fault."""
    params = {"gpus": "one", "mib": [0.25], "repeats": 2, "ops": ["all_reduce"], "grow": grow}
    block = blocks.Block(tmp_path, ["n0", "n1", "n2"], [("cluster_collectives", params)])
    try:
        block.start()
        ends = block.end()
    finally:
        block.close()
    for end in ends.values():
        assert end.outcome("cluster_collectives").status == "completed"
        rows = end.result.measurements
        identities = {row.text for row in rows if row.metric == "nvlink_domain"}
        assert identities == {f"{domain._NOWHERE}.0"}
        sizes = {row.labels["ranks"]: row for row in rows if row.metric == "domain_busbw"}
        assert all(row.value and row.value > 0 for row in sizes.values())
        checked = [row for row in rows if row.metric == "collective_mismatches" and row.labels.get("part") == "domain"]
        assert [row.value for row in checked] == [0.0] * len(sizes)
    grown = {row.labels["ranks"] for row in ends["n0"].result.measurements if row.metric == "domain_busbw"}
    assert grown == ({"2", "3"} if grow else set())
    last = {row.labels["ranks"] for row in ends["n2"].result.measurements if row.metric == "domain_busbw"}
    assert last == ({"3"} if grow else set())


@pytest.mark.parametrize(("imex", "identity"), [("READY", "uuid.1"), ("service masked", "")])
def test_a_node_whose_imex_something_else_manages_grows_in_no_domain(imex: str, identity: str, tmp_path: Path) -> None:
    class Gpus(HostHardware):
        def domain(self) -> Iterator[Fact]:
            yield Fact("nvlink_domain", "gpu0", "text", text="uuid.1")
            yield Fact("imex", "node", "text", text=imex)

    context = Context(Gpus(), {}, 0, tmp_path, lambda *a, **k: None, lambda sentence: None)
    assert domain._reported(context) == identity
