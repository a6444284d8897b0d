"""Lines of JSON between members of a block. Nothing here blocks, and nothing that comes in is trusted."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Iterable
from typing import Any

LINE_MAX = 16 * 1024 * 1024
"""A meeting's answer carries the payloads of all members."""

UNKNOWN_PEER_LINE_MAX = 64 * 1024
_READ = 256 * 1024

Message = dict[str, Any]


class Gone(Exception):
    """The other end is gone or violates the protocol; the message is a clause that names which."""


class Link:
    """One connection. ``send`` and ``receive`` never block; both raise Gone once the other end is."""

    def __init__(self, connection: socket.socket, line_max: int = LINE_MAX) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.line_max = line_max
        self._out = bytearray()
        self._in = bytearray()

    @property
    def queued(self) -> bool:
        """Whether something waits until the network takes it."""
        return bool(self._out)

    @property
    def own_address(self) -> str:
        """The address of this end, as the other one reaches it."""
        return _plain(self.socket.getsockname()[0])

    @property
    def other_address(self) -> str:
        """The address of the other end, as this one reaches it. Raises Gone."""
        try:
            return _plain(self.socket.getpeername()[0])
        except OSError as error:
            raise Gone(f"the connection broke ({error.strerror or error})") from error

    def send(self, kind: str, **fields: Any) -> None:
        """Queues one message and sends as much as the network takes at once. Raises ValueError if it is too long."""
        self.send_line(line_of(kind, **fields))

    def send_line(self, line: bytes) -> None:
        """The same for what ``line_of`` gave."""
        self._out += line
        self.flush()

    def flush(self) -> None:
        """Sends what is still queued, as far as the network takes it."""
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise Gone(f"the connection broke ({error.strerror or error})") from error

    def receive(self) -> list[Message]:
        """Every message that has come whole. What came before the end is returned first; the next call raises."""
        ended = ""
        try:
            while True:
                data = self.socket.recv(_READ)
                if not data:
                    ended = "the connection was closed"
                    break
                self._in += data
                if len(self._in) > self.line_max + _READ:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            ended = f"the connection broke ({error.strerror or error})"
        *lines, rest = bytes(self._in).split(b"\n")
        self._in = bytearray(rest)
        if len(rest) > self.line_max:
            raise Gone(f"a line longer than {self.line_max} bytes came")
        if ended and not lines:
            raise Gone(ended)
        return [_parsed(line) for line in lines if line]

    def close(self) -> None:
        """Closes the connection; what is queued and not sent is lost."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _plain(address: Any) -> str:
    """A listener for IPv4 and IPv6 writes addresses of IPv4 as IPv6."""
    return str(address).removeprefix("::ffff:")


def wait_for(links: Iterable[Link], wait_s: float, *others: socket.socket) -> None:
    """Returns once one of them has something to read or can send what is queued; after ``wait_s`` at the latest."""
    open_links = [link for link in links if link.socket.fileno() >= 0]
    sending = [link.socket for link in open_links if link.queued]
    select.select([*(link.socket for link in open_links), *others], sending, [], wait_s)


def line_of(kind: str, **fields: Any) -> bytes:
    """One message as it is sent. Raises ValueError if no receiver takes a line of that length."""
    line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
    if len(line) > LINE_MAX:
        raise ValueError(
            f"the message {kind!r} to members has {len(line)} bytes, more than {LINE_MAX}: test fewer nodes at once"
        )
    return line


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Gone("data came that is not a message of this protocol") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise Gone("data came that is not a message of this protocol")
    return message
