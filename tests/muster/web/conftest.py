"""The Fleet page as a client sees it, without Airflow's login."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterator

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dagrun import DagRun
from airflow.utils import session
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine, StaticPool, create_engine
from sqlalchemy.orm import Session

from muster.model.dags import ADMISSION
from muster.web import access, approvals, overview, starts
from muster.web import app as web
from muster.web.shared import Shared

HOSTILE = "<script>alert(1)</script>\x1b[2J‮"


@functools.cache
def _app() -> FastAPI:
    """Made once: FastAPI looks at each route's signature, which takes longer than most requests. It keeps no state."""
    return web.create_app()


@pytest.fixture
def dag_runs() -> Engine:
    """Airflow's database, with the table of runs alone."""
    made = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    DagRun.metadata.create_all(made, tables=[DagRun.metadata.tables["dag_run"]])
    return made


@pytest.fixture
def client(fleet_db: str, dag_runs: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    # Each test has other records under the same version numbers.
    monkeypatch.setattr(overview, "_shared_rows", Shared(1))
    monkeypatch.setattr(overview, "_shared_notices", Shared(1))
    monkeypatch.setattr(overview, "_shared_attention", Shared(1))
    monkeypatch.setattr(overview, "_shared_parts", Shared(32))
    monkeypatch.setattr(session, "create_session", lambda: Session(dag_runs))
    app = _app()
    for guard in (access.read, access.decide, access.start, starts.audited, access.respond, approvals.audited):
        app.dependency_overrides[guard] = lambda: None
    for may in (access.may_decide, access.may_start):
        app.dependency_overrides[may] = lambda: True
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ada", role="user")
    app.dependency_overrides[_get_session] = lambda: Session(dag_runs)
    for asked, nothing in ((approvals.waiting, 0), (approvals.about, []), (approvals.one, None), (access.node_of, "")):
        app.dependency_overrides[asked] = lambda nothing=nothing: nothing
    with TestClient(app, headers={"Origin": "http://testserver"}) as made:
        yield made
    app.dependency_overrides.clear()


def page(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def override(client: TestClient, dependency: Callable[..., object], value: object) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.dependency_overrides[dependency] = lambda: value


def question(node: str, *, answerable: bool = True) -> approvals.Question:
    """An open question, as Airflow keeps it; the real one is asked in tests/dags/test_fleet_page.py."""
    now = datetime.datetime.now(datetime.UTC)
    return approvals.Question(ADMISSION, "r", "ask", node, HOSTILE, ("Admit", "RMA"), now, answerable)


def ask(client: TestClient, node: str, *, answerable: bool = True) -> str:
    """The page with one open question."""
    override(client, approvals.pending, [question(node, answerable=answerable)])
    return page(client, "/approvals")


def notices(text: str) -> list[list[str]]:
    """The numbers in each notice of a page."""
    return [re.findall(r"\d+", each) for each in re.findall(r'<p class="notice">(.*?)</p>', text)]
