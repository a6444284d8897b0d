"""A BMC's Redfish documents, served over HTTP as the product reads them."""

from __future__ import annotations

import contextlib
import copy
import functools
import http.server
import json
import random
import threading
from typing import Any, ClassVar

from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.redfish import read_chassis
from muster.remote.bmc.redfish_client import SESSIONS, BmcSilent
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken
from tests.support.servers import bmc

ROOT, CHASSIS = "/redfish/v1", "/redfish/v1/Chassis/1"
DOCUMENTS: dict[str, Any] = {
    ROOT: {"Id": "RootService", "Name": "Root", "RedfishVersion": "1.6.0", "Chassis": {"@odata.id": f"{ROOT}/Chassis"}},
    f"{ROOT}/Chassis": {"Name": "C", "Members": [{"@odata.id": CHASSIS}], "Members@odata.count": 1},
    CHASSIS: {
        "Id": "1",
        "Name": "Chassis",
        "ChassisType": "RackMount",
        "Thermal": {"@odata.id": f"{CHASSIS}/Thermal"},
        "Power": {"@odata.id": f"{CHASSIS}/Power"},
    },
    f"{CHASSIS}/Thermal": {
        "Id": "Thermal",
        "Name": "Thermal",
        "Fans": [bmc.fan("Fan 1"), bmc.fan("Fan 2")],
        "Temperatures": [bmc.air()],
    },
    f"{CHASSIS}/Power": {"Id": "Power", "Name": "Power", "PowerSupplies": [bmc.supply()]},
}
HUGE = b"[" + b'{"a": 1},' * (4 * 2**20) + b"1]"


class _Served:
    """The documents that the server sends now, by path."""

    bodies: ClassVar[dict[str, bytes]] = {}
    header: ClassVar[bytes] = b""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = _Served.bodies.get(self.path.rstrip("/"))
        self.send_response(
            404 if body is None else 200 if not _Served.header else 301 if self.command == "GET" else 201
        )
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        for name in ("Location", "X-Auth-Token"):
            if _Served.header:
                self.send_header(name, _Served.header.decode("latin-1"))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the reader stops at its limit
            self.wfile.write(body or b"")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@functools.cache
def _url() -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def _draw(rng: random.Random) -> Sample:
    documents = copy.deepcopy(DOCUMENTS)
    spoilt = ""
    mutated = rng.choice(list(documents))
    if rng.random() < 0.3:
        fans = documents[f"{CHASSIS}/Thermal"]["Fans"]
        fans[rng.randrange(2)]["Status"]["Health"] = "Critical"
        spoilt, mutated = "a fan in a critical state", f"{CHASSIS}/Power"
    documents[mutated] = mutate.document(rng, documents[mutated])
    bodies = {path: json.dumps(document).encode() for path, document in documents.items()}
    if not spoilt and rng.random() < 0.1:
        bodies[mutated] = mutate.raw(rng, bodies[mutated])
    large = rng.random() < 0.002
    if large:
        bodies[mutated] = HUGE
    header = b""
    if not spoilt and rng.random() < 0.1:
        header = mutate.raw(rng, CHASSIS.encode()).translate(None, b"\0\r\n")
        bodies[SESSIONS.rstrip("/")] = b"{}"
    return Sample((bodies, header), spoilt, large)


def _read(sample: Sample) -> Taken:
    _Served.bodies, _Served.header = sample.data
    shown = read_chassis(Bmc(url=_url()), Login("muster", "secret"), timeout_s=5.0, limit_s=10.0)
    if not shown.readings:
        raise BmcSilent(shown.trouble)
    rows = shown.readings
    texts = [shown.trouble, *(text for row in rows for text in (row.device, row.note, row.text or ""))]
    critical = any(row.metric == "fan_state" and row.text == "critical" for row in rows)
    over = f"{len(rows)} readings" if len(rows) > 5_000 else ""
    return Taken(texts, oversize=over, well=not critical)


EDGE = Edge(_draw, _read, (BmcSilent,), peak_bytes=160 * 2**20)
