"""The simulated nodes' SSH server behaves, for what we need, as OpenSSH's does."""

from __future__ import annotations

import getpass
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import psutil
import pytest

from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import scan_host_key
from muster_demo import watchdog
from muster_demo.hosts import Hosts, Keys, Server, make_client_keys, make_key
from muster_demo.services import Supervisor


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def keys(folder) -> Keys:
    return make_client_keys(folder / "keys")


@pytest.fixture(scope="module")
def supervisor(folder) -> Iterator[Supervisor]:
    supervisor = Supervisor(folder / "logs")
    yield supervisor
    supervisor.stop()
    leftovers = watchdog.marked(str(folder))
    watchdog.end_all(leftovers, patience_s=0)


@pytest.fixture(scope="module")
def hosts(folder, keys, supervisor) -> Hosts:
    return Hosts(supervisor, folder, keys, {watchdog.MARK: str(folder)})


@pytest.fixture(scope="module")
def nodes(hosts, folder) -> dict[str, int]:
    started = {
        name: hosts.start_python_server(name, folder / name / "home", {"MUSTER_SIMULATED_MACHINE": f"/machine/{name}"})
        for name in ("sim-1", "sim-2")
    }
    return {name: hosts.wait_for_port(name, port_file) for name, port_file in started.items()}


def connect(port: int, keys: Keys) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(
        "127.0.0.1",
        port,
        username=getpass.getuser(),
        key_filename=str(keys.private),
        allow_agent=False,
        look_for_keys=False,
    )
    return client


@pytest.fixture
def client(nodes, keys) -> Iterator[paramiko.SSHClient]:
    with connect(nodes["sim-1"], keys) as client:
        yield client


def run(client: paramiko.SSHClient, command: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
    stdin, stdout, stderr = client.exec_command(command, timeout=20)
    stdin.write(data)
    stdin.channel.shutdown_write()
    return stdout.channel.recv_exit_status(), stdout.read(), stderr.read()


def test_exit_status_and_both_streams(client) -> None:
    assert run(client, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")


def test_standard_input_arrives_whole(client) -> None:
    data = os.urandom(3_000_000)
    status, out, _err = run(client, "sha256sum", data)
    assert status == 0
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a_signalled_command_is_no_success(client) -> None:
    status, _out, _err = run(client, "kill -9 $$")
    assert status != 0


def test_commands_see_the_nodes_environment_and_not_ours(nodes, keys, folder, monkeypatch) -> None:
    for name, port in nodes.items():
        with connect(port, keys) as client:
            _status, out, _err = run(client, 'echo "$HOME|$MUSTER_SIMULATED_MACHINE|$PWD|$PYTEST_CURRENT_TEST"')
            assert out.decode().strip() == f"{folder / name / 'home'}|/machine/{name}|{folder / name / 'home'}|"


def test_a_detached_job_outlives_the_connection_and_does_not_hold_it(nodes, keys, folder) -> None:
    with connect(nodes["sim-1"], keys) as client:
        status, out, _err = run(client, "setsid nohup sleep 600 >/dev/null 2>&1 </dev/null & echo $!")
        assert status == 0
    job = psutil.Process(int(out))
    time.sleep(0.5)
    assert job.is_running()
    assert job.environ()[watchdog.MARK] == str(folder)
    job.kill()


def test_each_node_has_a_host_key_of_its_own(nodes) -> None:
    assert len({scan_host_key("127.0.0.1", port, Credentials()) for port in nodes.values()}) == len(nodes)


def test_other_keys_and_passwords_are_refused(nodes, folder) -> None:
    make_key(folder / "foreign")
    with pytest.raises(paramiko.AuthenticationException):
        connect(nodes["sim-1"], Keys(folder / "foreign", folder / "nothing"))
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    with pytest.raises(paramiko.AuthenticationException), client:
        client.connect(
            "127.0.0.1", nodes["sim-1"], username="root", password="x", allow_agent=False, look_for_keys=False
        )


def _works(server: Server, keys: Keys, folder: Path) -> None:
    with connect(server.port, keys) as client:
        assert run(client, f'echo "${watchdog.MARK}"') == (0, f"{folder}\n".encode(), b"")


@pytest.mark.needs_sshd
def test_this_machine_is_reached_through_openssh(hosts, keys, folder) -> None:
    server = hosts.start_host_server("host-openssh")
    assert "OpenSSH's server (" in server.kind
    _works(server, keys, folder)


@pytest.mark.needs_sshd
def test_openssh_does_not_wait_for_a_start_up_file_of_this_user(folder, keys, supervisor) -> None:
    """A hook in ~/.bashrc that waits for a stale lock held each command up for a minute."""
    home = folder / "developer"
    home.mkdir()
    (home / ".bashrc").write_text("touch ~/read\n")
    hosts = Hosts(supervisor, folder, keys, {watchdog.MARK: str(folder), "HOME": str(home)})
    server = hosts.start_host_server("host-start-up-file")
    assert "OpenSSH's server (" in server.kind
    _works(server, keys, folder)
    with connect(server.port, keys) as client:
        assert run(client, 'echo "$HOME"') == (0, f"{home}\n".encode(), b"")
    assert not (home / "read").exists()


def test_without_openssh_it_says_so_and_takes_asyncssh(hosts, keys, folder, monkeypatch) -> None:
    monkeypatch.setattr("muster_demo.hosts.find_sshd", lambda: None)
    server = hosts.start_host_server("host-asyncssh")
    assert server.kind == "asyncssh's server, since OpenSSH's server is not installed"
    _works(server, keys, folder)


def test_an_openssh_that_does_not_start_is_replaced_too(hosts, keys, folder, monkeypatch) -> None:
    monkeypatch.setattr("muster_demo.hosts.find_sshd", lambda: "/bin/false")
    server = hosts.start_host_server("host-broken")
    assert "does not let this user in" in server.kind
    _works(server, keys, folder)
