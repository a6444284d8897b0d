"""SSH against a real OpenSSH server: one trusted key, capped output, whole files, one-sentence errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import errno
import os
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import NoReturn
from unittest import mock

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL
from paramiko.server import InteractiveQuery

from muster.errors import ControllerFault
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import NodeAddress
from muster.remote.job import waiting
from muster.settings import settings
from muster_demo.services import free_port
from tests.support.servers.sshd import Sshd

pytestmark = pytest.mark.needs_sshd


def hops(server: Sshd, folder: Path) -> str:
    """OpenSSH's client with the login of ``server``."""
    options = f"-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known"
    return f"ssh {options} -i {server.key_file}"


def test_scan_gives_the_key_that_connect_then_trusts(server: Sshd, who: Credentials) -> None:
    scanned = ssh.scan_host_key("127.0.0.1", server.port, who, timeout=5)
    assert scanned.split() == server.key_text().split()
    with ssh.connect(server.node(host_key=scanned), who) as client:
        assert ssh.run(client, "echo hello").out == b"hello\n"


def test_a_node_behind_a_bastion_is_scanned_by_the_way_of_its_logins(
    server: Sshd, who: Credentials, tmp_path: Path
) -> None:
    """By the way that everything after its enrolment takes; no other way leads to it."""
    away = free_port()
    with pytest.raises(ssh.Unreachable):
        ssh.scan_host_key("127.0.0.1", away, who, timeout=2)
    proxy = f"{hops(server, tmp_path)} -W 127.0.0.1:{server.port} -p {server.port} 127.0.0.1"
    scanned = ssh.scan_host_key("127.0.0.1", away, dataclasses.replace(who, proxy_command=proxy), timeout=10)
    assert scanned.split() == server.key_text().split()


def test_another_host_key_is_refused_even_if_known_hosts_has_it(
    server: Sshd, who: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's own known_hosts must not be a second source of trust."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{server.port} {server.key_text()}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ssh.WrongHostKey):
        ssh.connect(server.node(host_key=server.key_text("foreign")), who)


def test_a_refused_login_says_so(server: Sshd) -> None:
    foreign = Credentials(key_file=str(server.folder / "foreign"))
    with pytest.raises(ssh.LoginRefused):
        ssh.connect(server.node(), foreign)


@pytest.mark.parametrize("broken", ["missing", "unreadable", "no key", "passphrase", "no key given", "none", "proxy"])
def test_a_login_that_cannot_be_used_is_the_controllers_fault(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """By both libraries, and before the node is contacted."""
    text, file = server.key_file.read_text(), tmp_path / "key"
    if broken == "unreadable":
        file.mkdir()
    elif broken == "passphrase":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(file)], check=True)
    elif broken != "missing":
        file.write_text("no key" if broken == "no key" else text)
    who = Credentials(key_file=str(file))
    if broken == "no key given":
        who = Credentials(private_key="-----BEGIN OPENSSH PRIVATE KEY-----")
    elif broken == "none":
        who = Credentials()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    elif broken == "proxy":
        who = Credentials(key_file=str(server.key_file), proxy_command="/nowhere/proxy %h")
    server.stop()
    with pytest.raises(ControllerFault):
        ssh.connect(server.node(), who)
    with pytest.raises(ControllerFault):
        asyncio.run(waiting.connect(NodeAddress.of(server.node()), who))


def test_a_key_in_the_users_folder_opens_the_node(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    shutil.copy(server.key_file, tmp_path / ".ssh" / "id_ed25519")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ssh.connect(server.node(), Credentials()) as client:
        assert ssh.run(client, "echo ok").text == "ok\n"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_controller_without_room_for_a_connection_is_its_own_fault(
    server: Sshd, who: Credentials, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", full)
    monkeypatch.setattr(paramiko.SSHClient, "connect", full)
    with pytest.raises(ControllerFault):
        ssh.connect(server.node(), who)
    with pytest.raises(ControllerFault):
        ssh.scan_host_key("127.0.0.1", server.port, who)


@pytest.mark.parametrize("host", ["127.0.0.1;touch${IFS}%s;", "$(touch${IFS}%s)", "-oProxyCommand=touch${IFS}%s"])
def test_a_nodes_host_is_no_command_on_the_bastion(server: Sshd, tmp_path: Path, host: str) -> None:
    """A real bastion, whose shell reads the command again; what an event announced was free text."""
    marker = tmp_path / "marker"
    proxy = f"{hops(server, tmp_path)} -p {server.node().port} 127.0.0.1 : %h %p"
    hostile = dataclasses.replace(NodeAddress.of(server.node()), host=host.replace("%s", str(marker)))
    if not host.startswith("-"):
        words = shlex.split(proxy.replace("%h", hostile.host))
        subprocess.run(words, check=False, capture_output=True)
        assert marker.exists(), "the bastion would have run it"
        marker.unlink()
    who = Credentials(key_file=str(server.key_file), proxy_command=proxy)
    with pytest.raises(ControllerFault):
        ssh.connect(hostile, who)
    with pytest.raises(ControllerFault):
        asyncio.run(waiting.connect(hostile, who))
    assert not marker.exists()


def test_a_password_is_offered_to_no_node() -> None:
    with pytest.raises(ControllerFault):
        Credentials.of_connection("muster", "secret", {"key_file": "/keys/id"})


class Asking(paramiko.ServerInterface):
    """Takes any key, and then asks a question."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def get_allowed_auths(self, _user: str) -> str:
        return "publickey,keyboard-interactive"

    def check_auth_publickey(self, _user: str, _key: paramiko.PKey) -> int:
        return AUTH_PARTIALLY_SUCCESSFUL

    def check_auth_interactive(self, _user: str, _methods: str) -> InteractiveQuery:
        return InteractiveQuery("the session of the controller is over", "", "[sudo] password for admin:")

    def check_auth_interactive_response(self, answers: list[str]) -> int:
        self.answers += answers
        return AUTH_FAILED


def test_a_node_that_asks_the_person_at_the_terminal_gets_no_answer(
    server: Sshd, who: Credentials, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "secret")
    asking = Asking()
    with socket.create_server(("127.0.0.1", 0)) as listening, concurrent.futures.ThreadPoolExecutor(1) as pool:

        def serve() -> paramiko.Transport:
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(server.folder / "host")))
            transport.start_server(server=asking)
            return transport

        serving = pool.submit(serve)
        with pytest.raises(ssh.LoginRefused):
            ssh.connect(dataclasses.replace(server.node(), port=listening.getsockname()[1]), who)
        serving.result().close()
    assert (asking.answers, capsys.readouterr().out) == ([], "")


def test_a_key_with_a_passphrase_opens_the_node(server: Sshd) -> None:
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(server.key_file)]
    subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
    who = Credentials(key_file=str(server.key_file), passphrase="secret")
    with ssh.connect(server.node(), who) as client:
        assert ssh.run(client, "true").rc == 0


def test_no_server_there(server: Sshd, who: Credentials) -> None:
    server.stop()
    with pytest.raises(ssh.Unreachable):
        ssh.connect(server.node(), who)
    with pytest.raises(ssh.Unreachable):
        ssh.scan_host_key("127.0.0.1", server.port, who, timeout=2)


@pytest.mark.parametrize(
    "said",
    [
        b"Not allowed at this time\r\n",
        b"Exceeded MaxStartups\r\n",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_answers_in_place_of_a_version_is_quoted(who: Credentials, said: bytes) -> None:
    """sshd says there why it refuses a controller (PerSourcePenalties, MaxStartups), as does what is no sshd."""
    with socket.create_server(("127.0.0.1", 0)) as listener, concurrent.futures.ThreadPoolExecutor() as pool:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(said)

        answered = pool.submit(answer)
        with pytest.raises(ssh.Unreachable, match=said.split(b"\r")[0].decode()):
            ssh.scan_host_key("127.0.0.1", listener.getsockname()[1], who, timeout=5)
        answered.result()


def test_a_silent_port_does_not_hang(who: Credentials) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, pytest.raises(ssh.Unreachable):
        ssh.scan_host_key("127.0.0.1", deaf.getsockname()[1], who, timeout=1)


def test_run_feeds_stdin_and_tells_the_exit_status(client: paramiko.SSHClient) -> None:
    data = bytes(range(256)) * 4096
    assert ssh.run(client, "cat", stdin=data, max_bytes=len(data)).out == data
    done = ssh.run(client, "echo no >&2; exit 7")
    assert (done.rc, done.complaint) == (7, "no")


def test_output_is_capped_while_it_is_read(client: paramiko.SSHClient) -> None:
    endless = ssh.run(client, "yes", timeout=20, max_bytes=100_000)
    assert endless.truncated
    assert len(endless.out) == 100_000


def test_a_command_that_takes_long_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = mock.Mock(closed=False, eof_received=True, recv_exit_status=lambda: 0)
    channel.recv_ready.return_value = channel.recv_stderr_ready.return_value = False
    channel.exit_status_ready.side_effect = [False] * 200 + [True]
    pauses: list[float] = []
    monkeypatch.setattr(ssh, "time", mock.Mock(monotonic=time.monotonic, sleep=pauses.append))
    assert ssh._converse(channel, b"", 100, time.monotonic() + 60).rc == 0
    assert pauses[0] <= 0.005, "most answer at once"
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.05


def test_a_command_that_hangs_is_given_up(client: paramiko.SSHClient) -> None:
    with pytest.raises(ssh.CommandTimedOut):
        ssh.run(client, "sleep 600", timeout=1)


def test_triggerers_and_workers_give_a_slow_node_the_same_time(
    server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that a worker's test began on is never seen by what waits for it, nor by the sweep."""
    way = f"{hops(server, tmp_path)} -W 127.0.0.1:{server.port} -p {server.port} 127.0.0.1"
    who = Credentials(key_file=str(server.key_file), proxy_command=f"sh -c 'sleep 1; exec {way}'")

    async def awaited() -> None:
        (await waiting.connect(NodeAddress.of(server.node()), who)).close()

    monkeypatch.setenv("MUSTER_SSH_TIMEOUT_S", "0.1")
    with pytest.raises(ssh.Unreachable):
        ssh.connect(server.node(), who, timeout=settings().ssh_timeout_s)
    with pytest.raises(TimeoutError):
        asyncio.run(awaited())
    monkeypatch.setenv("MUSTER_SSH_TIMEOUT_S", "30")
    ssh.connect(server.node(), who, timeout=settings().ssh_timeout_s).close()
    asyncio.run(awaited())


@pytest.mark.parametrize("reached", [False, True])
def test_a_node_that_is_not_reached_costs_one_step_and_a_slow_login_more(
    server: Sshd, who: Credentials, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """In a large outage the sweep would else wait for each node as long as for a slow one."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def awaited() -> BaseException | None:
        attempt = asyncio.create_task(waiting.connect(NodeAddress.of(server.node()), who))
        await asyncio.sleep(1)
        server.thaw()
        done, _ = await asyncio.wait([attempt], timeout=20)
        assert done
        return attempt.exception()

    monkeypatch.setenv("MUSTER_SSH_TIMEOUT_S", "0.3")
    monkeypatch.setattr(ssh, "CONNECT_STEPS", 1000)
    if not reached:
        monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", never)
    server.freeze()
    assert isinstance(asyncio.run(awaited()), type(None) if reached else TimeoutError)


@pytest.mark.parametrize("opened", [False, True], ids=["before the channel is open", "before the command is confirmed"])
def test_a_frozen_server_costs_no_more_than_the_deadline(
    server: Sshd, client: paramiko.SSHClient, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """paramiko waits for the reply to a channel's request without a limit."""
    transport = client.get_transport()
    assert transport is not None
    if opened:
        open_session = transport.open_session

        def open_then_freeze(**options: float) -> paramiko.Channel:
            channel = open_session(**options)
            server.freeze()
            return channel

        monkeypatch.setattr(transport, "open_session", open_then_freeze)
    else:
        server.freeze()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(ssh.run, client, "true", timeout=1)
        done, _ = concurrent.futures.wait([running], timeout=20)
        server.thaw()
        assert done, "it waits without a limit"
        assert isinstance(running.exception(), ssh.CommandTimedOut)


def test_a_server_that_freezes_before_the_login_does_not_hang(server: Sshd, who: Credentials) -> None:
    server.freeze()
    with pytest.raises(ssh.Unreachable):
        ssh.connect(server.node(), who, timeout=1)


def test_a_lost_connection_is_reported(server: Sshd, client: paramiko.SSHClient) -> None:
    ssh.run(client, "true")
    server.stop()
    with pytest.raises(ssh.Unreachable):
        ssh.run(client, "true", timeout=5)


def test_files_go_and_come_back_whole(client: paramiko.SSHClient, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2000
    path = str(tmp_path / "it's a folder" / "file")
    ssh.store(client, path, data)
    assert Path(path).read_bytes() == data
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert list(Path(path).parent.iterdir()) == [Path(path)]
    assert ssh.fetch(client, path, max_bytes=len(data)) == data
    assert ssh.fetch(client, path + "-none", max_bytes=10) is None


def test_the_node_itself_sends_no_more_of_a_file_than_is_asked_for(tmp_path: Path) -> None:
    """What sends more waits on the node for a controller that reads no further."""
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    sent = subprocess.run(
        ["sh", "-c", ssh.FETCH, "muster", str(tmp_path / "file"), "11"], capture_output=True, check=True
    )
    assert sent.stdout == b"x" * 11


def test_text_from_a_node_cannot_move_the_cursor() -> None:
    assert ssh.clean("a\x1b[2Jb\x00\u202ec\td\n") == "a�[2Jb��c\td\n"
    assert ssh._unreachable("n1", 22, paramiko.SSHException("a\n[INFO] b")).isprintable()
