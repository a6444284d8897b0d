"""The part of the Fleet page that a browser asks for again: renewed by what changes, made once for all viewers."""

from __future__ import annotations

import datetime
import re
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.models.base import Base
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from muster import store
from muster.model.dags import ADMISSION, ASKING
from muster.model.queues import AuditLag
from muster.model.runs import Job, RunKey
from muster.model.states import State
from muster.web import approvals, overview
from muster.web.fleet import progress
from muster.web.shared import Shared
from tests.muster import fleet
from tests.muster.web.conftest import notices, override, page
from tests.support.plugins.statements import executed

HOUR = datetime.timedelta(hours=1)


def _version(text: str) -> str:
    (version,) = re.findall(r'data-version="([^"]+)"', text)
    return str(version)


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> list[datetime.datetime]:
    """The page's clock, which stands still."""
    clock = [datetime.datetime(2026, 5, 4, 12, 0, 0, tzinfo=datetime.UTC)]
    monkeypatch.setattr(overview, "_now", lambda: clock[0])
    monkeypatch.setattr(overview, "_stopped", list)  # nodes are enrolled at another time
    return clock


def test_the_live_part_is_empty_until_something_changes(client: TestClient, noon: list[datetime.datetime]) -> None:
    store.nodes.add(fleet.new_node("n1"))
    version = _version(page(client, "/"))
    assert client.get(f"/live?version={version}").status_code == 204
    lease = fleet.begin("n1")
    changed = client.get(f"/live?version={version}")
    assert changed.status_code == 200
    assert lease.run_id in changed.text
    assert client.get(f"/live?version={_version(changed.text)}").status_code == 204


def test_the_live_part_is_renewed_by_time_questions_and_notices(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    version = _version(page(client, "/"))
    override(client, approvals.waiting, 2)
    asked = client.get(f"/live?version={version}")
    assert notices(asked.text) == [["2"]]
    version = _version(asked.text)
    lag = AuditLag("siem", 7, None, "refused")
    monkeypatch.setattr(store.audit, "lags", lambda: [lag])
    noon[0] += datetime.timedelta(seconds=overview.KEPT_S)
    noticed = client.get(f"/live?version={version}")
    assert ["7"] in notices(noticed.text)
    version = _version(noticed.text)
    noon[0] += datetime.timedelta(minutes=1)
    assert client.get(f"/live?version={version}").status_code == 200, "the time left moves on"


def test_what_changed_under_the_same_version_is_shown_a_little_later(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL numbers rows before they are committed: the newest number need not be the newest change."""
    store.nodes.add(fleet.new_node("n1"))
    monkeypatch.setattr(store.overview, "version", lambda: "7")

    def shown() -> str:
        return client.get("/nodes.csv").text

    assert "quarantine" not in shown()
    store.nodes.move("n1", State.QUARANTINE, "Ada", "smells of smoke")
    assert "quarantine" not in shown()
    noon[0] += datetime.timedelta(seconds=overview.KEPT_S)
    assert "quarantine" in shown()


def test_a_look_costs_no_more_where_many_questions_are_open(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    airflow = create_engine(f"sqlite:///{tmp_path}/airflow.db")
    Base.metadata.create_all(airflow)
    user: Any = None

    def waiting() -> int:
        with Session(airflow) as session:
            return approvals.waiting(session, user)

    monkeypatch.setattr(
        approvals, "get_auth_manager", lambda: types.SimpleNamespace(get_authorized_dag_ids=lambda **_: set(ASKING))
    )
    assert isinstance(client.app, FastAPI)
    client.app.dependency_overrides[approvals.waiting] = waiting
    store.nodes.add_all([("", fleet.new_node(f"n{number:03d}")) for number in range(200)])

    def statements(questions: range) -> int:
        with store.engine.transaction():
            for node in (f"n{number:03d}" for number in questions):
                store.questions.put(RunKey(ADMISSION, node), node, store.questions.newest(node))
        version = _version(page(client, "/"))
        with executed() as made:
            assert client.get(f"/live?version={version}").status_code == 204
        return len(made)

    assert statements(range(1)) == statements(range(1, 200))
    airflow.dispose()


def test_a_command_in_a_reason_is_marked_as_one(client: TestClient, noon: list[datetime.datetime]) -> None:
    store.nodes.add(fleet.new_node("n1"))
    store.nodes.move("n1", State.QUARANTINE, "Ada", "as `muster why` says <b>")
    for path in ("/", "/node/n1"):
        assert "as <code>muster why</code> says &lt;b&gt;" in page(client, path)


def test_the_live_part_is_rendered_once_for_all_viewers(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    made: list[object] = []
    read = overview._overview
    monkeypatch.setattr(overview, "_overview", lambda filters: made.append(filters) or read(filters))
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: page(client, "/live"), range(8)))
    assert (len(texts), len(made)) == (1, 1)
    page(client, "/live?state=production")
    fleet.fail("n1")
    assert "gpu3 is slow." in page(client, "/live")
    assert len(made) == 3


def test_the_sentences_about_the_fleet_are_read_once_for_all_filters(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    read: list[str] = []
    monkeypatch.setattr(store.audit, "lags", lambda: read.append("lags") or [])
    for filters in ("", "?rack=r1", "?q=n1", "?state=registered"):
        page(client, f"/{filters}")
    assert read == ["lags"]


@pytest.mark.usefixtures("fleet_db")
def test_what_is_left_of_a_run_is_counted_from_its_first_job(noon: list[datetime.datetime]) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    (run,), _ = store.overview.runs_under_way(1)
    assert [each.left_s for each in progress([run], {}, [7200.0], noon[0])] == [None]
    store.runs.record_job(Job(fleet.DAG, lease.run_id, "intake", "1", "done", "/j", started_at=noon[0] - HOUR))
    (run,), _ = store.overview.runs_under_way(1)
    assert [each.left_s for each in progress([run], {}, [7200.0], noon[0])] == [3600.0]


def test_what_could_not_be_made_is_made_again() -> None:
    shared = Shared[int](2)
    with pytest.raises(ZeroDivisionError):
        shared.get("a", lambda: 1 // 0)
    assert (shared.get("a", lambda: 1), shared.get("a", lambda: 2)) == (1, 1)
    for key in ("b", "c"):
        shared.get(key, lambda: 3)
    assert shared.get("a", lambda: 4) == 4, "the oldest value is let go"
