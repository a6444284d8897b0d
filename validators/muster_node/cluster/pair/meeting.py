"""The conversation of the two nodes of a pair, apart from the rails: who does what next, in lines of JSON.

The node that serves listens; the other one joins with the pair's secret. Each step is one call on either side of
``tell`` and ``hear``. Over a management network, so that a dead rail does not end the conversation.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from typing import Any

from muster_node.cluster.hub import listen
from muster_node.cluster.wire import own_address
from muster_node.hardware.seam import Clock

LINE_MAX = 64 * 1024
STRANGERS_MAX = 100
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

    Others who connect are turned away. Raises PartnerLost, or OSError for a taken port.
    """
    until = clock.now() + join_s
    with listen(port) as listener:
        for _ in range(STRANGERS_MAX):
            listener.settimeout(max(0.01, until - clock.now()))
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                break
            meeting = Meeting(connection, min(limit_s, 5.0))
            try:
                known = hmac.compare_digest(str(meeting.hear("hello").get("secret")).encode(), secret.encode())
            except PartnerLost:
                known = False
            if known:
                meeting = Meeting(connection, limit_s)
                meeting.tell("welcome")
                return meeting
            meeting.close()
    raise PartnerLost(f"the partner did not come within {join_s:g} s")


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
