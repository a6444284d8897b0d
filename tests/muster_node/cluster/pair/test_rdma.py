"""The command line of perftest on either side of a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.cluster.pair import rdma
from muster_node.cluster.pair.backend import Rail, Step
from muster_node.hardware.host.machine import HostHardware
from muster_node.probe import Context


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
