"""The conversation of the two nodes of a pair, apart from the rails: who does what next, in lines of JSON.

The node that serves listens; the other one joins with the pair's secret. Each step is one call on either side of
``tell`` and ``hear``. Over a management network, so that a dead rail does not end the conversation.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from collections.abc import Iterable
from typing import Any

from muster_node.cluster.hub import HELLO_S, UNKNOWN_PEERS_MAX, listen
from muster_node.cluster.wire import UNKNOWN_PEER_LINE_MAX, Gone, Link, own_address, wait_for
from muster_node.hardware.seam import Clock

LINE_MAX = 64 * 1024
_RETRY_S = 0.2


class PartnerLost(Exception):
    """The other node did not come, went, or speaks something else; the message is a clause that says which."""


class Meeting:
    """A connection to the partner. Raises PartnerLost from every call once the partner is gone."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        connection.settimeout(limit_s)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._limit_s = connection, limit_s
        self._rest = b""

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends one message."""
        try:
            self._connection.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except OSError as error:
            raise PartnerLost(f"the partner was lost ({error.strerror or error})") from error

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message, which must be of this kind."""
        while b"\n" not in self._rest:
            try:
                more = self._connection.recv(4096)
            except socket.timeout as error:
                raise PartnerLost(f"the partner said nothing for {self._limit_s:g} s") from error
            except OSError as error:
                raise PartnerLost(f"the partner was lost ({error.strerror or error})") from error
            if not more:
                raise PartnerLost("the partner ended the conversation")
            self._rest += more
            if len(self._rest) > LINE_MAX:
                raise PartnerLost("the partner sent a line without an end")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or message.get("kind") != kind:
            raise PartnerLost(f"the partner sent something else than {kind}")
        return message

    @property
    def own_address(self) -> str:
        """This node's address, as the partner reaches it."""
        return own_address(self._connection)

    def close(self) -> None:
        """Ends the conversation."""
        self._connection.close()


def serve(port: int, secret: str, join_s: float, limit_s: float, clock: Clock) -> Meeting:
    """Waits for the partner, at all addresses: the name by which it knows this node may be the loopback's here.

    Others who connect are turned away, and keep it from nothing. Raises PartnerLost, or OSError for a taken port.
    """
    until = clock.now() + join_s
    callers: dict[Link, float] = {}
    with listen(port) as listener:
        while clock.now() < until:
            wait_for(callers, _RETRY_S, listener)
            if len(callers) < UNKNOWN_PEERS_MAX:
                with contextlib.suppress(OSError):
                    callers[Link(listener.accept()[0], UNKNOWN_PEER_LINE_MAX)] = clock.now()
            for caller, since in list(callers.items()):
                known = _knows(caller, secret)
                if known is None and clock.now() - since < HELLO_S:
                    continue
                del callers[caller]
                if known:
                    _dismiss(callers)
                    meeting = Meeting(caller.socket, limit_s)
                    meeting.tell("welcome")
                    return meeting
                caller.close()
    _dismiss(callers)
    raise PartnerLost(f"the partner did not come within {join_s:g} s")


def _dismiss(callers: Iterable[Link]) -> None:
    for caller in callers:
        caller.close()


def _knows(caller: Link, secret: str) -> bool | None:
    """Whether it is the partner; None while it has said nothing."""
    try:
        messages = caller.receive()
    except Gone:
        return False
    if not messages:
        return None
    said = str(messages[0].get("secret")).encode("utf-8", "backslashreplace")
    return messages[0]["kind"] == "hello" and hmac.compare_digest(said, secret.encode())


def join(address: str, port: int, secret: str, join_s: float, limit_s: float, clock: Clock) -> Meeting:
    """Joins the partner, which may start later. Raises PartnerLost."""
    until, why = clock.now() + join_s, "it was not tried"
    while clock.now() < until:
        try:
            connection = socket.create_connection((address, port), timeout=min(5.0, max(0.1, until - clock.now())))
        except OSError as error:
            why = str(error.strerror or error)
        else:
            meeting = Meeting(connection, limit_s)
            try:
                meeting.tell("hello", secret=secret)
                meeting.hear("welcome")
            except PartnerLost as error:
                meeting.close()
                why = str(error)
            else:
                return meeting
        clock.sleep(_RETRY_S)
    raise PartnerLost(f"the partner at {address} could not be joined within {join_s:g} s: {why}")
