"""SSH servers that send odd packets: before the key exchange, or in place of the answer to a first command."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import threading
from collections.abc import Iterator

import paramiko
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import NodeAddress

GREETING = b"SSH-2.0-x\r\n"
_KEY = paramiko.ECDSAKey.generate()


def packet(payload: bytes) -> bytes:
    """The payload as the first packet, which nothing encrypts yet."""
    padding = 8 - (len(payload) + 5) % 8 + 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def text(data: bytes) -> bytes:
    """A string as SSH sends it."""
    return struct.pack(">I", len(data)) + data


DISCONNECT = b"\x01" + struct.pack(">I", 2) + text(b"\xff\xfe") + text(b"")
LISTS = (b"curve25519-sha256", b"ssh-ed25519", *[b"aes128-ctr"] * 2, *[b"hmac-sha2-256"] * 2, *[b"none"] * 2, b"", b"")


def kexinit(*lists: bytes) -> bytes:
    """What begins a key exchange, by the lists of names."""
    return b"\x14" + os.urandom(16) + b"".join(map(text, lists)) + bytes(5)


def who() -> Credentials:
    """A login that exists nowhere."""
    kept = io.StringIO()
    _KEY.write_private_key(kept)
    return Credentials(username="muster", private_key=kept.getvalue())


def address(port: int) -> NodeAddress:
    """A node whose server is at ``port``, with the key that ``odd_after_login`` shows."""
    return NodeAddress("n1", "127.0.0.1", port, "", f"{_KEY.get_name()} {_KEY.get_base64()}")


class Sending:
    """Sends each connection ``head``, and ``piece`` again and again; ``sent``: bytes that were sent."""

    def __init__(self, head: bytes, piece: bytes = b"") -> None:
        self.sent = 0
        self._head, self._piece = head, piece
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> Sending:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._send(self._listening.accept()[0])

    def _send(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(self._head)
            while self._piece:
                self.sent += connection.send(self._piece)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass


class _Odd(paramiko.ServerInterface):
    """Takes any key, and answers the request for a channel with a DISCONNECT that is not text."""

    transport: paramiko.Transport

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        message = paramiko.Message()
        message.add_bytes(DISCONNECT)
        self.transport._send_message(message)  # type: ignore[attr-defined]
        return OPEN_SUCCEEDED


@contextlib.contextmanager
def odd_after_login() -> Iterator[int]:
    """A port whose server lets one login in."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            odd = _Odd()
            odd.transport = paramiko.Transport(listening.accept()[0])
            odd.transport.add_server_key(_KEY)
            odd.transport.start_server(server=odd)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
