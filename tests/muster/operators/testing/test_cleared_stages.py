"""What a stage passed with before a person cleared its task says nothing of an attempt that is not made."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.model.runs import Job, RunKey
from muster.operators.lifecycle import revalidation
from muster.operators.testing import qualification, remote_job, stage
from muster.remote.connection import ssh
from muster.remote.job import launch, outcome
from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import SkuError
from muster_criteria.stages import STAGES
from tests.muster import copied, fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"
RUN = RunKey("node_revalidation", "check")
PARAMS = {"node": NODE, "level": "short", "reason": "check"}
TRIES = 8


def measured(name: str, verdict: Verdict = Verdict.PASS, state: str = outcome.FINAL) -> None:
    store.runs.begin_stage(RUN, name)
    store.runs.record_job(Job(RUN.dag_id, RUN.run_id, name, f"{TRIES}.0", state, "", fence=1))
    result, raw = fleet.result(name)
    fleet.record(RUN, result, fleet.judgement(name, verdict), raw)


def whole_pass() -> None:
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    for name in STAGES:
        measured(name)
    revalidation.conclude(RUN)
    qualification.release(RUN)


def execute(name: str, tries: int) -> Any:
    instance = types.SimpleNamespace(
        dag_id=RUN.dag_id, run_id=RUN.run_id, task_id=name, try_number=tries - TRIES + 1, max_tries=tries,
    )  # fmt: skip
    context: Any = {"ti": instance, "dag_run": types.SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id)}
    return stage.MusterStageOperator(task_id=name, stage=name).execute(context)


def verdicts() -> dict[str, Verdict]:
    return {each.stage: each.verdict for each in store.runs.stages(RUN)}


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_job, "log_in", raising(ssh.Unreachable("no route to it")))


@pytest.mark.parametrize(
    ("prevented", "ends", "charged"),
    [
        (None, Verdict.INCONCLUSIVE, 1),
        (SkuError("it is being edited"), Verdict.SKIPPED, 0),
        (launch.BadLaunch("no kind"), Verdict.SKIPPED, 0),
    ],
)
def test_a_cleared_stage_that_is_not_measured_again_ends_the_run_without_a_pass(
    prevented: Exception | None, ends: Verdict, charged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And files of the controller that cannot be read are no fault of the node."""
    whole_pass()
    before = store.certificates.of_node(NODE)
    revalidation.claim(RUN, PARAMS)
    with monkeypatch.context() as broken:
        if prevented is not None:
            broken.setattr(remote_job, "current_sku", raising(prevented))
        with pytest.raises(remote_job.Inconclusive):
            execute("burn_in", TRIES + 1)
    with pytest.raises(AirflowSkipException):
        execute("integrity", TRIES + 1)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    assert (store.runs.get(RUN).verdict, store.nodes.get(NODE).inconclusive) == (ends, charged)
    assert store.certificates.of_node(NODE) == before


@pytest.mark.parametrize(
    ("verdict", "stays"),
    [(Verdict.WARN, False), (Verdict.PROVISIONAL, False), (Verdict.FAIL, True), (Verdict.INCONCLUSIVE, True)],
)
def test_only_what_was_found_against_the_node_stays(verdict: Verdict, stays: bool) -> None:
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    measured("intake", verdict)
    with pytest.raises(remote_job.Inconclusive):
        execute("intake", TRIES + 1)
    assert verdicts() == ({"intake": verdict} if stays else {})


@pytest.mark.parametrize("state", [outcome.FINAL, outcome.RUNNING])
def test_a_retry_of_the_same_attempt_keeps_its_verdict(state: str) -> None:
    """The worker was lost after the verdict was recorded, before or after the job's end was."""
    copied.in_service()
    revalidation.claim(RUN, PARAMS)
    measured("intake", state=state)
    if state == outcome.FINAL:
        execute("intake", TRIES)
    else:
        with pytest.raises(remote_job.Inconclusive):
            execute("intake", TRIES)
    assert verdicts() == {"intake": Verdict.PASS}


def test_a_run_that_does_not_hold_its_node_changes_no_verdict() -> None:
    whole_pass()
    with pytest.raises(AirflowFailException):
        execute("burn_in", TRIES + 1)
    assert set(verdicts()) == {*STAGES}
