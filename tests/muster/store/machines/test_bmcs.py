"""A node's BMC in the records: described without secrets, its readings kept as long as the node's result."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.model.runs import Job
from muster_criteria.chassis import Chassis
from tests.muster import fleet

BMC = {"url": "https://10.0.1.1", "connection": "bmc"}
READINGS = Chassis(trouble="the BMC does not answer").to_json()


@pytest.mark.usefixtures("fleet_db")
class TestBmcs:
    def test_where_it_answers_is_described_and_described_anew(self) -> None:
        assert store.nodes.add(fleet.new_node()) == "added"
        assert store.nodes.get("gpu-0001").bmc == {}
        assert store.nodes.add(fleet.new_node(bmc=BMC)).startswith("updated: ")
        assert store.nodes.get("gpu-0001").bmc == BMC
        assert store.nodes.events("gpu-0001")[-1].reason.startswith("description changed: bmc none → ")
        assert store.nodes.add(fleet.new_node(bmc=BMC)) == "unchanged"

    def test_what_it_reported_before_a_job_outlives_the_worker(self) -> None:
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        job = Job(lease.dag_id, lease.run_id, "thermal", "0.0", "running", "", chassis=READINGS)
        store.runs.record_job(job)
        found = store.runs.get_job(lease.key, "thermal")
        assert found is not None
        assert found.chassis == READINGS

    def test_what_it_reported_is_kept_beside_the_result_and_goes_with_it(self) -> None:
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        parsed, sent = fleet.result()
        store.runs.begin_stage(lease.key, "intake")
        raw_chassis = READINGS.encode()
        fleet.record(lease.key, parsed, fleet.judgement(), sent, chassis=raw_chassis)
        kept = store.raw.stage_bytes(lease.key, "intake")
        assert kept is not None
        assert (kept.result, kept.chassis) == (sent, raw_chassis)
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
        assert store.retention.apply(later)["results"] == 2
        gone = store.raw.stage_bytes(lease.key, "intake")
        assert gone is not None
        assert gone.chassis is None
