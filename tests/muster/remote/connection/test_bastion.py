"""A jump host and an SSH certificate as docs/deploying.md shows them: both SSH libraries, real servers."""

from __future__ import annotations

import asyncio
import getpass
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.errors import MusterError
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import waiting
from tests.docs.quickstart import ROOT, replaced
from tests.support.servers import sshd

PAGE = (ROOT / "docs" / "deploying.md").read_text()
COMMAND = re.search(r'`"host_proxy_cmd": "(.+?)"`', PAGE)

pytestmark = pytest.mark.needs_sshd


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "bastion") as started:
        yield started


@pytest.fixture
def node(tmp_path: Path) -> Iterator[sshd.Sshd]:
    """A node that accepts no key, but what its authority signed."""
    with sshd.running(tmp_path / "node") as started:
        authority = started.key_text("foreign")
        (started.folder / "authorized_keys").write_text(f"cert-authority {authority}\n")
        yield started


def certify(node: sshd.Sshd) -> None:
    """Put the certificate next to the key, under the name that the page has."""
    assert "`id_ed25519-cert.pub`" in PAGE
    user, key = getpass.getuser(), f"{node.key_file}.pub"
    subprocess.run(["ssh-keygen", "-q", "-s", node.folder / "foreign", "-I", "muster", "-n", user, key], check=True)
    assert node.key_file.with_name(f"{node.key_file.name}-cert.pub").exists()


def test_a_node_behind_a_bastion_takes_the_certificate(bastion: sshd.Sshd, node: sshd.Sshd) -> None:
    assert COMMAND is not None
    known = bastion.folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{bastion.port} {bastion.key_text()}\n")
    proxy = replaced(
        COMMAND[1],
        ("ssh -i", f"ssh -F none -o UserKnownHostsFile={known} -p {bastion.port} -i"),
        ("/opt/airflow/ssh/id_ed25519", str(bastion.key_file)),
        ("muster@bastion.example.org", f"{getpass.getuser()}@127.0.0.1"),
    )
    who = Credentials(key_file=str(node.key_file), proxy_command=proxy)
    with pytest.raises(MusterError):
        ssh.connect(node.node(), who, timeout=30, attempts=1)
    certify(node)
    client = ssh.connect(node.node(), who, timeout=30, attempts=1)
    client.close()

    async def waits() -> None:
        async with await waiting.connect(node.node(), who):
            pass

    asyncio.run(waits())
    assert bastion.log_file.read_text().count("Accepted publickey") >= 3
