"""TCP links that a campaign can refuse, hang, slow down or break: what stands between the controller and a service."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from muster_demo.services import free_port

OPEN, REFUSED, HANGING, SLOW, FLAPPING = "open", "refused", "hanging", "slow", "flapping"
CHUNK, SLOW_CHUNK, SLOW_S = 65536, 2048, 0.05
"""A slow link passes 40 KB a second."""
FLAP_S = (0.2, 4.0)
"""How long a connection lasts over a flapping link, seconds."""


class Links:
    """An event loop in a thread of its own, for any number of links."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the loop and wait for its end."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


class Link:
    """One port of the loopback interface that leads to the port that ``target`` gives.

    ``tls``: the certificate of what is there, for answers in its place.
    """

    def __init__(self, links: Links, target: Callable[[], int], tls: ssl.SSLContext | None = None) -> None:
        self.links, self.target, self.tls, self.port = links, target, tls, free_port()
        self.mode: str | bytes = OPEN
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        links.call(self._listen())

    def set(self, mode: str | bytes, target: Callable[[], int] | None = None) -> None:
        """Behave so from now on. Bytes: the answer to each connection, which then ends."""
        self.links.call(self._set(mode, target))

    async def _set(self, mode: str | bytes, target: Callable[[], int] | None) -> None:
        self.mode, self.target = mode, target or self.target
        if mode not in (SLOW, HANGING):
            for writer in self._writers:
                writer.transport.abort()
        if self._server:
            self._server.close()
            self._server = None
        if mode != REFUSED:
            await self._listen()

    async def _listen(self) -> None:
        tls = self.tls if isinstance(self.mode, bytes) else None
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = [writer]
        self._writers.add(writer)
        try:
            if isinstance(self.mode, bytes):
                writer.write(self.mode)
                await writer.drain()
                await asyncio.wait_for(reader.read(CHUNK), 2)
                return
            await self._while_hanging()
            there, onward = await asyncio.open_connection("127.0.0.1", self.target())
            mine.append(onward)
            self._writers.add(onward)
            lasts = random.uniform(*FLAP_S) if self.mode == FLAPPING else None
            both = asyncio.gather(self._pump(reader, onward), self._pump(there, writer))
            await asyncio.wait_for(both, lasts)
        except (OSError, TimeoutError):
            pass
        finally:
            for each in mine:
                self._writers.discard(each)
                with contextlib.suppress(OSError):
                    each.transport.abort() if self.mode == FLAPPING else each.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while block := await source.read(SLOW_CHUNK if self.mode == SLOW else CHUNK):
            await self._while_hanging()
            if self.mode == SLOW:
                await asyncio.sleep(SLOW_S)
            sink.write(block)
            await sink.drain()
        with contextlib.suppress(OSError):  # TLS has no end of one direction alone
            sink.write_eof() if sink.can_write_eof() else sink.close()

    async def _while_hanging(self) -> None:
        while self.mode == HANGING:
            await asyncio.sleep(0.1)
