"""TCP over one rail: several streams, bound to the rail's address and interface, every byte compared.

It needs nothing but the standard library, so it runs between any two nodes. One process of Python does not fill a port
of hundreds of Gb/s: what it shows is whether a rail carries data, whether the data is right, and how it compares with
other pairs of the same kind.
"""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import threading
from collections.abc import Sequence

from muster_node.cluster.pair.backend import Backend, Endpoint, NotSent, NotTried, Rail, Receiver, Step, Transfer
from muster_node.hardware.seam import Clock

BLOCK = 1 << 20
_CHUNK = 1 << 18
_PING = 64
PINGS = 200
_LOOKED_AT = 16
"""Chunks with a wrong byte of which every byte is counted; of further ones, only that they are wrong."""
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_BIND_TO_DEVICE = getattr(socket, "SO_BINDTODEVICE", 25)


def pattern(seed: int) -> bytes:
    """The payload that is sent again and again: a prime number of bytes, so that blocks that change places show."""
    return random.Random(seed).getrandbits(8 * (BLOCK - 3)).to_bytes(BLOCK - 3, "little")


def bind(own: socket.socket, rail: Rail) -> None:
    """Binds a socket to the rail. Raises NotSent where the address is not there, and NotTried where the interface
    cannot be chosen: by its source address alone a packet may leave over another rail, and that would be measured."""
    if rail.interface:
        try:
            own.setsockopt(socket.SOL_SOCKET, _BIND_TO_DEVICE, rail.interface.encode() + b"\0")
        except OSError as error:
            do = "correct the interface in label rails, or look for its NIC"
            if error.errno == errno.EPERM:
                do = "give the agent CAP_NET_RAW, which Linux before 5.7 asks for"
            raise NotTried(f"a socket cannot be bound to {rail.interface} ({error.strerror or error}): {do}") from error
    try:
        own.bind((rail.own, 0))
    except OSError as error:
        raise NotSent(f"{rail.own} cannot be bound: {error.strerror or error}") from error


class Tcp(Backend):
    """Streams of TCP."""

    name = "tcp"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def receive(self, rail: Rail, step: Step) -> Receiver:
        """Listens on the rail."""
        return _TcpReceiver(rail, step, self._clock)

    def send(self, rail: Rail, endpoint: Endpoint, step: Step) -> float | None:
        """Sends the pattern over all streams until the time is over."""
        flows = _connected(rail, endpoint["port"], step.streams, step)
        payload = pattern(step.seed)
        until = self._clock.now() + step.warmup_s + step.seconds
        threads = [threading.Thread(target=self._pour, args=(flow, payload, until), daemon=True) for flow in flows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(step.limit_s)
        for flow in flows:
            flow.close()
        return None

    def _pour(self, flow: socket.socket, payload: bytes, until: float) -> None:
        view = memoryview(payload)
        with contextlib.suppress(OSError):  # the receiver says what is missing
            while self._clock.now() < until:
                at = 0
                while at < len(view) and self._clock.now() < until:
                    at += flow.send(view[at : at + _CHUNK])
                if at < len(view):
                    break
            flow.shutdown(socket.SHUT_WR)

    def answer(self, rail: Rail, step: Step) -> _Echo:
        """Opens a port that sends back what comes, for ``round_trips``."""
        return _Echo(rail, step)

    def round_trips(self, rail: Rail, port: int, step: Step) -> list[float]:
        """Seconds of single small messages there and back. Raises NotSent."""
        (flow,) = _connected(rail, port, 1, step)
        taken: list[float] = []
        with flow, contextlib.suppress(OSError):
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begun = self._clock.now()
            while len(taken) < PINGS and self._clock.now() - begun < step.seconds:
                sent = self._clock.now()
                flow.sendall(b"p" * _PING)
                if not _exactly(flow, _PING):
                    break
                taken.append(self._clock.now() - sent)
        if not taken:
            raise NotSent("no small message came back")
        return taken


def _connected(rail: Rail, port: int, streams: int, step: Step) -> list[socket.socket]:
    flows: list[socket.socket] = []
    try:
        for _ in range(streams):
            flow = socket.socket(socket.AF_INET6 if ":" in rail.own else socket.AF_INET)
            flows.append(flow)
            bind(flow, rail)
            flow.settimeout(step.connect_s)
            flow.connect((rail.other, port))
            _give_up_after(flow, step)
    except (OSError, NotSent) as error:
        for flow in flows:
            flow.close()
        if isinstance(error, NotSent):
            raise
        what = f"no answer in {step.connect_s:g} s" if isinstance(error, socket.timeout) else error.strerror or error
        raise NotSent(f"{rail.other} cannot be reached from {rail.own}: {what}") from error
    return flows


def _give_up_after(flow: socket.socket, step: Step) -> None:
    """A rail that dies under way must not be waited for as long as TCP would."""
    flow.settimeout(step.connect_s)
    flow.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(1000 * step.connect_s))


def _exactly(flow: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = flow.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


class _Listening:
    """A port on one rail."""

    def __init__(self, rail: Rail, step: Step) -> None:
        self._step = step
        self._listener = socket.socket(socket.AF_INET6 if ":" in rail.own else socket.AF_INET)
        try:
            bind(self._listener, rail)
        except NotSent:
            self._listener.close()
            raise
        self._listener.listen(64)
        # The sender may take as long to find out that its own end is dead.
        self._listener.settimeout(2 * step.connect_s)
        self.endpoint: Endpoint = {"port": self._listener.getsockname()[1]}

    def _accept(self) -> socket.socket:
        try:
            flow, _ = self._listener.accept()
        except OSError as error:
            raise NotSent("no connection came over the rail") from error
        _give_up_after(flow, self._step)
        return flow

    def close(self) -> None:
        """Closes the port."""
        self._listener.close()


class _Echo(_Listening):
    def serve(self) -> None:
        """Sends back one connection's messages. Raises NotSent if none comes."""
        with self._accept() as flow, contextlib.suppress(OSError):
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := _exactly(flow, _PING):
                flow.sendall(data)


class _TcpReceiver(_Listening, Receiver):
    def __init__(self, rail: Rail, step: Step, clock: Clock) -> None:
        super().__init__(rail, step)
        self._clock, self._expected = clock, pattern(step.seed)
        self._flows: list[_Flow] = []

    def result(self) -> Transfer:
        """Takes all streams in. The rate is that of the timed part, which begins after the first byte's warm-up."""
        sockets: list[socket.socket] = []
        try:
            while len(sockets) < self._step.streams:
                sockets.append(self._accept())
            self._flows = [_Flow(each, self._expected, self._clock) for each in sockets]
            threads = [threading.Thread(target=flow.run, daemon=True) for flow in self._flows]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(self._step.limit_s)
        finally:
            for each in sockets:
                each.close()
        return self._figures()

    def _figures(self) -> Transfer:
        arrivals: Sequence[tuple[float, int]] = sorted(at for flow in self._flows for at in flow.arrivals)
        if not arrivals:
            raise NotSent("connected, but no byte arrived")
        begin = arrivals[0][0] + self._step.warmup_s
        end = min(begin + self._step.seconds, max(arrivals[-1][0], begin + 1e-3))
        timed = sum(size for at, size in arrivals if begin < at <= end)
        # A rail that stalls is slow for all the time that it should have sent in.
        stalled = arrivals[-1][0] < begin + 0.5 * self._step.seconds
        span = self._step.seconds if stalled else end - begin
        return Transfer(8e-9 * timed / span, sum(flow.wrong for flow in self._flows))


class _Flow:
    """One stream: when how many bytes came, and how many of them were wrong."""

    def __init__(self, flow: socket.socket, expected: bytes, clock: Clock) -> None:
        self._flow, self._expected, self._clock = flow, expected, clock
        self.arrivals: list[tuple[float, int]] = []
        self.wrong = 0

    def run(self) -> None:
        """Reads until the sender ends."""
        buffer, at, looked = bytearray(_CHUNK), 0, 0
        view, size = memoryview(buffer), len(self._expected)
        with contextlib.suppress(OSError):
            while True:
                got = self._flow.recv_into(view, min(_CHUNK, size - at))
                if not got:
                    return
                self.arrivals.append((self._clock.now(), got))
                right = self._expected[at : at + got]
                came = bytes(view[:got])
                if came != right:
                    looked += 1
                    self.wrong += sum(a != b for a, b in zip(came, right)) if looked <= _LOOKED_AT else 1
                at = (at + got) % size
