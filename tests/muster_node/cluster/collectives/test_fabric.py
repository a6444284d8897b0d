"""The interface of an address, where the store of a block listens, and how a rank names who sent wrong elements."""

from __future__ import annotations

import ast
import datetime
import os
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.collectives.fabric import interface_of, listening_store
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


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.1") == ""
    assert interface_of("2001:db8::1") == ""


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 is off")
def test_the_interface_of_an_ipv6_address_is_found() -> None:
    assert interface_of("::1") == "lo"


ADDRESSES = """
ip link add eth8 type veth peer name eth9
ip address add 10.99.0.1/24 dev eth8
ip address add 10.99.0.2/24 dev eth8
ip address add 10.99.0.3/24 dev eth8 label eth8:1
ip address add 10.99.1.1/32 dev lo
exec "$0" -c 'import sys; from muster_node.cluster.collectives.fabric import interface_of
print([*map(interface_of, sys.argv[1:])])' "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="makes a network namespace")
@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.99.0.1", "eth8"), ("10.99.0.2", "eth8"), ("10.99.0.3", "eth8:1"), ("10.99.0.4", ""), ("10.99.1.1", ""),
    ],
)  # fmt: skip
def test_an_interface_is_named_where_gloo_and_nccl_take_an_address_that_others_reach(
    address: str, interface: str
) -> None:
    """Without the one of a second address they take any, and the block hangs without a name. Of the loopback they take
    127.0.0.1, whatever other address it has (github.com/NVIDIA/nccl/issues/1053)."""
    command = ["unshare", "--net", "sh", "-ec", ADDRESSES, sys.executable, address]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(found) == [interface]
