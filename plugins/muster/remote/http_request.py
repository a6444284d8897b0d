"""One HTTP request that ends in time, whatever the other side does.

httpx limits the time until the next piece of an answer: a server that sends a byte now and then, also in the midst of
its headers, would hold its caller for days.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx


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
    """Whether a header can hold the text, such as a token. Of one that none can hold, a client's error quotes it."""
    return text.isascii() and text.isprintable()
