"""Where the store listens by which ranks find each other."""

from __future__ import annotations

import datetime
import socket

import pytest

from muster_node.cluster.fabric import listening_store

LIMIT = datetime.timedelta(seconds=30)


def test_a_store_is_open_at_its_address_and_at_no_other() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = listening_store(dist, "127.0.0.2", 1, LIMIT)
    dist.TCPStore("127.0.0.2", store.port, 1, False, LIMIT).set("key", "value")
    assert store.get("key") == b"value"
    for other in ("127.0.0.1", "::1"):
        with pytest.raises(OSError):
            socket.create_connection((other, store.port), timeout=5).close()
