"""Inventory lines of known nodes: where their host keys are looked up."""

from __future__ import annotations

import pytest

from muster import store
from muster.enrolment import inventory
from muster.enrolment.known import pinned
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from tests.muster import fleet


@pytest.mark.usefixtures("sqlite_db")
def test_a_line_without_a_port_means_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node(host="10.0.0.1", port=2201))
    scanned: list[tuple[str, int]] = []

    def scan(host: str, port: int, *_: object, **__: object) -> str:
        scanned.append((host, port))
        return fleet.host_key("gpu-0001")

    monkeypatch.setattr(ssh, "scan_host_key", scan)
    for host in ("10.0.0.1", "10.0.0.2"):
        line = inventory.described({"name": "gpu-0001", "host": host, "sku": "cpu-generic"})
        store.nodes.add_all(pinned(line, Credentials))
    assert scanned == [("10.0.0.2", 2201)]
    node = store.nodes.get("gpu-0001")
    assert (node.host, node.port) == ("10.0.0.2", 2201)
