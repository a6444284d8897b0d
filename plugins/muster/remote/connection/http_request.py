"""One HTTP request that ends in time, whatever the other side does.

httpx only limits the time until the next piece of an answer: a server that sends a byte now and then, even within its
headers, would block its caller for days.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Mapping

import httpx


def trusting(verify: str | bool, *, trust_env: bool) -> ssl.SSLContext | bool:
    """Returns the ``verify`` for httpx: the authorities in a file, the usual ones for True, or False for none.

    Reading authorities takes 30 ms of CPU, so a process reads a file once, and again when it was changed. Raises
    OSError.
    """
    if not verify:
        return False
    file = verify if isinstance(verify, str) else ""
    return _context(file, os.stat(file).st_ctime_ns if file else 0, trust_env)


@functools.lru_cache(maxsize=16)
def _context(file: str, _changed: int, trust_env: bool) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file) if file else httpx.create_ssl_context(trust_env=trust_env)


def send(
    method: str,
    url: str,
    *,
    body: bytes,
    headers: Mapping[str, str],
    limit_s: float,
    bytes_max: int,
    verify: ssl.SSLContext | bool = True,
    trust_env: bool = True,
) -> tuple[int, bytes]:
    """Returns status and body of the answer, as it is sent, not decompressed. Redirects are not followed.

    Raises httpx.HTTPError, TimeoutError after ``limit_s`` in all, OverflowError for a body of more than ``bytes_max``.
    """

    if verify is True:
        verify = trusting(True, trust_env=trust_env)

    async def whole() -> tuple[int, bytes]:
        content = bytearray()
        async with (
            asyncio.timeout(limit_s),
            httpx.AsyncClient(verify=verify, timeout=limit_s, trust_env=trust_env) as client,
            client.stream(method, url, content=body, headers=dict(headers)) as answer,
        ):
            async for piece in answer.aiter_raw():
                content += piece
                if len(content) > bytes_max:
                    raise OverflowError(f"more than {bytes_max} bytes")
            return answer.status_code, bytes(content)

    return asyncio.run(whole())


def fits_header(text: str) -> bool:
    """Whether a header can hold the text, such as a token. If it cannot, a client's error would quote it."""
    return text.isascii() and text.isprintable()
