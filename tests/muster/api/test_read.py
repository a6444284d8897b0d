"""The read API's answers. Access by Airflow's tokens is tested with a real Airflow in tests/dags/test_fleet_page.py."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from muster import store
from muster.api.app import create_app
from muster.model.states import State
from muster.web.access import read
from tests.muster import fleet

SECRET = ("launch", "user", "work_dir", "bmc", "host_key", "port")


@pytest.fixture
def client(fleet_db: str) -> TestClient:
    app = create_app()
    app.dependency_overrides[read] = lambda: None
    return TestClient(app)


def test_each_route_but_the_metrics_asks_airflow() -> None:
    """A request, not the routes' objects: whatever answers without a login is open, however it is mounted."""
    app = create_app()
    paths = {"/v1/openapi.json", "/openapi.json", "/docs", "/redoc", "/metrics"}
    paths |= {path.replace("{name}", "n") for path in _described(app)}
    requests: list[str] = []

    def refuse() -> None:
        requests.append("asked")
        raise PermissionError

    app.dependency_overrides[read] = refuse
    client = TestClient(app, raise_server_exceptions=False)
    answers = {path: client.get(path).status_code for path in paths}
    assert {path for path, status in answers.items() if status == 500} == {p for p in paths if p.startswith("/v1/")}
    assert len(requests) == sum(path.startswith("/v1/") for path in paths) > 5


def _described(app: FastAPI) -> set[str]:
    app.dependency_overrides[read] = lambda: None
    found = set(TestClient(app).get("/v1/openapi.json").json()["paths"])
    app.dependency_overrides.clear()
    return found


def test_answers(client: TestClient) -> None:
    for name in ("gpu-0001", "gpu-0002", "gpu-0003"):
        store.nodes.add(fleet.new_node(name, rack="r1", launch={"kind": "python", "python": "/secret"}))
    fleet.fail("gpu-0001")
    fleet.qualify("gpu-0002")
    store.nodes.move("gpu-0002", State.PRODUCTION, "Ada", "by hand")

    def get(path: str) -> Any:
        answer = client.get(f"/v1/nodes{path}")
        assert answer.status_code == 200, answer.text
        assert not any(f'"{field}"' in answer.text for field in SECRET)
        return answer.json()

    assert [(row["node"], row["verdict"]) for row in get("")] == [
        ("gpu-0001", "FAIL"), ("gpu-0002", "PASS"), ("gpu-0003", None),
    ]  # fmt: skip
    assert [row["node"] for row in get("?limit=1&after=gpu-0001")] == ["gpu-0002"]
    assert (get("?pod=p1"), len(get("?pod=none"))) == ([], 3)
    assert [row["node"] for row in get("?state=quarantine&rack=r1")] == ["gpu-0001"]
    assert get("/gpu-0002")["state"] == "production"
    assert get("/gpu-0002")["pause"] is None
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    store.pauses.pause("gpu-0002", later, "Ada", "a technician is there")
    assert get("/gpu-0002")["pause"]["person"] == "Ada"
    assert get("/gpu-0001/verdicts")[0]["verdict"] == "FAIL"
    assert get("/gpu-0001/findings")[0]["finding"]["fault_class"] == "gpu"
    assert get("/gpu-0002/certificate")["invalid"] == ""
    for absent in ("/gpu-0001/certificate", "/gone", "/gone/verdicts", "/gone/findings", "/gone/certificate"):
        assert client.get(f"/v1/nodes{absent}").status_code == 404, absent
    for wrong in ("limit=1001", "state=quarantin", "verdict=FAILED"):
        assert client.get(f"/v1/nodes?{wrong}").status_code == 422, wrong
    assert get("?state=out&verdict=none") == []
    assert client.post("/v1/nodes/gpu-0001").status_code == 405


def test_pages_lose_no_node_whatever_order_the_database_sorts_names_in(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostgreSQL does under en_US.UTF-8."""
    names = ["a100-1", "dgx-1", "gpu-a", "gpu1"]
    for name in names:
        store.nodes.add(fleet.new_node(name))
    rows = {row.node: row for row in store.overview.rows()}
    monkeypatch.setattr(store.overview, "rows", lambda: [rows[name] for name in ("a100-1", "gpu1", "gpu-a", "dgx-1")])
    seen, after, pages = [], "", ["?limit=1"]
    while page := client.get(f"/v1/nodes?limit=1&after={after}").json():
        after = page[0]["node"]
        seen.append(after)
    assert seen == names
    while answer := client.get(f"/v1/nodes{pages[-1]}").links.get("next"):
        pages.append(answer["url"])
    assert [parse_qs(each.partition("?")[2]) for each in pages[1:]] == [
        {"limit": ["1"], "after": [name]} for name in names[:-1]
    ]


def test_a_page_of_nodes_does_not_read_the_fleet_anew(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
    assert [row["node"] for row in client.get("/v1/nodes?limit=1").json()] == ["a"]
    monkeypatch.setattr(store.overview, "rows", lambda: pytest.fail("the fleet was read again"))
    assert [row["node"] for row in client.get("/v1/nodes?limit=1&after=a").json()] == ["b"]
