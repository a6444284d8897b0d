"""What a verdict is compared with: peers that did the same work."""

from __future__ import annotations

import dataclasses

import pytest

from muster import store
from muster.judging.references import with_history
from muster_criteria.sku_files.work import sku_work
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

STAGE, PROBE = "performance", "gemm_rate"


@pytest.mark.parametrize(("stage", "same"), [(STAGE, True), (STAGE, False), ("thermal", False)])
def test_peers_with_other_parameters_of_a_stage_s_probe_say_nothing_of_its_metrics(stage: str, same: bool) -> None:
    store.nodes.add(fleet.new_node())
    run = store.runs.get(fleet.begin("gpu-0001").key)
    work = sku_work(fleet.sku(), run.level)
    of_peers = work if same else work | {f"{STAGE}/{PROBE}": "other parameters"}
    snapshot = dataclasses.replace(fleet.peers([600.0] * 9), work=of_peers)
    known = with_history(snapshot, run, store.nodes.get("gpu-0001"), fleet.sku(), stage, work).snapshot
    assert (PROBE in set(known.cells["metric"])) == (same or stage != STAGE)
    assert known.version == snapshot.version
