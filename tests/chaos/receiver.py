"""A receiver of the audit stream: it keeps the name of each event that it has accepted, in a file."""

from __future__ import annotations

import datetime
import http.server
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def name_of(event: int, at: datetime.datetime) -> str:
    """An event's own name: records that were restored give its id again."""
    return f"{event}@{at.timestamp():.6f}"


def _named(event: dict[str, Any]) -> str:
    return f"{name_of(event['id'], datetime.datetime.fromisoformat(event['at']))}\n"


class Receiver:
    """Accepts every POST of whole JSON lines while the block lasts."""

    def __init__(self, path: Path) -> None:
        path.touch()

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    accepted = [_named(json.loads(line)) for line in body.splitlines()]
                except ValueError:  # its sender was killed on the way
                    self.send_error(400)
                    return
                with path.open("a") as file:
                    file.writelines(accepted)
                self.send_response(204)
                self.end_headers()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
