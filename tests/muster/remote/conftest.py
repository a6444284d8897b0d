"""A real OpenSSH server for every test that reaches a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from tests.support.servers import sshd


@pytest.fixture
def server(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "node") as started:
        yield started


@pytest.fixture
def who(server: sshd.Sshd) -> Credentials:
    return Credentials(key_file=str(server.key_file))


@pytest.fixture
def client(server: sshd.Sshd, who: Credentials) -> Iterator[paramiko.SSHClient]:
    with ssh.connect(server.node(), who) as connected:
        yield connected
