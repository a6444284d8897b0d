"""Which stages ended well on the present machines."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]


def test_only_stages_that_ended_well_are_passes() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin(run_id="one", required_stages=("intake", "burn_in", "thermal"))
    for stage, verdict in (("intake", Verdict.PASS), ("burn_in", Verdict.WARN), ("thermal", Verdict.INCONCLUSIVE)):
        fleet.do_stage(lease, stage, verdict)
    now = datetime.datetime.now(datetime.UTC)
    yesterday = now - datetime.timedelta(days=1)
    found = store.passes.of_nodes(["gpu-0001", *(f"other-{at}" for at in range(600))], yesterday)
    assert [(each.node, each.stage, each.run_id) for each in found] == [
        ("gpu-0001", "intake", "one"), ("gpu-0001", "burn_in", "one"),
    ]  # fmt: skip
    assert not store.passes.of_nodes(["gpu-0001"], now + datetime.timedelta(days=1))
    assert not store.passes.of_nodes(["other"], yesterday)
    level = found[0].level
    counted = {"gpu-0001": {(level, "intake"): 1, (level, "burn_in"): 1}}
    assert store.passes.counts(yesterday, now, simulated=False) == counted
    assert not store.passes.counts(yesterday, now, simulated=True)
