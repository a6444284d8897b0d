"""The conversation of the two nodes of a pair, apart from the rails: who does what next, in lines of JSON.

The serving node listens; the other joins with the pair's secret. In each step one side calls ``tell`` and the other
``hear``. It runs over the management network, so a dead rail does not end it.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from muster_node.cluster.rendezvous.hub import HELLO_S, UNKNOWN_PEERS_MAX, listen
from muster_node.cluster.rendezvous.wire import UNKNOWN_PEER_LINE_MAX, Gone, Link, Message, wait_for
from muster_node.hardware.seam import Clock

_RETRY_S = 0.2


class PartnerLost(Exception):
    """The other node did not come, went, or speaks something else; the message is a clause that says which."""


class Meeting:
    """A connection to the partner. Raises PartnerLost from every call once the partner is gone."""

    def __init__(self, link: Link, limit_s: float, clock: Clock) -> None:
        self._link, self._limit_s, self._clock = link, limit_s, clock
        self._heard: list[Message] = []

    def tell(self, kind: str, **fields: Any) -> None:
        """Sends one message: what the network does not take at once leaves while the answer is waited for."""
        try:
            self._link.send(kind, **fields)
        except Gone as gone:
            raise PartnerLost(f"the partner was lost: {gone}") from gone

    def hear(self, kind: str, limit_s: float | None = None) -> Message:
        """The next message, which must be of this kind."""
        limit_s = self._limit_s if limit_s is None else limit_s
        until = self._clock.now() + limit_s
        try:
            while not self._heard:
                if self._clock.now() >= until:
                    raise PartnerLost(f"the partner said nothing for {limit_s:g} s")
                wait_for([self._link], _RETRY_S)
                self._link.flush()
                self._heard = self._link.receive()
        except Gone as gone:
            raise PartnerLost(f"the partner was lost: {gone}") from gone
        message = self._heard.pop(0)
        if message["kind"] != kind:
            raise PartnerLost(f"the partner sent something else than {kind}")
        return message

    @property
    def own_address(self) -> str:
        """This node's address, as the partner reaches it."""
        return self._link.own_address

    @property
    def other_address(self) -> str:
        """The partner's address, as this node reaches it."""
        try:
            return self._link.other_address
        except Gone as gone:
            raise PartnerLost(f"the partner was lost: {gone}") from gone

    def close(self) -> None:
        """Ends the conversation."""
        self._link.close()


def serve(ports: Sequence[int], secret: str, join_s: float, limit_s: float, clock: Clock) -> Meeting:
    """Waits for the partner on all addresses: the name by which the partner knows this node may resolve to loopback
    here.

    Other callers are turned away and do not delay it. Raises PartnerLost, or OSError if other programs use all ports.
    """
    until = clock.now() + join_s
    callers: dict[Link, float] = {}
    with listen(ports) as listener:
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
                    meeting = Meeting(caller, limit_s, clock)
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


def join(address: str, ports: Sequence[int], secret: str, join_s: float, limit_s: float, clock: Clock) -> Meeting:
    """Joins the partner, which may start later, on any of these ports. Raises PartnerLost."""
    until, why, untried = clock.now() + join_s, "it was not tried", itertools.cycle(ports)
    # The partner may stand still for a while, and take a connection that was given up for this node's.
    patience_s = max(HELLO_S, join_s / (len(ports) + 1))
    while clock.now() < until:
        port = next(untried)
        try:
            connection = socket.create_connection((address, port), timeout=min(5.0, max(0.1, until - clock.now())))
        except OSError as error:
            why = str(error.strerror or error)
        else:
            meeting = Meeting(Link(connection, UNKNOWN_PEER_LINE_MAX), limit_s, clock)
            try:
                meeting.tell("hello", secret=secret)
                meeting.hear("welcome", min(limit_s, patience_s, max(HELLO_S, until - clock.now())))
            except PartnerLost as error:
                meeting.close()
                why = str(error)
            else:
                return meeting
        clock.sleep(_RETRY_S)
    raise PartnerLost(f"the partner at {address} could not be joined within {join_s:g} s: {why}")
