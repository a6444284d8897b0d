"""BMCs for tests: OpenStack's emulators (sushy-tools), each started for real.

``emulator`` is the dynamic one with its fake driver: its chassis has two fans and an intake sensor, always well, and no
Power resource. ``static`` serves whatever documents a test writes into its folder: failed fans, hot air, supplies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from muster_demo.services import free_port

CHASSIS = "/redfish/v1/Chassis/1"
START_S = 60.0
OFF_S = 3
"""For how long a system that is restarted is off, less the part of a second that has passed. The fake driver draws
between 1 and 11: at 1, what asks for the power state ten times a second may not see that it was off."""
SERIAL = "S1650423000042"
"""Of the system that ``emulator`` powers; the emulator's own document has none."""
EMULATOR = f"""import json, random, sys
random.randint = lambda low, high: {OFF_S}
from sushy_tools.emulator.main import app, main
@app.after_request
def numbered(answer):
    document = answer.get_json(silent=True)
    if isinstance(document, dict) and "PowerState" in document:
        answer.set_data(json.dumps({{**document, "SerialNumber": {SERIAL!r}}}))
    return answer
sys.exit(main())"""


def fan(name: str = "Fan 1", rpm: float | None = 8000, health: str | None = "OK", state: str = "Enabled") -> Any:
    return {"MemberId": name, "Name": name, "Reading": rpm, "ReadingUnits": "RPM",
            "Status": {"State": state, "Health": health}}  # fmt: skip


def supply(name: str = "PSU 1", watts: float | None = 900, health: str | None = "OK", state: str = "Enabled") -> Any:
    return {"MemberId": name, "Name": name, "PowerInputWatts": watts, "Status": {"State": state, "Health": health}}


def air(celsius: float | None = 24, name: str = "System Inlet", context: str = "Intake") -> Any:
    return {"MemberId": name, "Name": name, "ReadingCelsius": celsius, "PhysicalContext": context,
            "Status": {"State": "Enabled", "Health": "OK"}}  # fmt: skip


def write(
    folder: Path,
    fans: list[Any] | None = None,
    temperatures: list[Any] | None = None,
    supplies: list[Any] | None = None,
) -> Path:
    """The documents of a BMC with one chassis; what is None, that chassis does not offer."""
    chassis: dict[str, Any] = {"@odata.id": CHASSIS, "Id": "1", "Name": "Chassis", "ChassisType": "RackMount"}
    if fans is not None or temperatures is not None:
        chassis["Thermal"] = {"@odata.id": f"{CHASSIS}/Thermal"}
        thermal = {"Id": "Thermal", "Name": "Thermal", "Fans": fans or [], "Temperatures": temperatures or []}
        _document(folder, "Chassis/1/Thermal", thermal)
    if supplies is not None:
        chassis["Power"] = {"@odata.id": f"{CHASSIS}/Power"}
        _document(folder, "Chassis/1/Power", {"Id": "Power", "Name": "Power", "PowerSupplies": supplies})
    _document(folder, "Chassis/1", chassis)
    members = {"Name": "Chassis Collection", "Members": [{"@odata.id": CHASSIS}], "Members@odata.count": 1}
    _document(folder, "Chassis", members)
    root = {"Id": "RootService", "Name": "Root Service", "RedfishVersion": "1.6.0",
            "Chassis": {"@odata.id": "/redfish/v1/Chassis"}}  # fmt: skip
    _document(folder, "", root)
    return folder


def write_newer(folder: Path, fan_health: str = "OK", rpm: float | None = 9000) -> Path:
    """The documents of a BMC that has ThermalSubsystem and PowerSubsystem only (shapes: DMTF DSP2046, "Fan v1.5",
    "ThermalMetrics v1.3", "PowerSupplyMetrics v1.1"), and lists a chassis that it does not have.
    """
    write(folder)
    thermal, power = f"{CHASSIS}/ThermalSubsystem", f"{CHASSIS}/PowerSubsystem"

    def collection(path: str, *members: str) -> None:
        listed = {"Members": [{"@odata.id": f"/redfish/v1/{path}/{each}"} for each in members]}
        _document(folder, path, {"Name": "Collection", "Members@odata.count": len(members), **listed})

    _document(folder, "Chassis/1", {"Id": "1", "Name": "Chassis", "ThermalSubsystem": {"@odata.id": thermal},
                                    "PowerSubsystem": {"@odata.id": power}})  # fmt: skip
    collection("Chassis", "1", "HGX_GPU_9")
    links = {name: {"@odata.id": f"{thermal}/{name}"} for name in ("Fans", "ThermalMetrics")}
    _document(folder, "Chassis/1/ThermalSubsystem", links)
    collection("Chassis/1/ThermalSubsystem/Fans", "Bay1", "Bay2")
    for bay, health in (("Bay1", "OK"), ("Bay2", fan_health)):
        speed = {"Reading": 45, **({"SpeedRPM": rpm} if rpm is not None else {})}
        status = {"State": "Enabled", "Health": health}
        _document(folder, f"Chassis/1/ThermalSubsystem/Fans/{bay}",
                  {"Id": bay, "Name": f"Fan {bay}", "SpeedPercent": speed, "Status": status})  # fmt: skip
    intake = {"Intake": {"Reading": 23.5, "DataSourceUri": f"{CHASSIS}/Sensors/Intake"}}
    _document(folder, "Chassis/1/ThermalSubsystem/ThermalMetrics", {"TemperatureSummaryCelsius": intake})
    _document(folder, "Chassis/1/PowerSubsystem", {"PowerSupplies": {"@odata.id": f"{power}/PowerSupplies"}})
    collection("Chassis/1/PowerSubsystem/PowerSupplies", "Bay1")
    supply = f"{power}/PowerSupplies/Bay1"
    _document(folder, "Chassis/1/PowerSubsystem/PowerSupplies/Bay1",
              {"Id": "Bay1", "Name": "PSU 1", "Status": {"State": "Enabled", "Health": "OK"},
               "Metrics": {"@odata.id": f"{supply}/Metrics"}})  # fmt: skip
    _document(folder, "Chassis/1/PowerSubsystem/PowerSupplies/Bay1/Metrics", {"InputPowerWatts": {"Reading": 937.4}})
    return folder


def entry(
    number: str, severity: str, message: str, *, sensor: str = "", origin: str = "", created: str = ""
) -> dict[str, Any]:
    """An entry of a log (shape: DMTF "LogEntry v1.4")."""
    about = {"SensorType": sensor} if sensor else {}
    links = {"Links": {"OriginOfCondition": {"@odata.id": origin}}} if origin else {}
    at = created or f"2026-11-01T10:00:{int(number):02d}Z"
    return {"Id": number, "EntryType": "SEL", "Created": at, "Severity": severity, "Message": message, **about, **links}


def write_log(folder: Path, holder: str, name: str, entries: list[dict[str, Any]]) -> None:
    """Adds a log to a system or manager ("Systems/1"), or rewrites it."""
    kind, _, member = holder.partition("/")
    root = json.loads((folder / "index.json").read_text()) | {kind: {"@odata.id": f"/redfish/v1/{kind}"}}
    _document(folder, "", root)
    services = f"{holder}/LogServices"
    listed = {kind: f"/redfish/v1/{holder}", services: f"/redfish/v1/{services}/{name}"}
    for path, only in listed.items():
        _document(folder, path, {"Members": [{"@odata.id": only}], "Members@odata.count": 1})
    _document(folder, holder, {"Id": member, "LogServices": {"@odata.id": f"/redfish/v1/{services}"}})
    _document(folder, f"{services}/{name}",
              {"Id": name, "Entries": {"@odata.id": f"/redfish/v1/{services}/{name}/Entries"}})  # fmt: skip
    _document(folder, f"{services}/{name}/Entries", {"Members": entries, "Members@odata.count": len(entries)})


def write_leak(folder: Path, state: str) -> None:
    """Adds one leak detector to the chassis (shape: DMTF "LeakDetector v1.0")."""
    cooling = f"{CHASSIS}/ThermalSubsystem"
    chassis = json.loads((folder / "Chassis/1/index.json").read_text()) | {"ThermalSubsystem": {"@odata.id": cooling}}
    _document(folder, "Chassis/1", chassis)
    at = "Chassis/1/ThermalSubsystem"
    _document(folder, at, {"LeakDetection": {"@odata.id": f"{cooling}/LeakDetection"}})
    detectors = f"{cooling}/LeakDetection/LeakDetectors"
    _document(folder, f"{at}/LeakDetection", {"LeakDetectors": {"@odata.id": detectors}})
    _document(folder, f"{at}/LeakDetection/LeakDetectors", {"Members": [{"@odata.id": f"{detectors}/0"}]})
    found = {"Name": "Cold Plate", "DetectorState": state, "Status": {"State": "Enabled", "Health": state}}
    _document(folder, f"{at}/LeakDetection/LeakDetectors/0", found)


def _document(folder: Path, path: str, document: dict[str, Any]) -> None:
    target = folder / path / "index.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"@odata.id": f"/redfish/v1/{path}".rstrip("/"), **document}))


def stored(folder: Path, path: str) -> tuple[int, dict[str, str], bytes]:
    """The answer to ``path`` of a BMC with the documents in ``folder``: status, headers, body."""
    document = folder / path.removeprefix("/redfish/v1").strip("/") / "index.json"
    return (200, {}, document.read_bytes()) if document.is_file() else (404, {}, b"")


@contextlib.contextmanager
def static(folder: Path) -> Iterator[str]:
    """The URL of a BMC that serves the documents in ``folder``, which may be rewritten meanwhile."""
    with _running("-m", "sushy_tools.static.main", "--mockup-files", str(folder)) as url:
        yield url


@contextlib.contextmanager
def emulator(htpasswd: Path | None = None, certificate: Path | None = None) -> Iterator[str]:
    """The URL of a BMC of OpenStack's making; ``htpasswd``: its users; ``certificate``: with key, for https."""
    options = ["--fake"]
    if htpasswd is not None:
        config = htpasswd.with_suffix(".py")
        config.write_text(f"SUSHY_EMULATOR_AUTH_FILE = {str(htpasswd)!r}\n")
        options += ["--config", str(config)]
    if certificate is not None:
        options += ["--ssl-certificate", str(certificate), "--ssl-key", str(certificate)]
    with _running("-c", EMULATOR, *options, scheme="https" if certificate else "http") as url:
        yield url


def certificate(folder: Path) -> Path:
    """A new certificate for 127.0.0.1, signed by itself, with its key in the same file."""
    path = folder / "bmc.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@dataclasses.dataclass
class Answering:
    """A server and the paths that were requested of it, with the method where it is not GET."""

    url: str
    requests: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def answering(reply: Callable[[str], tuple[int, dict[str, str], bytes]]) -> Iterator[Answering]:
    """A server whose answer to a path is ``reply(path)``: status, headers, body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.requests.append(self.path if self.command == "GET" else f"{self.command} {self.path}")
            status, headers, body = reply(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known = Answering(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield known
        finally:
            server.shutdown()  # the thread would poll the closed socket without a pause, and keep a core busy


@contextlib.contextmanager
def _running(*what: str, scheme: str = "http") -> Iterator[str]:
    port = free_port()
    command = [sys.executable, *what, "--interface", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(process, port)
        yield f"{scheme}://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, "the emulator ended at once"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError(f"the emulator did not listen within {START_S:g} s")
