"""A mail server on a loopback port that files each message as .eml and its HTML part as .html.

Run as ``python -m muster_demo.mailsink FOLDER PORT_FILE``; PORT_FILE holds its port once it listens.
"""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
import pathlib
import sys
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, Envelope, Session

MESSAGE_BYTES_MAX = 32 * 1024 * 1024


class Sink:
    """aiosmtpd's handler: accepts every recipient and files the message."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.count = 0

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """File one message."""
        content = envelope.content
        raw = content if isinstance(content, bytes) else str(content or "").encode()
        self.count += 1
        stem = self.folder / f"{self.count:03d}"
        message = email.message_from_bytes(raw, policy=email.policy.default)
        page = html_page(message)
        if page is not None:
            stem.with_suffix(".html").write_text(page, encoding="utf-8")
        # The .eml comes last and in one step: a reader that counts them finds each with its page.
        unfinished = stem.with_suffix(".part")
        unfinished.write_bytes(raw)
        unfinished.replace(stem.with_suffix(".eml"))
        return "250 Message accepted"


def html_page(message: EmailMessage) -> str | None:
    """The HTML part as a page for a browser, with ``cid:`` images embedded as data; None if there is none."""
    body = message.get_body(("html",))
    if body is None:
        return None
    page = str(body.get_content())
    for part in message.walk():
        identity = part.get("Content-ID")
        if identity and part.get_content_maintype() == "image":
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes):
                data = f"data:{part.get_content_type()};base64,{base64.b64encode(payload).decode()}"
                page = page.replace(f"cid:{identity.strip().strip('<>')}", data)
    return page


async def serve(folder: pathlib.Path, port_file: pathlib.Path) -> None:
    """Listen until cancelled."""
    folder.mkdir(parents=True, exist_ok=True)
    sink = Sink(folder)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(sink, data_size_limit=MESSAGE_BYTES_MAX, hostname="localhost", ident="Muster demo mail sink"),
        "127.0.0.1",
        0,
    )
    unfinished = port_file.with_suffix(".part")
    unfinished.write_text(str(server.sockets[0].getsockname()[1]))
    unfinished.replace(port_file)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
