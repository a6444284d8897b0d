"""The rendezvous server of a block, on rank 0's node: presence, phases, and which member is lost.

The hub alone decides, so that all members get the same answer. A member is lost if its connection ends, if it sends
nothing for ``stall_timeout_s``, if it reports a failure of its own, or if it sends heartbeats but makes no progress for
``progress_timeout_s`` without waiting for the others. A member that does not come up is left out: the others begin
without it, and it is reported as missing at their end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hmac
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from muster_node.cluster.rendezvous.block import Block
from muster_node.cluster.rendezvous.wire import LINE_MAX, UNKNOWN_PEER_LINE_MAX, Gone, Link, Message, line_of, wait_for
from muster_node.hardware.seam import Clock

WORKING, WAITING = "working", "waiting"
NODE = "node"
MEMBERS_MIN = 2
"""Fewer nodes are no block."""

END_PHASE = "over"
"""The phase in which all members arrive once their work is done."""

BEGUN = "the others began without it"
"""Why a member that comes later is refused."""

LOOKS = 5
"""Looks at the limits between two heartbeats; what comes is taken at once."""

_TICK_S = 0.05
"""Seconds between two looks once the end has begun."""

_LINGER_S = 2.0
_GRACE_S = 0.5
"""Seconds during which the hub waits, after the first lost member, for others that were lost at the same moment."""

HELLO_S = 5.0
UNKNOWN_PEERS_MAX = 64
_LOOPBACK = ("127.", "::1")


class Lost(NamedTuple):
    """A lost member, why it was lost, and which of its devices is the reason; "node" if none is."""

    name: str
    why: str
    device: str = NODE


@dataclasses.dataclass
class _Peer:
    """State of one member that has joined. ``mark`` is its latest progress counter, ``activity`` its current work, and
    ``reached_at`` the address at which it reached this node.
    """

    name: str
    link: Link
    reached_at: str
    joined_at: float
    message_at: float
    moved_at: float
    phase: str = "join"
    state: str = WORKING
    mark: Any = None
    activity: str = ""
    arrived: str | None = None
    payload: Any = None


@dataclasses.dataclass
class _UnknownPeer:
    """A connection that has not identified itself yet."""

    link: Link
    since: float


def listen(ports: Sequence[int]) -> socket.socket:
    """The master's listening socket, for IPv4 and IPv6, on the first of these ports that no other program uses.

    Raises OSError with a sentence if none is free.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    reasons = []
    for port in ports:
        try:
            listener = socket.create_server(("", port), family=family, backlog=UNKNOWN_PEERS_MAX, dualstack_ipv6=both)
        except OSError as error:
            reason = "it is in use" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
            reasons.append(f"port {port}: {reason}")
        else:
            listener.setblocking(False)
            return listener
    raise OSError(f"the members cannot meet on this node ({'; '.join(reasons)})")


class Hub(threading.Thread):
    """The server, as a thread of rank 0's process. ``error``: what stopped it, if not the end of the block."""

    def __init__(self, block: Block, session: str, clock: Clock, listener: socket.socket) -> None:
        super().__init__(name="block-hub", daemon=True)
        self._block, self._session, self._clock, self._listener = block, session, clock, listener
        self._peers: dict[str, _Peer] = {}
        self._unknown_peers: list[_UnknownPeer] = []
        self._lost: dict[str, Lost] = {}
        self._absent: dict[str, Lost] = {}
        self._faults: dict[str, str] = {}
        self._fault_at = 0.0
        self._end_at: float | None = None
        self._broken = ""
        self._over = False
        self._beat_at = 0.0
        self._read_at = clock.now()
        self._still_s, self._still_at = 0.0, float("-inf")
        self._join_until = clock.now() + block.join_timeout_s
        self.error: BaseException | None = None

    def run(self) -> None:
        """Serves until the block has ended."""
        try:
            while not self._over:
                self._step()
            self._await_departures()
        except BaseException as error:
            self.error = error
        finally:
            for link in [peer.link for peer in self._peers.values()] + [s.link for s in self._unknown_peers]:
                link.close()
            self._listener.close()

    def _step(self) -> None:
        links = [peer.link for peer in self._peers.values()] + [unknown.link for unknown in self._unknown_peers]
        wait_for(links, self._block.heartbeat_s / LOOKS if self._end_at is None else _TICK_S, self._listener)
        self._read_all()
        now = self._read_at  # not later: if this process is suspended here, later messages are still unread
        if now - self._beat_at >= self._block.heartbeat_s:
            self._beat_at = now
            self._broadcast("beat")
        if self._end_at is None:
            self._check(now)
        elif now >= self._end_at:
            self._finish()

    def _read_all(self) -> None:
        """Reads all pending messages before limits are checked: a hub that was suspended must not report its peers."""
        self._note_standstill()
        self._accept()
        for unknown_peer in list(self._unknown_peers):
            self._greet(unknown_peer)
        for peer in list(self._peers.values()):
            if peer.link.socket.fileno() < 0:
                continue
            try:
                peer.link.flush()
                for message in peer.link.receive():
                    self._handle(peer, message)
            except Gone as gone:
                self._drop(peer, gone)

    def _note_standstill(self) -> None:
        now = self._clock.now()
        if now - self._read_at > self._block.stall_timeout_s / 2:
            self._still_s, self._still_at = now - self._read_at, now
        self._read_at = now

    def _drop(self, peer: _Peer, gone: Gone) -> None:
        peer.link.close()
        self._note_standstill()
        if (self._still_s and self._block.master in self._lost) or self._read_at - self._still_at < _GRACE_S:
            # The others ended correctly in the meantime: to them, this node was the lost one.
            self._mark_lost(self._block.master, f"it stood still for {self._still_s:.1f} s in phase {peer.phase}")
        else:
            self._mark_lost(peer.name, f"its process ended in phase {peer.phase}: {gone}")

    def _accept(self) -> None:
        while len(self._unknown_peers) < UNKNOWN_PEERS_MAX:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._unknown_peers.append(_UnknownPeer(Link(connection, UNKNOWN_PEER_LINE_MAX), self._clock.now()))

    def _greet(self, unknown_peer: _UnknownPeer) -> None:
        try:
            messages = unknown_peer.link.receive()
        except Gone:
            messages = [{"kind": "gone"}]
        if not messages and self._clock.now() - unknown_peer.since < HELLO_S:
            return
        self._unknown_peers.remove(unknown_peer)
        refusal = self._refusal(messages[0]) if messages else "it sent nothing"
        if refusal:
            with contextlib.suppress(Gone):
                unknown_peer.link.send("refused", why=refusal)
            unknown_peer.link.close()
            return
        self._admit(messages[0]["name"], unknown_peer.link)

    def _refusal(self, hello: Message) -> str:
        """Why this peer is refused; empty if it is admitted."""
        session = str(hello.get("session", "")).encode("utf-8", "backslashreplace")
        if hello["kind"] != "hello" or not hmac.compare_digest(session, self._session.encode()):
            return "this is another session"
        name, rank = hello.get("name"), hello.get("rank")
        if not isinstance(name, str):
            return "it does not say who it is"
        if name in self._absent:
            return BEGUN
        if (rank, name) not in list(enumerate(self._block.members)):
            return f"rank {rank!r} is not {name!r} here"
        if hello.get("terms") != self._block.terms:
            return "its plan, seed or agent is not the same as the master's"
        if name in self._peers:
            return f"{name} is here already"
        return ""

    def _admit(self, name: str, link: Link) -> None:
        now = self._clock.now()
        link.line_max = LINE_MAX
        self._peers[name] = _Peer(name, link, link.own_address, joined_at=now, message_at=now, moved_at=now)
        self._send(self._peers[name], line_of("welcome"))

    def _handle(self, peer: _Peer, message: Message) -> None:
        peer.message_at = self._clock.now()
        kind = message["kind"]
        if kind == "beat":
            reported = (message.get("phase"), message.get("state"), message.get("mark"))
            if reported != (peer.phase, peer.state, peer.mark):
                peer.moved_at = peer.message_at
            peer.phase, peer.state, peer.mark = str(reported[0]), str(reported[1]), reported[2]
            peer.activity = str(message.get("activity", ""))[:200]
        elif kind == "arrive":
            peer.arrived, peer.payload = str(message.get("phase")), message.get("payload")
        elif kind == "fault" and message.get("own"):
            why = "it failed in phase {}: {}".format(peer.phase, str(message.get("sentence"))[:300])
            self._mark_lost(peer.name, why, str(message.get("device", NODE))[:40])
        elif kind == "fault":
            self._fault_at = self._fault_at or peer.message_at
            self._faults[peer.name] = str(message.get("sentence"))[:300]

    def _mark_lost(self, name: str, why: str, device: str = NODE) -> None:
        if self._over or name in self._lost:
            return
        self._lost[name] = Lost(name, why, device)
        if self._end_at is None:
            self._end_at = self._clock.now() + _GRACE_S

    def _check(self, now: float) -> None:
        block = self._block
        for peer in self._peers.values():
            if now - peer.message_at > block.stall_timeout_s:
                quiet = f"no message came from it for {block.stall_timeout_s:.0f} s in phase {peer.phase}"
                self._mark_lost(peer.name, quiet)
        if self._lost:
            return
        if len(self._peers) + len(self._absent) < len(block.members):
            self._await_joining(now)
            return
        behind = [peer for peer in self._peers.values() if peer.arrived is None]
        if not behind:
            self._release()
        elif self._fault_at and now - self._fault_at > block.stall_timeout_s + _GRACE_S:
            name, sentence = sorted(self._faults.items())[0]
            self._abort(f"collectives failed though all members were present; {name} reported: {sentence}", now)
        else:
            self._check_progress(behind, now)

    def _await_joining(self, now: float) -> None:
        """Lets the members that came begin without the others, if they are enough for a block."""
        if now < self._join_until:
            return
        why = f"it did not come up within {self._block.join_timeout_s:.0f} s"
        for name in self._block.members:
            if name not in self._peers:
                if len(self._peers) < MEMBERS_MIN:
                    self._mark_lost(name, why)
                else:
                    self._absent[name] = Lost(name, why)

    def _check_progress(self, behind: list[_Peer], now: float) -> None:
        limit = self._block.progress_timeout_s
        for peer in behind:
            if peer.state == WORKING and now - peer.moved_at > limit:
                where = "phase {}{}".format(peer.phase, ", " + peer.activity if peer.activity else "")
                self._mark_lost(peer.name, f"it responds, but made no progress for {limit:.0f} s in {where}")
        if all(peer.state == WAITING and now - peer.moved_at > limit for peer in behind):
            where = ", ".join(sorted({f"{peer.phase}: {peer.activity}" for peer in behind}))
            self._abort(f"all members wait in a collective without progress for {limit:.0f} s ({where})", now)

    def _release(self) -> None:
        phases = sorted({str(peer.arrived) for peer in self._peers.values()})
        if len(phases) > 1:
            self._abort("members are not in the same phase: {}".format(", ".join(phases)), self._clock.now())
            return
        first = min(peer.joined_at for peer in self._peers.values())
        payloads = {peer.name: peer.payload for peer in self._peers.values()}
        lags = {peer.name: peer.joined_at - first for peer in self._peers.values()}
        now = self._clock.now()
        for peer in self._peers.values():
            peer.arrived, peer.payload, peer.moved_at = None, None, now
        absent, address = sorted(self._absent.values()), self._own_address()
        try:
            self._broadcast("go", phase=phases[0], payloads=payloads, lags=lags, absent=absent, master=address)
        except ValueError as error:
            self._abort(str(error), now)
            return
        self._over = phases[0] == END_PHASE

    def _own_address(self) -> str:
        """The address at which the others reach this node: the loopback only if all do, since they are on this
        machine."""
        found = [peer.reached_at for peer in self._peers.values() if peer.name != self._block.master]
        return next((each for each in found if not each.startswith(_LOOPBACK)), found[0])

    def _abort(self, why: str, now: float) -> None:
        self._broken, self._end_at = why, now

    def _finish(self) -> None:
        missing = sorted([*self._lost.values(), *self._absent.values()])
        self._broadcast("end", missing=missing, broken=self._broken if not self._lost else "")
        self._over = True

    def _broadcast(self, kind: str, **fields: Any) -> None:
        line = line_of(kind, **fields)
        for peer in list(self._peers.values()):
            self._send(peer, line)

    def _send(self, peer: _Peer, line: bytes) -> None:
        if peer.link.socket.fileno() < 0:
            return
        try:
            peer.link.send_line(line)
        except Gone as gone:
            self._drop(peer, gone)

    def _await_departures(self) -> None:
        """Waits until all members have left: closing a connection with unread data can lose the last message."""
        until = self._clock.now() + _LINGER_S
        while self._clock.now() < until and any(peer.link.socket.fileno() >= 0 for peer in self._peers.values()):
            self._read_all()
            self._clock.sleep(_TICK_S)
