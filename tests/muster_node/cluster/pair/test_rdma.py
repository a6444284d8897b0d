"""perftest on either side of a pair: its command line, its rate, and what its failure says of a rail."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.cluster.pair import backend, rdma
from muster_node.cluster.pair.backend import NotTried, Rail, Step
from muster_node.hardware.host.machine import HostHardware
from muster_node.probe import Context
from muster_node.probes import pair_rails
from tests.muster_node.cluster.pair.pairs import both, figures, sides


@pytest.mark.parametrize(
    ("other", "perftest", "options"),
    [
        ("10.0.0.2", "", []),
        ("2001:db8::2", "", ["--ipv6-addr", "--ipv6"]),
        ("10.0.0.2", "--tclass=106 -x 3", ["--tclass=106", "-x", "3"]),
    ],
)
def test_the_command_of_ib_write_bw(
    other: str, perftest: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rdma.shutil, "which", lambda name: name)
    commands: list[list[str]] = []
    monkeypatch.setattr(rdma, "result_of", lambda context, command, *rest, **more: commands.append(command))
    context = Context(HostHardware(), {"perftest": perftest}, 0, tmp_path, lambda *a, **k: None, lambda sentence: None)
    rdma.IbWrite(context).send(Rail("r0", "", other, device="mlx5_0"), {"port": 18601}, Step(2.0, 0.3, 4, 1, 5.0))
    assert commands[0][-1] == other
    assert [word for word in commands[0] if word in options] == options
    assert ("--ipv6-addr" in commands[0]) is (":" in other)


@pytest.mark.parametrize("perftest", ["10.0.0.9", "--out_json_file=/etc/passwd", "; reboot", 3])
def test_what_is_no_option_of_ib_write_bw_is_refused(perftest: object) -> None:
    with pytest.raises(ValueError, match="perftest must be"):
        rdma.words_of(perftest)


FAKE_IB = """#!/bin/sh
# Prints what perftest 6 prints; as server it waits for its client, which writes into a file beside the script.
case "$*" in
  *broken*) echo "Couldn't connect to device" >&2; exit 1;;
  *locked*) echo "Couldn't allocate MR" >&2; echo " Couldn't create IB resources" >&2; exit 1;;
esac
for last; do :; done
case "$last" in
  127.*) printf ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\\n'
         printf ' 65536      5000             390.10             385.25             0.734\\n';;
  *) sleep 1.5;;
esac
"""


def fake_ib(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    tool = folder / "ib_write_bw"
    tool.write_text(FAKE_IB)
    tool.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_ib_write_bw_reports_the_senders_rate_and_looks_at_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_ib(tmp_path / "bin"))
    given = sides(1, backend="ib_write_bw")
    for side in given:
        side["rails"][0]["device"] = "mlx5_0"
    for rows in both(given, tmp_path):
        assert figures(rows, "pair_bandwidth")["r0", 0] == 385.25
        assert figures(rows, "pair_wrong_bytes") == {}


@pytest.mark.parametrize(
    ("served", "joined", "carried"), [("lo", "lo", {"lo"}), ("lo", "lo", {"ib0"}), ("lo", "", {"lo"})]
)
def test_where_rdma_fails_plain_tcp_tells_host_and_fabric_apart_if_it_goes_over_that_port(
    served: str, joined: str, carried: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a management network TCP goes however dead the rail is."""
    monkeypatch.setenv("PATH", fake_ib(tmp_path / "bin"))
    monkeypatch.setattr(pair_rails, "interfaces", lambda files, device: carried)
    monkeypatch.setattr(backend, "adapters", lambda files: ["broken"])
    given = sides(1, backend="ib_write_bw")
    for side, interface in zip(given, (served, joined), strict=True):
        side["rails"][0] |= {"device": "broken", "interface": interface}
    for rows in both(given, tmp_path):
        assert figures(rows, "pair_bandwidth")["r0", 0] == 0
        assert any(figures(rows, "pair_bandwidth", "host_tcp").values()) is (served == joined and served in carried)


@pytest.mark.parametrize("ill", [0, 1])
def test_where_a_node_lacks_memory_that_may_be_locked_the_rail_was_not_tried(
    ill: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it serves or joins, and as either end of a transfer."""
    monkeypatch.setenv("PATH", fake_ib(tmp_path / "bin"))
    monkeypatch.setattr(backend, "adapters", lambda files: ["mlx5_0", "locked"])
    given = sides(1, backend="ib_write_bw")
    for at, side in enumerate(given):
        side["rails"][0]["device"] = "locked" if at == ill else "mlx5_0"
    for rows in both(given, tmp_path):
        assert figures(rows, "pair_bandwidth") == {("r0", 0): None}
        assert any("Couldn't allocate MR" in row["note"] for row in rows if row["metric"] == "pair_bandwidth")


@pytest.mark.parametrize(
    ("device", "output", "tried"),
    [
        ("mlx5_0", "Port number 1 state is Down\n Couldn't get context for the device", True),
        ("mlx5_0", "Couldn't connect to 10.0.0.2:18601", True),
        ("", "connection refused", True),
        ("mlx5_0", "Couldn't listen to port 18601", False),
        ("mlx5_0", "Last error:\nCall to ibv_reg_mr_iova2 failed with error Cannot allocate memory", False),
        ("mlx5_0", "Call to ibv_modify_qp failed with error Connection timed out", True),
        ("mlx5_7", "", False),
        ("mlx5_0/2", "", True),
    ],
)
def test_what_a_node_itself_lacks_says_nothing_of_a_rail(
    device: str, output: str, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "adapters", lambda files: ["mlx5_0"])
    assert isinstance(backend.not_sent(device, "it failed", output), NotTried) is not tried
