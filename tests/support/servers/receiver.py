"""A receiver of webhooks over real HTTP, as a fleet's own program would be: it verifies, orders and may misbehave."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


class Receiver:
    """``nodes``: its state. ``mood``: what it does to the next requests, by name; empty: it behaves."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {name: {"name": name, "open": True} for name in ("n0", "n1")}
        self.mood: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self.forged = 0
        self.sequences: dict[str, int] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def carry_out(self, key: str, message: dict[str, Any], *, lying: bool) -> None:
        data = message["data"]
        self.messages.append({"id": key, **message})
        if lying or data["sequence"] <= self.sequences.get(data["node"], 0):
            return
        self.sequences[data["node"]] = data["sequence"]
        node = self.nodes[data["node"]]
        if message["type"] == "node.admit":
            node.update(open=True, closed_by="", reason="")
        elif node["open"] or node["closed_by"] == "muster":
            node.update(open=False, closed_by="muster", reason=data["reason"])


def verified(headers: Any, body: bytes) -> bool:
    """As standardwebhooks.com tells receivers, written apart from what it checks."""
    secret = base64.b64decode(SECRET.split("_", 1)[1])
    content = b".".join([headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body])
    wanted = "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
    fresh = abs(time.time() - int(headers["webhook-timestamp"])) < 300
    return fresh and hmac.compare_digest(wanted, headers["webhook-signature"])


@contextlib.contextmanager
def running() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def drip(self) -> None:
            """The head of an answer, a byte now and then: each comes in time, and the whole does not."""
            self.wfile.write(b"HTTP/1.1 204 No Content\r\nX-Late: ")
            for _ in range(6):
                time.sleep(0.4)
                self.wfile.write(b"x")
            self.wfile.write(b"\r\n\r\n")

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not verified(self.headers, body):
                receiver.forged += 1
                return self.answer(401)
            mood = receiver.mood.pop(0) if receiver.mood else ""
            if mood == "drop":
                return None
            if mood == "delay":
                time.sleep(1.5)
            if mood == "redirect":
                return self.answer(307, Location="http://127.0.0.1:9/")
            if mood.isdigit():
                return self.answer(int(mood), b"as the test demands")
            if self.command == "POST":
                receiver.carry_out(self.headers["webhook-id"], json.loads(body), lying=mood == "lie")
                if mood == "done, and drips":
                    return self.drip()
                return None if mood == "done, and no answer" else self.answer(204, b"")
            shown = b"<html>" if mood == "babble" else json.dumps({"nodes": list(receiver.nodes.values())}).encode()
            return self.answer(200, shown)

        do_GET = do_POST = handle_one

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
