"""``--watch``: why a stage is tried again; what was started is shown whatever ends the command."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import httpx
import pytest

from muster import store
from muster.admission import startable
from muster.cli.airflow.follow import waits_because
from muster.errors import INTERRUPTED, DatabaseNotReady
from muster.integration import airflow_api
from muster.model.runs import Job, RunKey
from tests.muster import fleet
from tests.muster.cli.verdicts.test_runs import airflow  # noqa: F401 - a fixture
from tests.muster.integration.test_airflow_api import Airflow

Muster = Callable[..., "tuple[int, str, str]"]

pytestmark = pytest.mark.usefixtures("sqlite_db")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "RETRY_S", 0.0)
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")


@pytest.mark.parametrize(("state", "shown"), [("up_for_retry", True), ("running", False), ("success", False)])
def test_a_stage_that_is_tried_again_says_why(state: str, shown: bool) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    run = store.runs.get(RunKey(lease.dag_id, lease.run_id))
    job = Job(run.dag_id, run.run_id, "intake", "1", "submitted", "")
    store.runs.record_job(job)
    assert waits_because(run, {"intake": state}) == []
    store.runs.record_job(dataclasses.replace(job, note="refused the login"))
    assert waits_because(run, {"intake": state}) == [("intake", "refused the login")] * shown


def test_after_the_first_without_an_answer_no_other_run_is_tried(muster: Muster, airflow: Airflow) -> None:  # noqa: F811
    def late(request: httpx.Request) -> None:
        if request.method == "POST" and airflow.runs:
            raise httpx.ReadTimeout("timed out")

    store.nodes.add(fleet.new_node("gpu-0003"))
    airflow.override = late
    status, out, _ = muster("qualify", "gpu-0001", "gpu-0002", "gpu-0003", "--json")
    shown = json.loads(out)
    assert (status, list(shown["started"]), list(shown["refused"]), shown["not_tried"]) == (
        1, ["gpu-0001"], ["gpu-0002"], ["gpu-0003"],
    )  # fmt: skip


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_was_started_is_shown_whatever_ends_the_watching(
    muster: Muster,
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    interrupted: bool,
) -> None:
    def away(**_: object) -> None:
        raise DatabaseNotReady("the records do not answer")

    def end(_: str) -> None:
        if interrupted:
            raise KeyboardInterrupt
        monkeypatch.setattr(store.runs, "find", away)

    airflow.on_tasks = end
    status, out, _ = muster("qualify", "gpu-0001", "--watch", "--json")
    assert (status, list(json.loads(out)["started"])) == (INTERRUPTED if interrupted else 1, ["gpu-0001"])


def test_what_was_started_is_shown_where_airflow_answers_no_more(muster: Muster, airflow: Airflow) -> None:  # noqa: F811
    def gone(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(503) if airflow.runs and request.method == "GET" else None

    airflow.override = gone
    status, out, _ = muster("qualify", "gpu-0001", "--json")
    assert (status, list(json.loads(out)["started"])) == (1, ["gpu-0001"])


@pytest.mark.parametrize("sent", [True, False])
def test_where_nothing_began_nothing_goes_on_and_what_was_not_sent_is_known(
    muster: Muster,
    airflow: Airflow,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    sent: bool,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if sent:
        airflow.override = stop
    else:
        monkeypatch.setattr(startable, "startable", stop)
    status, out, err = muster("qualify", "gpu-0001", "gpu-0002", "--json")
    assert (status, json.loads(out)["refused"]["gpu-0001"] == "interrupted") == (INTERRUPTED, not sent)
    assert err.splitlines()[-1] == "muster: interrupted"


def test_what_an_interruption_leaves_untried_is_shown(muster: Muster, airflow: Airflow) -> None:  # noqa: F811
    def stop(request: httpx.Request) -> None:
        if request.method == "POST" and airflow.runs:
            raise KeyboardInterrupt

    store.nodes.add(fleet.new_node("gpu-0003"))
    airflow.override = stop
    status, out, _ = muster("qualify", "gpu-0001", "gpu-0002", "gpu-0003", "--json")
    shown = json.loads(out)
    assert (status, list(shown["started"]), list(shown["refused"]), shown["not_tried"]) == (
        INTERRUPTED, ["gpu-0001"], ["gpu-0002"], ["gpu-0003"],
    )  # fmt: skip
