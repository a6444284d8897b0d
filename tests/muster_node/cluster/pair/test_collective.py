"""What the processes of NCCL and gloo are pinned to, on either side of a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.cluster.pair import collective
from muster_node.cluster.pair.backend import Rail, Step
from muster_node.hardware.host.machine import HostHardware
from muster_node.probe import Context


@pytest.mark.parametrize("site", ["", "=mgmt0"])
def test_nccl_meets_over_the_interface_of_the_address_that_the_nodes_know_unless_the_site_names_one(
    site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "_lacks", lambda context, library: "")
    monkeypatch.setattr(collective, "uuids_of", lambda hardware: {"gpu1": "GPU-a"})
    monkeypatch.setattr(collective, "interface_of", {"192.168.0.1": "eth0", "10.0.0.1": "ib1"}.__getitem__)
    pinned = list[dict[str, str]]()
    monkeypatch.setattr(collective, "_Side", lambda context, library, given, *rest: pinned.append(given))
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("NCCL_NET", raising=False)
    if site:
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", site)
    context = Context(HostHardware(), {}, 0, tmp_path, lambda *a, **k: None, lambda sentence: None)
    nccl = collective.Collective(context, "nccl", "192.168.0.1", 1)
    for rail in (Rail("r1", "10.0.0.1", "10.0.0.2", "ib1", "mlx5_1", 1), Rail("r1", "10.0.0.1", "10.0.0.2", gpu=1)):
        nccl._side(rail, {}, Step(2.0, 0.3, 4, 1, 5.0), receives=False)
    by_rdma, by_socket = pinned
    assert by_rdma.get("NCCL_SOCKET_IFNAME") == (None if site else "=eth0")
    assert by_socket["NCCL_SOCKET_IFNAME"] == "=ib1"


@pytest.mark.parametrize(
    ("site", "device", "net"),
    [("", "mlx5_1", "IB"), ("Socket", "mlx5_1", "IB"), ("AWS Libfabric", "mlx5_1", "AWS Libfabric"), ("", "", None)],
)
def test_nccl_cannot_go_over_sockets_where_the_rail_names_a_device(
    site: str, device: str, net: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NET", site)
    rail = Rail("r1", "10.0.0.1", "10.0.0.2", "ib1", device, 1)
    assert collective.environment("nccl", rail, {"gpu1": "GPU-a"}).get("NCCL_NET") == net
