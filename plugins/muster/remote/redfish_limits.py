"""Limits on an HTTP exchange with a BMC: its total time and size, and that it stays with that BMC.

The HTTP client's timeout limits each read only, so a BMC that sends single bytes slowly would block its reader forever.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

EXCHANGE_BYTES_MAX = 16 * 1024 * 1024
"""A baseboard with eight GPUs sends less than one MiB."""


class Exchange:
    """All connections to the BMC at ``url``. After ``limit_s`` seconds they are shut down and no other is opened."""

    def __init__(self, url: str, limit_s: float) -> None:
        self.origin = _origin(url)
        self.bytes_left = EXCHANGE_BYTES_MAX
        self.over = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for each in self._sockets:
            each.close()

    def opened(self, sock: socket.socket) -> None:
        """Register a new connection. Raises OSError after the time limit."""
        with self._lock:
            if self.over:
                sock.close()
                raise OSError("the exchange has taken too long")
            # A duplicate: TLS detaches the socket that it wraps.
            self._sockets.append(sock.dup())

    def _end(self) -> None:
        with self._lock:
            self.over = True
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


class LimitedAdapter(HTTPAdapter):
    """Sends requests to the exchange's BMC, as part of it; bodies are not decompressed."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Register each connection with the exchange."""
        super().init_poolmanager(*args, **kwargs)
        exchange = self._exchange

        class Plain(HTTPConnection):
            def _new_conn(self) -> socket.socket:
                sock = super()._new_conn()
                exchange.opened(sock)
                return sock

        class Tls(HTTPSConnection):
            def _new_conn(self) -> socket.socket:
                sock = super()._new_conn()
                exchange.opened(sock)
                return sock

        plain = type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": Plain})
        tls = type("TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": Tls})
        self.poolmanager.pool_classes_by_scheme = {"http": plain, "https": tls}

    def send(self, request: Any, *args: Any, **options: Any) -> requests.Response:
        """Send a request and read its response. Raises ConnectionError if that exceeds the exchange's limits.

        A redirect or a link to another address is refused: it would lead the controller to any address it can reach.
        """
        if _origin(str(request.url)) != self._exchange.origin:
            raise requests.exceptions.InvalidURL(f"it leads to another address: {request.url}")
        options["stream"] = True
        response = super().send(request, *args, **options)
        try:
            body = response.raw.read(self._exchange.bytes_left + 1, decode_content=False)
        except (OSError, urllib3.exceptions.HTTPError) as error:
            raise requests.exceptions.ConnectionError(error) from error
        finally:
            response.raw.close()
        self._exchange.bytes_left -= len(body)
        if self._exchange.bytes_left < 0:
            self._exchange.over = True
            raise requests.exceptions.ConnectionError(f"it sends more than {EXCHANGE_BYTES_MAX} bytes")
        response._content = body
        response._content_consumed = True
        return response


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
