"""Receivers of the audit stream: a file of JSON lines, syslog (RFC 5424) over TLS (RFC 5425), and HTTP POST.

Each ``send`` returns only once the receiver has the whole batch, as far as its protocol can tell; anything else raises,
and the batch is sent again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import httpx
import pydantic

from muster import ownership, redaction
from muster.errors import BadSettings, MusterError, first_refused
from muster.model.queues import AuditEvent
from muster.remote.connection import http_request
from muster.settings import AbsolutePath

TIMEOUT_S = 20.0
"""The limit (s) for one batch."""
ANSWER_BYTES_MAX = 1024 * 1024
"""The limit for an answer, which is not used."""
PRIORITY = 13 * 8 + 5  # facility "log audit", severity "notice"
SYSLOG_TLS_PORT = 6514


class NotAccepted(MusterError):
    """The receiver did not accept a batch."""


class _Sink(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class FileSink(_Sink):
    """JSON lines at the end of a file, which may be rotated at any time."""

    kind: Literal["file"]
    path: AbsolutePath

    def send(self, events: Sequence[AuditEvent]) -> None:
        """Append the events and wait for the disk. Raises OSError."""
        lines = "".join(f"{as_json(event)}\n" for event in events).encode()
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            if not (size := os.fstat(descriptor).st_size):
                ownership.give(self.path)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines  # the last writer was killed in a line; its batch comes again
            while lines:
                lines = lines[file.write(lines) :]
            os.fsync(descriptor)


class SyslogSink(_Sink):
    """RFC 5424 messages over TLS, each with its length before it.

    Syslog confirms nothing. Therefore the connection is closed as RFC 5425 4.4 demands, and the receiver's own
    close_notify shows that it has read everything before ours. ``confirm=false``: for a receiver that never sends one.
    """

    kind: Literal["syslog"]
    host: str
    port: int = SYSLOG_TLS_PORT
    ca_file: AbsolutePath | None = None
    cert_file: AbsolutePath | None = None
    key_file: AbsolutePath | None = None
    confirm: bool = True

    def send(self, events: Sequence[AuditEvent]) -> None:
        """Send the events in one connection. Raises OSError, of which ssl.SSLError is one."""
        context = _context(self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        name = socket.gethostname() or "-"
        until = time.monotonic() + TIMEOUT_S
        with socket.create_connection((self.host, self.port), TIMEOUT_S) as plain:
            plain.settimeout(_left(until))
            with context.wrap_socket(plain, server_hostname=self.host, suppress_ragged_eofs=False) as wrapped:
                for event in events:
                    wrapped.settimeout(_left(until))
                    wrapped.sendall(framed(event, name))
                if self.confirm:
                    wrapped.settimeout(_left(until))
                    wrapped.unwrap()


class HttpSink(_Sink):
    """One POST of JSON lines a batch; any 2xx accepts it. ``token_file``: a bearer token, read for each batch."""

    kind: Literal["http"]
    url: pydantic.HttpUrl
    ca_file: AbsolutePath | None = None
    token_file: AbsolutePath | None = None

    @pydantic.model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        if self.token_file and self.url.scheme != "https":
            raise ValueError("token_file needs an https address")
        return self

    def send(self, events: Sequence[AuditEvent]) -> None:
        """Post the events. Raises NotAccepted, OSError."""
        lines = "".join(f"{as_json(event)}\n" for event in events)
        headers = {
            "Content-Type": "application/x-ndjson",
            "Idempotency-Key": f"muster-{events[0].id}-{events[-1].id}-{_digest(lines)}",
        }
        if self.token_file:
            token = self.token_file.read_text().strip()
            if not http_request.fits_header(token):
                raise NotAccepted(f"{self.token_file} holds more than a token: write the token alone, in one line")
            headers["Authorization"] = f"Bearer {token}"
        try:
            status, _ = http_request.send(
                "POST", str(self.url), body=lines.encode(), headers=headers, limit_s=TIMEOUT_S,
                bytes_max=ANSWER_BYTES_MAX, verify=_context(self.ca_file), trust_env=False,
            )  # fmt: skip
        except (httpx.HTTPError, OverflowError, TimeoutError) as error:
            raise NotAccepted(redaction.of_text(f"{self.url}: {str(error) or type(error).__name__}")) from error
        if not httpx.codes.is_success(status):
            raise NotAccepted(redaction.of_text(f"{self.url} answers {status}"))


Sink = FileSink | SyslogSink | HttpSink
_ADAPTER: pydantic.TypeAdapter[Sink] = pydantic.TypeAdapter(Annotated[Sink, pydantic.Field(discriminator="kind")])


def sink(name: str, configured: Mapping[str, Any]) -> Sink:
    """One receiver of MUSTER_AUDIT_SINKS. Raises BadSettings, naming the receiver and its field."""
    try:
        return _ADAPTER.validate_python(configured)
    except pydantic.ValidationError as error:
        why = first_refused(error, whole="kind")
        raise BadSettings(f"MUSTER_AUDIT_SINKS: {name}: {why}; correct it, or remove {name}") from None


def as_json(event: AuditEvent) -> str:
    """The event as one line of ASCII, which no line break or escape sequence of a reason can break.

    ``uid`` is unique: after records were restored, another event may have the same ``id``, and a receiver that went by
    ``id`` alone would drop it.
    """
    content = dataclasses.asdict(event)
    return json.dumps({"uid": f"{event.id}-{_digest(json.dumps(content, default=str))}", **content}, default=str)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def framed(event: AuditEvent, host: str) -> bytes:
    """The event as an RFC 5424 message with its length before it (RFC 6587 3.4.1, RFC 5425 4.3)."""
    message = f"<{PRIORITY}>1 {event.at} {host} muster - {event.kind} - {as_json(event)}".encode("ascii")
    return b"%d %s" % (len(message), message)


def _left(until: float) -> float:
    """Seconds until then, by the monotonic clock. Raises TimeoutError."""
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError(f"it did not take the batch within {TIMEOUT_S:g} s")
    return left


def _context(ca_file: Path | None) -> ssl.SSLContext:
    """Returns the context that verifies the receiver by ``ca_file`` or the system's authorities."""
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
