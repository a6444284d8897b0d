"""Where the store listens by which ranks find each other, and how a rank names who sent it wrong elements."""

from __future__ import annotations

import datetime
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.fabric import listening_store
from muster_node.probes.cluster_collectives import _report_wrong

LIMIT = datetime.timedelta(seconds=30)


def test_a_store_is_open_at_its_address_and_at_no_other() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = listening_store(dist, "127.0.0.2", 1, LIMIT)
    dist.TCPStore("127.0.0.2", store.port, 1, False, LIMIT).set("key", "value")
    assert store.get("key") == b"value"
    for other in ("127.0.0.1", "::1"):
        with pytest.raises(OSError):
            socket.create_connection((other, store.port), timeout=5).close()


def test_wrong_elements_name_both_gpus_also_on_a_board_that_lost_one() -> None:
    rows = list[tuple[Any, ...]]()
    group: Any = SimpleNamespace(
        rank=1, local=1, per_node=2, device=SimpleNamespace(id="gpu3"), node_of=lambda rank: f"n{rank // 2}",
        gather=lambda payload: [["gpu0", 0], list(payload), ["gpu1", 2], ["gpu2", 0]],
        emit=lambda metric, device, value, labels, samples: rows.append((device, value, labels["from"])),
    )  # fmt: skip
    _report_wrong(group, {"op": "all_to_all"}, {0: 7, 2: 4}, 1)
    assert rows == [("gpu3", 7, "gpu0"), ("gpu3", 4, "gpu1")]
    group.rank = group.local = 0
    group.gather = lambda payload: [["gpu0", 0], ["gpu3", 11], ["gpu1", 2], ["gpu2", 0]]
    group.emit = lambda metric, device, value, labels, samples: rows.append((device, value))
    _report_wrong(group, {"op": "all_to_all"}, {}, 1)
    assert rows[2:] == [("node", 11)]
