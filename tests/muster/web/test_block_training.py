"""The training on a block's page: before it trains what its members differ in, afterwards the table and the ranks."""

from __future__ import annotations

import dataclasses

from fastapi.testclient import TestClient

from muster import store
from muster.model.runs import RunKey
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.web.conftest import page
from tests.muster_reports.trainings import member

KEY = RunKey("cluster_qualification", "block")
PATH = "/run?dag_id=cluster_qualification&run_id=block"


def test_the_page_of_a_block_shows_its_training(client: TestClient) -> None:
    names = ["n1", "n2"]
    for name in names:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
        store.leases.acquire(name, KEY)
        store.runs.begin(KEY, name, "short", "x", required_stages=["cluster_validation"])
    store.attempts.keep_block(KEY, {"members": names, "differences": ["its members differ in nccl: 2.27 on n1"]})
    before = page(client, PATH)
    assert "its members differ in nccl: 2.27 on n1" in before
    assert "Training" not in before
    for name in names:
        of = member(name, slow="gpu1" if name == "n2" else "", throttled=212.0)
        judged = fleet.judgement("cluster_validation", Verdict.WARN, findings=of.findings)
        judged = dataclasses.replace(judged, observations=of.observations)
        fleet.record(KEY, None, judged, node=name)
        store.runs.finish(KEY, Verdict.WARN, "x", node=name)
    text = page(client, PATH)
    assert "throttled for 212 s" in text
    assert text.count('<svg class="step slow"') == 1
    assert text.count('<svg class="step') == 4
    assert "16,384" in text
    assert "What a job will get" in page(client, "/report?dag_id=cluster_qualification&run_id=block&node=n1")
