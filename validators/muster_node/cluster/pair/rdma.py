"""perftest's ib_write_bw over one rail: the full rate of the port, without looking at the payload."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Sequence
from typing import Any

from muster_node.cluster.pair.backend import (
    Backend,
    Endpoint,
    NoBackend,
    NotTried,
    Rail,
    Receiver,
    Step,
    Transfer,
    not_sent,
)
from muster_node.probe import Context, Skip
from muster_node.tools.output import BadOutput
from muster_node.tools.perftest import ib_write_bw, parse_ib_write_bw
from muster_node.tools.run import Tool, result_of, started

_FIRST_PORT = 18600
_START_S = 1.0
_SIZE = 65536
_IPV6 = ("--ipv6-addr", "--ipv6")
"""perftest meets the other side over IPv4, and of RoCE takes the GID of an IPv4 address, unless it is asked not to."""
_WORD = re.compile(r"--?[a-zA-Z][a-zA-Z0-9_-]*(=[a-zA-Z0-9_.,-]+)?|[0-9]+")


class IbWrite(Backend):
    """RDMA writes; the client, which is the sender, prints the rate. Raises NoBackend where perftest is missing."""

    name = "ib_write_bw"

    def __init__(self, context: Context) -> None:
        if shutil.which("ib_write_bw") is None:
            raise NoBackend("ib_write_bw is not installed")
        self._context, self._words = context, words_of(context.params.get("perftest", ""))
        self._ports = itertools.count(_FIRST_PORT + 1)

    def receive(self, rail: Rail, step: Step) -> Receiver:
        """Starts the server."""
        port = next(self._ports)  # of rails that are opened at once each gets its own
        return _Server(self._context, _command(rail, port, step, self._words), rail.device, step, port)

    def send(self, rail: Rail, endpoint: Endpoint, step: Step) -> float | None:
        """Runs the client."""
        command = [*_command(rail, int(endpoint["port"]), step, self._words), rail.other]
        said: list[str] = []

        def parse(text: str) -> float:
            said.append(text)
            return parse_ib_write_bw(text)

        try:
            return result_of(self._context, command, step.limit_s, parse, stderr=True)
        except Skip as error:
            raise NotTried(f"ib_write_bw {error}") from error
        except BadOutput as error:
            raise not_sent(rail.device, f"ib_write_bw {error}", "".join(said)) from error


def words_of(given: Any) -> list[str]:
    """Further options of ib_write_bw. Raises ValueError for what are no options and numbers."""
    words = given.split() if isinstance(given, str) else [""]
    if not all(_WORD.fullmatch(word) for word in words):
        raise ValueError(f"perftest must be options of ib_write_bw such as --tclass=106, not {given!r}")
    return words


def _command(rail: Rail, port: int, step: Step, words: Sequence[str]) -> list[str]:
    seconds = str(max(1, round(step.seconds)))
    options = ("-s", str(_SIZE), "-q", str(step.streams), "-D", seconds, *words)
    return ib_write_bw(rail.device, port, *(_IPV6 if ":" in rail.other else ()), *options)


class _Server(Receiver):
    def __init__(self, context: Context, command: list[str], device: str, step: Step, port: int) -> None:
        self.endpoint = {"port": port}
        self._device, self._limit_s = device, step.limit_s
        self._running = started(context, command)
        try:
            self._tool: Tool = self._running.__enter__()
        except Skip as error:
            raise NotTried(str(error)) from error
        context.hardware.clock.sleep(_START_S)  # until it listens

    def result(self) -> Transfer:
        """The server's own end; the rate is the client's."""
        done = self._tool.wait(self._limit_s)
        if done.status != 0:
            raise not_sent(self._device, f"ib_write_bw's server: {done.last_line()}", done.err)
        return Transfer(0.0)

    def close(self) -> None:
        """Ends the server."""
        self._running.__exit__(None, None, None)
