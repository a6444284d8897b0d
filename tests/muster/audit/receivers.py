"""Real receivers of the audit stream on this machine, with TLS: syslog and HTTP. Each fails as ``faults`` demands."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LINGER_0 = struct.pack("ii", 1, 0)  # close sends RST, as a receiver that is killed with unread data does


def certificate(folder: Path) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "receiver")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / "receiver.pem"
    path.write_bytes(key.private_bytes(encoding, private, serialization.NoEncryption()) + made.public_bytes(encoding))
    return path


class Receiver:
    """What a receiver got, and how its next connections or requests end: each takes one of ``faults``.

    ``most``: bytes of a body that it accepts, 0 for any number.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.most = 0
        self.faults: list[str] = []
        self.got: list[dict[str, Any]] = []
        self.headers: list[str] = []

    def fault(self) -> str:
        return self.faults.pop(0) if self.faults else ""


@contextlib.contextmanager
def syslog(pem: Path, port: int = 0) -> Iterator[Receiver]:
    """RFC 5425. Faults: "reset" in the middle, "silent" (reads all, closes without close_notify)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listening = socket.create_server(("127.0.0.1", port))
    receiver = Receiver(listening.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), plain:
                _read(context.wrap_socket(plain, server_side=True), receiver)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield receiver
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def _read(connection: ssl.SSLSocket, receiver: Receiver) -> None:
    fault, data = receiver.fault(), b""
    connection.settimeout(20)
    while piece := connection.recv(4096):
        data += piece
        if fault == "reset" and len(data) > 4096:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
            connection.close()
            return
    while data:
        length, _, rest = data.partition(b" ")
        message, data = rest[: int(length)], rest[int(length) :]
        header, _, text = message.decode("ascii").partition(" - {")
        receiver.headers.append(header)
        receiver.got.append(json.loads("{" + text))
    if fault != "silent":
        connection.unwrap()


@contextlib.contextmanager
def web(pem: Path, port: int = 0) -> Iterator[Receiver]:
    """HTTPS. Faults: a status such as "500", "drop" in the middle of the body, "mute" (keeps all, never answers)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fault, length = receiver.fault(), int(self.headers["Content-Length"])
            if fault == "drop":
                self.rfile.read(length // 2)
                self.connection.close()
                return
            body = self.rfile.read(length)
            if 0 < receiver.most < length:
                fault = "413"
            if fault.isdigit():
                self.send_response(int(fault))
                self.end_headers()
                return
            receiver.headers.append(self.headers.get("Authorization", ""))
            receiver.got += [json.loads(line) for line in body.splitlines()]
            if fault != "mute":
                self.send_response(204)
                self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.handle_error = lambda *_: None  # connections that break are the point
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
