"""The sweep's round trip over a real sshd: the node side is sent once, and one odd node stops no other."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import errno
import json
import sys
from pathlib import Path

import pytest

from muster.model.health import Cursor
from muster.model.nodes import Node
from muster.model.states import State
from muster.remote import sweeping
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import jobs, waiting
from muster.remote.job.zipapp import AgentFile, build_agent
from muster.remote.sweeping import Answer
from tests.muster.remote.connection.test_ssh import hops
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> AgentFile:
    return build_agent(tmp_path_factory.mktemp("agents"))


def node(server: sshd.Sshd, name: str = "n1", key: str = "host", **launch: object) -> Node:
    at = server.node()
    return Node(
        name=name, host=at.host, port=at.port, user=at.user or "",
        host_key=" ".join(server.key_text(key).split()[:2]), sku="cpu-generic", state=State.PRODUCTION,
        launch={"kind": "python", "python": sys.executable, **launch}, work_dir=at.work_dir, rack="", pool="",
        labels={},
        simulated=False, added_at=datetime.datetime.now(datetime.UTC),
    )  # fmt: skip


def read(nodes: list[Node], who: Credentials, agent: AgentFile, limit_s: float = 60.0) -> dict[str, Answer]:
    async def all_of_them() -> list[Answer]:
        pairs = [(each, Cursor(each.name, "b'; exit 3", 1.5)) for each in nodes]
        return [each async for each in sweeping.read_all(pairs, who, agent, parallel=4, limit_s=limit_s)]

    return {each.node.name: each for each in asyncio.run(all_of_them())}


def test_the_node_side_is_sent_once_and_again_if_it_was_changed(
    server: sshd.Sshd, who: Credentials, agent: AgentFile
) -> None:
    path = Path(jobs.agent_path(node(server).work_dir, agent.sha256))
    for _ in range(2):
        found = read([node(server)], who, agent)["n1"]
        assert found.trouble == ""
        assert json.loads(found.raw)["schema"] == 1
    first = path.stat().st_ino
    path.chmod(0o700)
    path.write_bytes(b"print('I am all right')")
    assert json.loads(read([node(server)], who, agent)["n1"].raw)["schema"] == 1
    assert path.stat().st_ino != first


def test_one_odd_node_stops_no_other(server: sshd.Sshd, who: Credentials, agent: AgentFile) -> None:
    floods = server.home / "floods"
    floods.write_text("#!/bin/sh\nexec yes\n")
    hangs = server.home / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    for program in (floods, hangs):
        program.chmod(0o700)
    odd = [
        node(server, "other", "foreign"), node(server, "floods", python=str(floods)),
        node(server, "hangs", python=str(hangs)), node(server, "nothing", python="/no/such/python"),
        node(server, "launch", kind="what"), node(server, "good"),
    ]  # fmt: skip
    read([node(server)], who, agent)
    found = read(odd, who, agent, limit_s=10.0)
    assert {name for name, each in found.items() if not each.trouble} == {"good"}
    assert not any(each.ours for each in found.values())
    assert {name for name, each in found.items() if each.unreadable} == {"floods", "nothing", "launch"}
    assert found["other"].trouble == ssh.wrong_host_key(odd[0])
    assert "longer" in found["floods"].trouble
    assert "did not answer" in found["hangs"].trouble


def test_a_node_without_a_python_for_the_sweep_answers_and_is_there(
    server: sshd.Sshd, who: Credentials, agent: AgentFile
) -> None:
    old = server.home / "python3.6"
    old.write_text(
        "#!/bin/sh\necho 'muster: needs Python 3.9 or later, this is 3.6.8 (/usr/bin/python3)' >&2\nexit 1\n"
    )
    old.chmod(0o700)
    container = {"kind": "podman", "image": "torch", "python": sys.executable, "host_python": str(old)}
    found = read([node(server, "old", **container), node(server, "nothing", python="/no/such/python")], who, agent)
    assert all(each.unreadable for each in found.values())
    assert "3.9" in found["old"].trouble
    assert not read([node(server, "other", "foreign")], who, agent)["other"].unreadable


@pytest.mark.parametrize("dropped", [1, 2])
def test_a_login_that_is_dropped_is_tried_once_more(
    server: sshd.Sshd, who: Credentials, agent: AgentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    """As a bastion's sshd drops some of many (MaxStartups)."""
    monkeypatch.setattr(ssh, "RETRY_SECONDS", 0.01)
    counted = tmp_path / "logins"
    drops = f"echo >>{counted}; [ $(wc -l <{counted}) -gt {dropped} ] || exit 255"
    way = f"{hops(server, tmp_path)} -W 127.0.0.1:{server.port} -p {server.port} 127.0.0.1"
    proxied = dataclasses.replace(who, proxy_command=f"sh -c '{drops}; exec {way}'")
    found = read([node(server)], proxied, agent)["n1"]
    assert bool(found.trouble) is (dropped == 2)
    assert len(counted.read_text().splitlines()) == 2


def test_a_login_that_is_refused_is_not_tried_again(
    server: sshd.Sshd, agent: AgentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "RETRY_SECONDS", 3600.0)
    foreign = Credentials(key_file=str(server.folder / "foreign"))
    assert "MUSTER_SSH_CONN_ID" in read([node(server)], foreign, agent, limit_s=60.0)["n1"].trouble


def test_a_key_that_cannot_be_read_is_the_controllers_fault(server: sshd.Sshd, agent: AgentFile) -> None:
    found = read([node(server)], Credentials(key_file="/no/such/key"), agent)["n1"]
    assert found.ours
    assert found.raw == b""


def test_a_controller_that_can_open_no_connection_is_its_own_fault(
    server: sshd.Sshd, who: Credentials, agent: AgentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(waiting, "connect", connect)
    assert read([node(server)], who, agent)["n1"].ours
