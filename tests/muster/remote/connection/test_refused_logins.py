"""What a node says when it refuses a login, as sshd does where PAM refuses the user: a banner, then the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh
import pytest

from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import NodeAddress
from muster.remote.job import waiting
from muster_demo.hosts import make_key

SLURM = "Access denied by pam_slurm_adopt: you have no active jobs on this node\r\n"
BOOTING = '"System is booting up. See pam_nologin(8)"\n'


class Refusing(asyncssh.SSHServer):
    """Shows ``said`` for a key, which it refuses, or ``closes`` the connection."""

    def __init__(self, said: str, closes: bool) -> None:
        self._said, self._closes = said, closes

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if self._said:
            self._connection.send_auth_banner(self._said)
        if self._closes:
            self._connection.get_extra_info("socket").shutdown(1)
        return False


def error_of(
    login: Callable[[NodeAddress, Credentials], Awaitable[object]], folder: Path, said: str, closes: bool
) -> BaseException | None:
    """What a login there raises."""
    make_key(folder / "login")
    host_key = asyncssh.generate_private_key("ssh-ed25519")

    async def attempt() -> BaseException | None:
        async with await asyncssh.create_server(
            lambda: Refusing(said, closes), "127.0.0.1", 0, server_host_keys=[host_key]
        ) as server:
            key = host_key.export_public_key().decode()
            node = NodeAddress("n1", "127.0.0.1", server.get_port(), "muster", key)
            (found,) = await asyncio.gather(
                login(node, Credentials(key_file=str(folder / "login"))), return_exceptions=True
            )
        assert isinstance(found, BaseException)
        return found

    return asyncio.run(attempt())


async def by_worker(node: NodeAddress, who: Credentials) -> object:
    return await asyncio.to_thread(ssh.connect, node, who)


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("login", [by_worker, waiting.connect])
@pytest.mark.parametrize(
    ("said", "shown", "kind"),
    [
        (SLURM, SLURM.strip(), ssh.LoginRefused),
        ("", "", ssh.LoginRefused),
        ("\x1b[2J" * 1000, "", ssh.LoginRefused),
        (BOOTING, BOOTING.strip(), ssh.Unreachable),
    ],
)
def test_what_a_node_says_to_a_login_that_it_refuses_is_kept(
    login: Callable[[NodeAddress, Credentials], Awaitable[object]],
    said: str, shown: str, kind: type[Exception], closes: bool, tmp_path: Path,
) -> None:  # fmt: skip
    """By both libraries: a node that refuses the one that waits would else be lost. One that starts is tried again."""
    error = error_of(login, tmp_path, said, closes)
    assert type(error) is kind
    assert shown in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 1000
