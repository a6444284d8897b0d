"""The API with sources that may report, each with its own name as its token."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from muster import store
from muster.api import reports
from muster.api.app import create_app
from tests.muster import fleet

NODE = "gpu-0001"
TOKENS = ("epilog", "alerts", "sentinel", "gpud", "one", "trusted", "slow")
XID = {"node": NODE, "check": "xid/79", "value": "fallen off the bus"}


@functools.cache
def app() -> FastAPI:
    """Made once: FastAPI looks at each route's signature, which takes longer than most requests. It keeps no state."""
    return create_app()


def sources(**changed: dict[str, Any]) -> str:
    """The setting: each source has its own name as its token, as a hash."""
    forms = {"alerts": "alertmanager", "sentinel": "nvsentinel", "gpud": "gpud"}
    every = {
        name: {"sha256": hashlib.sha256(name.encode()).hexdigest(), "form": forms.get(name, "muster")}
        for name in TOKENS
    }
    for name, more in changed.items():
        every[name] |= more
    return json.dumps(every)


@pytest.fixture
def client(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(reports, "rates", reports.Rates())
    monkeypatch.setenv(
        "MUSTER_REPORT_SOURCES",
        sources(one={"nodes": ["gpu-0002"]}, trusted={"most": "at_once"}, slow={"per_minute": 5}),
    )
    enrol = [("", fleet.new_node(name, sku="h100-sxm-8")) for name in (NODE, "gpu-0002")]
    store.adoption.adopt([], "Ada", "serves", enrol=enrol)
    return TestClient(app())


def post(client: TestClient, body: Any, token: str = "epilog", **options: Any) -> Any:
    return client.post("/v1/reports", json=body, headers={"Authorization": f"Bearer {token}"}, **options)
