"""How a worker speaks SSH: paramiko, whose packets are bounded, also before a node's key is known."""

from __future__ import annotations

from typing import Any

import paramiko
from paramiko.packet import Packetizer

from muster_criteria.text import cut, one_line

PACKET_MAX = 256 * 1024
"""Bytes of a packet, as in asyncssh; paramiko's own have 32 KiB."""


class Transport(paramiko.Transport):
    """Answers no question of a node: paramiko would print one that follows the key, and send the reply."""

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=_Packets, **options)

    def auth_interactive_dumb(self, *_: object, **__: object) -> list[str]:
        """Refuses to answer."""
        raise paramiko.AuthenticationException("it wants more than a key")


class _Packets(Packetizer):
    """paramiko's own class reads packets of up to 4 GiB, and only logs what a node says before its version."""

    _said = ""

    def readline(self, timeout: float) -> str:
        try:
            line = super().readline(timeout)
        except (EOFError, OSError) as error:  # sshd, or a server that is not SSH, may state a refusal there
            said = f": it says {cut(one_line(self._said), 100)!r}" if self._said else ""
            raise EOFError(f"{said}: {error}".rstrip(": ")) from error
        self._said = self._said or line
        return line

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > PACKET_MAX:
            raise paramiko.SSHException(f"it sends a packet of more than {PACKET_MAX} bytes")
        return super().read_all(n, check_rekey)
