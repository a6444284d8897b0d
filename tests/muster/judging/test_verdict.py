"""The whole verdict: waivers are read last, in the transaction that stores it."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from muster import store
from muster.judging import verdict
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from tests.muster import fleet

NODE = "gpu-0001"


@pytest.fixture
def finding(fleet_db: str) -> str:
    """The id of what a node failed with before."""
    store.nodes.add(fleet.new_node(NODE))
    lease = fleet.fail(NODE, "failed")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "it is known to be slow")
    return store.reporting.run(lease.key).stages[0].judgement.findings[0].id


def judged(run_id: str, meanwhile: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """The recorded verdict on the same finding if that happens while the judge works."""
    found = fleet.judgement("intake", Verdict.FAIL, findings=(fleet.finding(),))
    monkeypatch.setattr("muster_criteria.stage.judge.judge", lambda _: (meanwhile(), found)[1])
    lease = fleet.begin(NODE, run_id)
    store.runs.begin_stage(lease.key, "intake")
    recorded = verdict.record(lease.key, Case(load_sku("cpu-generic"), "intake", "short"), store.stages.Sent())
    (stage,) = store.runs.stages(lease.key)
    assert stage.verdict is recorded.judgement.verdict
    store.runs.finish(lease.key, stage.verdict, "so it ended")
    store.leases.release(lease.key, "over")
    return stage.verdict


@pytest.mark.both_dialects
def test_a_waiver_given_or_revoked_while_the_judge_works_counts(finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    assert judged("given", lambda: store.waivers.give(finding, until, "Ada", "known"), monkeypatch) is Verdict.WARN
    (waiver,) = store.waivers.find(node=NODE)
    assert judged("revoked", lambda: store.waivers.revoke(waiver.id, "Ada", "no"), monkeypatch) is Verdict.FAIL


def test_a_stage_whose_verdict_cannot_be_decided_is_not_stored(finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judged("broken", breaks, monkeypatch)
    assert store.runs.stages(store.leases.live()[0].key) == []
