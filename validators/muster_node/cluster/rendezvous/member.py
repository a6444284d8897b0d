"""One member of a block: joins, works phase by phase, and ends in good order when another member is lost.

The work runs in a thread of its own, since a collective whose partner has died may never return; the calling thread
only serves the connection to the hub, so it can always end. A thread that hangs is left behind: a probe's process
ends without waiting for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.cluster.rendezvous.block import Block, check_same
from muster_node.cluster.rendezvous.hub import BEGUN, END_PHASE, LOOKS, NODE, WAITING, WORKING, Hub, Lost, listen
from muster_node.cluster.rendezvous.wire import Gone, Link, Message, wait_for
from muster_node.hardware.seam import Clock

_RETRY_S = 0.2
_CONNECT_S = 2.0
_HUB_END_S = 5.0


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How the block ended for this member.

    ``missing``: members that were lost, or did not come up. ``broken``: why it ended early though none was lost.
    ``error``: what this member's own work raised. ``phase``: the phase it was in. ``intact``: whether all that began
    ended together.
    """

    phase: str
    missing: tuple[Lost, ...] = ()
    broken: str = ""
    error: BaseException | None = None
    intact: bool = False


class DeviceFailed(Exception):
    """Raised by a member's work when one of its devices (``device``) is the reason why it cannot go on."""

    def __init__(self, device: str, why: str) -> None:
        super().__init__(f"{device}: {why}")
        self.device = device


class BlockEnded(Exception):
    """Raised in the work's thread because the block has ended."""


class TooLate(Gone):
    """Raised where the hub is up and the others began without this member."""


class PeerGroup:
    """The block as a member's work sees it: barriers with the other members, and reports of progress.

    ``names``: the members that came up, in order of rank; ``absent``: the others. ``local_address``: where this node is
    reached by them.
    """

    def __init__(self, block: Block, progress: Callable[[str], None]) -> None:
        self.block = block
        self.names: tuple[str, ...] = block.members
        self.absent: tuple[Lost, ...] = ()
        self.local_address = ""
        self.phase = "join"
        self.state = WORKING
        self.activity = ""
        self.marks = 0
        self.join_lag_s: float | None = None
        self.requests: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.responses: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._progress = progress
        self._ringer, self.bell = socket.socketpair()
        self._ringer.setblocking(False)
        self.bell.setblocking(False)

    def ring(self) -> None:
        """Wakes the thread that serves the connection to the hub, which reads ``bell``: there is something to send."""
        with contextlib.suppress(OSError):  # full: it is waking; closed: the block has ended
            self._ringer.send(b".")

    def close(self) -> None:
        """Nothing is sent any more."""
        self._ringer.close()
        self.bell.close()

    def begin(self, phase: str) -> None:
        """Starts a phase."""
        self.phase = phase
        self.mark("")
        self.ring()
        self._progress(f"phase {phase}")

    def mark(self, activity: str) -> None:
        """Reports progress: ``activity`` describes the work that begins. Without progress a member counts as stuck."""
        self.activity = activity
        self.marks += 1

    @contextlib.contextmanager
    def waiting(self, activity: str) -> Iterator[None]:
        """While the context is open this member waits for the others (a collective), and is not stuck itself."""
        self.mark(activity)
        self.state = WAITING
        yield
        # Not after an exception: a collective that fails is not this member's failure.
        self.state = WORKING

    def gather(self, payload: Any = None) -> dict[str, Any]:
        """Barrier at the end of this phase; returns {name: payload} of all members. Raises BlockEnded."""
        self.arrive(payload)
        answer = self.answer()
        assert answer is not None
        return answer

    def arrive(self, payload: Any = None) -> None:
        """This member is at the end of this phase; ``answer`` returns once all are."""
        self.requests.put((self.phase, payload))
        self.ring()

    def answer(self, wait_s: float | None = None) -> dict[str, Any] | None:
        """{name: payload} of all members; None if they have not all arrived in ``wait_s``. Raises BlockEnded."""
        try:
            answer = self.responses.get(timeout=wait_s)
        except queue.Empty:
            return None
        if answer is None:
            raise BlockEnded()
        return answer

    def agree(self, what: str) -> None:
        """Barrier with a value that must be the same for all members.

        Raises ValueError on the members that differ from the majority, and on all where there is none.
        """
        check_same(what, list(self.gather(what).items()))


class Member:
    """Takes part in a block. ``work`` gets the group, in a thread of its own, once all members have joined."""

    def __init__(self, block: Block, probe: str, clock: Clock, progress: Callable[[str], None]) -> None:
        self.group = PeerGroup(block, progress)
        self._block, self._clock, self._progress = block, clock, progress
        self._session = f"{block.session}/{probe}"
        self._link: Link | None = None
        self._message_at = clock.now()
        self._beat_at, self._beat_phase = 0.0, ""
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self, work: Callable[[PeerGroup], None]) -> ExitStatus:
        """Takes part in the block from joining to its end. Raises OSError where the master cannot listen."""
        hub: Hub | None = None
        ports: Sequence[int] = self._block.master_ports
        if self._block.rank == 0:
            listener = listen(ports)
            ports = [listener.getsockname()[1]]  # at the others another program may listen
            hub = Hub(self._block, self._session, self._clock, listener)
            hub.start()
        try:
            exit_status = self._join(ports) or self._participate(work)
        finally:
            self.group.responses.put(None)
            self.group.close()
            if self._link is not None:
                self._link.close()
            if hub is not None:
                # The last message must have left before this process ends.
                hub.join(_HUB_END_S)
        if hub is not None and hub.error is not None:
            raise RuntimeError(f"the hub of the block failed: {hub.error}") from hub.error
        return exit_status

    def _join(self, ports: Sequence[int]) -> ExitStatus | None:
        """Connects to the hub; returns None once this member is admitted."""
        begun = self._clock.now()
        why, untried = "no answer", itertools.cycle(ports)
        while self._clock.now() - begun < self._block.join_timeout_s:
            try:
                self._link = self._connect(next(untried))
                self._message_at = self._clock.now()
                self._progress(f"joined at {self._block.master}, waiting for the others")
                return None
            except OSError as error:
                why = error.strerror or str(error)
            except TooLate as late:
                return ExitStatus("join", missing=(Lost(self._block.name, str(late)),))
            except Gone as gone:
                why = str(gone)
            self._clock.sleep(_RETRY_S)
        numbers = ", ".join(map(str, self._block.master_ports))
        place = f"{self._block.master_addr} (ports {numbers})"
        sentence = f"it could not be joined at {place} within {self._block.join_timeout_s:.0f} s: {why}"
        return ExitStatus("join", missing=(Lost(self._block.master, sentence),))

    def _connect(self, port: int) -> Link:
        # The master reaches its own hub even if the network does not route its own address back to it.
        address = "127.0.0.1" if self._block.rank == 0 else self._block.master_addr
        connection = socket.create_connection((address, port), timeout=_CONNECT_S)
        link = Link(connection)
        try:
            terms, block = self._block.terms, self._block
            link.send("hello", session=self._session, name=block.name, rank=block.rank, terms=terms)
            message = self._await_answer(link)
            if message["kind"] != "welcome":
                why = str(message.get("why", "it gave no reason"))[:200]
                raise TooLate(f"it came too late: {why}") if why == BEGUN else Gone(f"it refused: {why}")
            self.group.local_address = link.own_address
            return link
        except (OSError, Gone):
            link.close()
            raise

    def _await_answer(self, link: Link) -> Message:
        until = self._clock.now() + max(_CONNECT_S, self._block.stall_timeout_s)
        while self._clock.now() < until:
            wait_for([link], _RETRY_S)
            for message in link.receive():
                if message["kind"] in ("welcome", "refused"):
                    return message
        raise Gone("it takes connections, but sends nothing")

    def _participate(self, work: Callable[[PeerGroup], None]) -> ExitStatus:
        assert self._link is not None
        worker = threading.Thread(target=self._work, args=(work,), name="block-work", daemon=True)
        self._link.send("arrive", phase="join")
        while True:
            # If the hub is gone, its last message can still be read: reading decides, not sending.
            with contextlib.suppress(Gone):
                self._send_pending()
            try:
                for message in self._receive():
                    exit_status = self._handle(message, worker)
                    if exit_status is not None:
                        return exit_status
            except Gone as gone:
                return self._exit_status(missing=self._master_lost(str(gone)))
            if self._clock.now() - self._message_at > self._block.stall_timeout_s:
                quiet = f"no message came from it for {self._block.stall_timeout_s:.0f} s"
                return self._exit_status(missing=self._master_lost(quiet))

    def _master_lost(self, why: str) -> tuple[Lost, ...]:
        return (Lost(self._block.master, f"it was lost in phase {self.group.phase}: {why}"), *self.group.absent)

    def _receive(self) -> list[Message]:
        assert self._link is not None
        wait_for([self._link], self._block.heartbeat_s / LOOKS, self.group.bell)
        with contextlib.suppress(BlockingIOError):
            self.group.bell.recv(64)
        messages = self._link.receive()
        if messages:
            self._message_at = self._clock.now()
        return messages

    def _handle(self, message: Message, worker: threading.Thread) -> ExitStatus | None:
        if message["kind"] == "end":
            return self._exit_status(missing=_lost(message["missing"]), broken=str(message.get("broken", "")))
        if message["kind"] != "go":
            return None
        if message["phase"] == "join":
            self.group.join_lag_s = float(message["lags"].get(self._block.name, 0.0))
            self.group.absent = _lost(message.get("absent", []))
            if self._block.rank == 0:  # its own connection is over the loopback
                self.group.local_address = str(message["master"])
            gone = {lost.name for lost in self.group.absent}
            self.group.names = tuple(name for name in self._block.members if name not in gone)
            self._progress(f"{len(self.group.names)} of {len(self._block.members)} members are here")
            worker.start()
        elif message["phase"] == END_PHASE:
            return self._exit_status(missing=self.group.absent, intact=True)
        else:
            self.group.responses.put(message["payloads"])
        return None

    def _exit_status(self, missing: tuple[Lost, ...], broken: str = "", intact: bool = False) -> ExitStatus:
        return ExitStatus(self.group.phase, missing, broken, self._error, intact)

    def _send_pending(self) -> None:
        assert self._link is not None
        group, now = self.group, self._clock.now()
        self._link.flush()
        if now - self._beat_at >= self._block.heartbeat_s or group.phase != self._beat_phase:
            self._beat_at, self._beat_phase = now, group.phase
            self._link.send("beat", phase=group.phase, state=group.state, mark=group.marks, activity=group.activity)
        with contextlib.suppress(queue.Empty):
            phase, payload = group.requests.get_nowait()
            self._link.send("arrive", phase=phase, payload=payload)
        if self._done.is_set():
            self._done.clear()
            if self._error is None:
                self._link.send("arrive", phase=END_PHASE)
            else:
                sentence = "{}: {}".format(type(self._error).__name__, " ".join(str(self._error).split())[:300])
                device = getattr(self._error, "device", NODE)
                self._link.send("fault", own=group.state == WORKING, sentence=sentence, device=device)

    def _work(self, work: Callable[[PeerGroup], None]) -> None:
        try:
            work(self.group)
        except BlockEnded:
            return
        except BaseException as error:
            self._error = error
        self._done.set()
        self.group.ring()


def _lost(rows: Any) -> tuple[Lost, ...]:
    return tuple(Lost(*(str(field) for field in row)) for row in rows)
