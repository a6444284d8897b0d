"""The answer of an outside system that repairs nodes: for its own alone, out of service, and never into it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from muster import store
from muster.api import reports
from muster.model.runs import RunKey
from muster.model.states import State
from tests.muster import fleet
from tests.muster.api.conftest import app

NODE, OTHER = "gpu-0001", "gpu-0002"
ANSWER = {"node": NODE, "to": "registered", "person": "Ada", "reason": "INC-17: gpu3 replaced"}


@pytest.fixture
def client(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(reports, "rates", reports.Rates())
    each = {name: {"sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("jira", "snow", "epilog", "one")}
    more = {"jira": {"repairs": "jira"}, "snow": {"repairs": "snow"}, "one": {"repairs": "jira", "nodes": [OTHER]}}
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", json.dumps({name: each[name] | more.get(name, {}) for name in each}))
    store.nodes.add(fleet.new_node(NODE, labels={"repair_owner": "jira"}))
    store.nodes.add(fleet.new_node(OTHER))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "gpu3 is lost")
    return TestClient(app())


def post(client: TestClient, token: str = "jira", **changed: Any) -> Any:
    return client.post("/v1/repairs", json=ANSWER | changed, headers={"Authorization": f"Bearer {token}"})


def test_the_owners_answer_moves_the_node_and_stands_in_its_history(client: TestClient) -> None:
    assert post(client, to="rma", reason="INC-17: sent in").json() == {"node": NODE, "state": "rma"}
    assert post(client).json() == {"node": NODE, "state": "registered"}
    last = store.nodes.events(NODE)[-1]
    assert (last.actor, last.login, last.to_state) == ("Ada", "source:jira", State.REGISTERED)
    assert "INC-17: gpu3 replaced" in last.reason


@pytest.mark.parametrize("to", ["repair", "rma", "registered"])
def test_the_same_answer_once_more_changes_nothing(client: TestClient, to: str) -> None:
    first = post(client, to=to).json()
    before = store.nodes.events(NODE)
    again = post(client, to=to)
    assert (again.status_code, again.json()) == (200, first)
    assert store.nodes.events(NODE) == before
    assert post(client, to=to, reason="another").status_code == 409


@pytest.mark.parametrize(
    ("token", "changed", "status"),
    [
        ("", {}, 401), ("epilog", {}, 403), ("snow", {}, 403), ("one", {}, 403), ("jira", {"node": OTHER}, 403),
        ("jira", {"node": "unknown"}, 403), ("jira", {"to": "production"}, 422), ("jira", {"to": "qualified"}, 422),
        ("jira", {"reason": ""}, 422), ("jira", {"reason": " \u200b"}, 422), ("jira", {"person": "root"}, 409),
        ("jira", {"more": 1}, 422),
    ],
)  # fmt: skip
def test_what_it_refuses_changes_nothing(client: TestClient, token: str, changed: dict[str, Any], status: int) -> None:
    before = store.nodes.events(NODE), store.nodes.events(OTHER)
    assert post(client, token, **changed).status_code == status
    assert (store.nodes.events(NODE), store.nodes.events(OTHER)) == before


def test_a_node_that_serves_or_is_held_by_a_run_is_left_alone(client: TestClient) -> None:
    store.leases.acquire(NODE, RunKey("repair", "a repair"))
    assert post(client).status_code == 409
    store.leases.release(RunKey("repair", "a repair"), "over")
    assert post(client).status_code == 200
    assert post(client, to="repair").status_code == 409, "it is registered: no owner takes it out"


def test_a_body_that_is_none_or_too_long_is_refused(client: TestClient) -> None:
    token = {"Authorization": "Bearer jira"}
    for body, status in ((b"no json", 422), (b"[" * 100_000, 422), (b" " * (reports.BODY_MAX + 1), 413)):
        assert client.post("/v1/repairs", content=body, headers=token).status_code == status
