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
    found = store.passes.since(now - datetime.timedelta(days=1), simulated=False)
    assert [(each.node, each.stage, each.run_id) for each in found] == [
        ("gpu-0001", "intake", "one"), ("gpu-0001", "burn_in", "one"),
    ]  # fmt: skip
    assert not store.passes.since(now + datetime.timedelta(days=1), simulated=False)
    assert not store.passes.since(now - datetime.timedelta(days=1), simulated=True)
