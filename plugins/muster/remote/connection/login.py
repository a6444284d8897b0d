"""The SSH login: its parts, and whether they can be used. Errors here are the controller's: no node is involved."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paramiko

from muster.errors import ControllerFault
from muster.model.names import absolute_text, is_host

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


@dataclasses.dataclass(frozen=True)
class Credentials:
    """An SSH login, by key alone. Without one, the SSH agent and ``~/.ssh`` are tried.

    ``private_key`` is the key itself. ``passphrase`` opens it or ``key_file``. ``proxy_command`` connects to a bastion;
    ``%h`` and ``%p`` in it are the node's host and port.
    """

    username: str | None = None
    key_file: str | None = None
    private_key: str | None = dataclasses.field(default=None, repr=False)
    passphrase: str | None = dataclasses.field(default=None, repr=False)
    proxy_command: str | None = None

    @classmethod
    def of_connection(cls, login: str | None, password: str | None, extra: Mapping[str, Any]) -> Credentials:
        """The login in an Airflow connection of type ``ssh``, by the names that the SSH provider documents.

        Raises ControllerFault for one with a password: each node, even a hostile one, would receive it in clear; and
        for a relative path, which depends on a process's working directory.
        """
        if password:
            raise ControllerFault(
                "the SSH connection has a password, which every node would be offered: take it out, and give a key_file"
            )
        try:
            key_file = absolute_text(str(extra.get("key_file") or ""))
        except ValueError as error:
            raise ControllerFault(f"the key_file {extra['key_file']} of the SSH connection: {error}") from None
        return cls(
            username=login or None,
            key_file=key_file or None,
            private_key=extra.get("private_key") or None,
            passphrase=extra.get("private_key_passphrase") or None,
            proxy_command=extra.get("host_proxy_cmd") or None,
        )

    def proxy_to(self, host: str, port: int) -> str | None:
        """Returns the proxy command for one node, None without one.

        Raises ControllerFault if it cannot be run, or ``host`` is more than a host: a bastion's shell parses it again,
        so quoting it once is not enough.
        """
        if not self.proxy_command:
            return None
        if not is_host(host):
            raise ControllerFault(f"{host!r} is no host name or address: correct it with `muster node add`")
        command = self.proxy_command.replace("%h", shlex.quote(host)).replace("%p", str(port))
        try:
            program = shlex.split(command)[0]
        except (ValueError, IndexError):
            program = command
        if shutil.which(program) is None:
            raise ControllerFault(f"the proxy command of the SSH connection names {program}, which cannot be run here")
        return command

    def key(self) -> paramiko.PKey | None:
        """Returns the private key, with the certificate next to ``key_file``; None without one, where the SSH agent or
        ``~/.ssh`` has a key.

        Raises ControllerFault if it cannot be read or parsed, or no key is at hand.
        """
        if self.private_key:
            return self._parsed(self.private_key, "the private key given for SSH")
        if self.key_file is None:
            if not _key_at_hand():
                raise ControllerFault(
                    f"there is no SSH key: none is given, and neither the SSH agent nor ~/.ssh has one; {_CHECK}"
                )
            return None
        path = Path(self.key_file)
        try:
            text = path.read_text()
            key = self._parsed(text, f"the SSH key file {path}")
            certificate = path.with_name(f"{path.name}-cert.pub")
            if certificate.exists():
                key.load_certificate(str(certificate))
        except FileNotFoundError:
            raise ControllerFault(f"the SSH key file {path} does not exist; {_CHECK}") from None
        except (OSError, ValueError, paramiko.SSHException) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text, or its certificate is invalid"
            raise ControllerFault(f"the SSH key file {path} cannot be read: {why}; {_CHECK}") from None
        return key

    def _parsed(self, text: str, what: str) -> paramiko.PKey:
        for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
            try:
                return kind.from_private_key(io.StringIO(text), password=self.passphrase)
            except (paramiko.SSHException, ValueError, TypeError):
                continue
        raise ControllerFault(f"{what} is no private key, or its passphrase is wrong or missing; {_CHECK}")


def own_fault(error: BaseException) -> ControllerFault | None:
    """Returns the controller's own fault that prevented a connection; None if the node may be at fault."""
    if isinstance(error, ControllerFault):
        return error
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return ControllerFault(
            f"this controller cannot open another connection: {error.strerror or error}; raise its limit of open files "
            "(LimitNOFILE) or its memory"
        )
    return None


def _key_at_hand() -> bool:
    """Whether the SSH agent or ``~/.ssh`` has a key."""
    if any(os.path.isfile(os.path.expanduser(f"~/.ssh/id_{kind}")) for kind in ("ed25519", "ecdsa", "rsa")):
        return True
    with contextlib.suppress(paramiko.SSHException, OSError), contextlib.closing(paramiko.Agent()) as agent:
        return bool(agent.get_keys())
    return False


_CHECK = "check the SSH connection of MUSTER_SSH_CONN_ID on this controller"
