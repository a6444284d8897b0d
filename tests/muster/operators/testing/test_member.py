"""When a member's end stops the jobs of others: what hangs ends with the block, and no word of one alone stops it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster import store
from muster.model.runs import Job, RunKey
from muster.operators.testing import block, member
from muster.remote.job import attempt as remote
from muster.remote.job import outcome
from muster_criteria.measured import StageResult, parse_result
from tests.muster import copied
from tests.muster_criteria.cluster_results import Sent

pytestmark = pytest.mark.usefixtures("sqlite_db")

NAMES = ["n0", "n1", "n2", "n3", "n4"]
RUN = RunKey("cluster_qualification", "block")


def reports(of: str, lost: str, let_in: bool) -> StageResult:
    sent = Sent(of, NAMES).lose(lost)
    sent.dropped |= set() if let_in else {"join_lag"}
    return parse_result(json.dumps(sent.raw()).encode())


@pytest.mark.parametrize(
    ("let_in", "ended", "at_work", "stopped"),
    [
        (True, ["n1"], ["n0", "n2", "n3", "n4"], []),  # n1 alone is cut off: n0, which leads the block, goes on
        (True, ["n1", "n2"], ["n0", "n3", "n4"], []),
        (True, ["n1", "n2", "n3"], ["n0", "n4"], ["n0"]),
        (True, ["n1", "n2", "n3", "n4"], ["n0"], ["n0"]),
        (True, ["n0", "n1", "n2", "n3", "n4"], [], []),
        (False, ["n1", "n2", "n3"], ["n0", "n4"], []),  # they could not join: n0 and n4 train without them
        (False, ["n1", "n2", "n3", "n4"], ["n0"], ["n0"]),  # n0 hangs, and has let none in
    ],
)
def test_a_member_is_stopped_once_most_of_the_others_have_ended(
    let_in: bool, ended: list[str], at_work: list[str], stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.qualified(*NAMES)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    for name in NAMES:
        state = outcome.RUNNING if name in at_work else outcome.FINAL
        store.runs.record_job(Job(RUN.dag_id, RUN.run_id, member.STAGE, "1.0", state, "", node=name))
    asked: list[str] = []
    monkeypatch.setattr(remote, "stop_hung", lambda job, *_: asked.append(job.node))
    attempt = SimpleNamespace(
        task=SimpleNamespace(key=RUN), plan=SimpleNamespace(probes=[SimpleNamespace(params={"members": NAMES})])
    )
    operator = member.MusterMemberOperator(task_id="train", member="n1", retries=2)
    operator._after(cast("Any", attempt), reports("n1", "n0", let_in))
    assert asked == stopped
