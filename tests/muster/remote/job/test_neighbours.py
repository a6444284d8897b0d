"""Neighbours of a node that is lost: who of them responds, and a login that cannot be had."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.errors import ControllerFault
from muster.model.states import State
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job.neighbours import reachable_neighbours
from tests.muster import fleet


@pytest.mark.usefixtures("sqlite_db")
def test_a_login_that_is_missing_is_no_neighbour_that_responds_and_no_error() -> None:
    def missing() -> Credentials:
        raise ControllerFault("there is no Airflow connection muster_ssh")

    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    assert reachable_neighbours(store.nodes.get("n1"), missing) == ""


@pytest.mark.usefixtures("sqlite_db")
def test_neighbours_are_nodes_that_may_be_there_those_with_the_latest_contact_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("lost", "a-retired", "b-broken", "c", "d", "e", "f", "g-latest", "h-later"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
    store.nodes.add(fleet.new_node("b-simulated", rack="r1", simulated=True))
    store.nodes.move("a-retired", State.RETIRED, "Ada", "sold")
    store.nodes.move("b-broken", State.QUARANTINE, "Ada", "failed")
    now = store.clock.now()
    store.nodes.touch_contact("a-retired", now)
    store.nodes.touch_contact("h-later", now - datetime.timedelta(hours=2))
    store.nodes.touch_contact("g-latest", now - datetime.timedelta(hours=1))
    monkeypatch.setenv("MUSTER_SSH_TIMEOUT_S", "25")
    tried: list[tuple[str, float]] = []

    def scan(host: str, *_: object, timeout: float) -> None:
        tried.append((host, timeout))

    monkeypatch.setattr(ssh, "scan_host_key", scan)
    found = reachable_neighbours(store.nodes.get("lost"), Credentials)
    assert found.split(", ") == ["g-latest", "h-later", "c", "d"]
    assert tried == [(f"{name}.example", 25.0) for name in found.split(", ")]
