"""A BMC asked through Redfish: OpenStack's emulators; a missing answer is reported, never healthy."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from muster.remote.bmc.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster.remote.bmc.redfish import ask, read_chassis
from muster.remote.bmc.redfish_client import BYTES_MAX, BmcSilent
from muster_criteria.measured import Measured
from muster_demo.services import free_port
from tests.support.servers import bmc as bmcs

Readings = dict[tuple[str, str], Measured]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("redfish")


@pytest.fixture(scope="module")
def static(folder: Path) -> Iterator[str]:
    with bmcs.static(bmcs.write(folder)) as url:
        yield url


def read(bmc: str | Bmc, who: Login | None = None, *, timeout_s: float = 5.0, limit_s: float = 30.0) -> Readings:
    asked = Bmc(url=bmc) if isinstance(bmc, str) else bmc
    shown = read_chassis(asked, who or Login(), timeout_s=timeout_s, limit_s=limit_s)
    if not shown.readings:
        raise BmcSilent(shown.trouble)
    return {(each.metric, each.device): each for each in shown.readings}


def test_openstacks_own_emulator_tells_its_fans_and_its_intake() -> None:
    with bmcs.emulator() as url:
        readings = read(url)
    assert readings["fan_speed", "fan0"].value == 2100.0
    assert readings["fan_speed", "fan1"].value == 2050.0
    assert readings["fan_state", "fan1"].text == "ok"
    assert readings["inlet_temperature", "inlet"].value == 25.0, "the CPU's 41 °C is not the air that comes in"
    assert {each.labels["source"] for each in readings.values()} == {"redfish"}
    assert {each.unit for each in readings.values()} == {"RPM", "text", "°C"}


@pytest.mark.parametrize("text", [None, "", "no certificate"])
def test_a_file_of_authorities_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    authorities = tmp_path / "authorities.pem"
    if text is not None:
        authorities.write_text(text)
    shown = ask({"url": "https://127.0.0.1:1", "verify": str(authorities)}, "burn_in", Login(), serial="")
    assert shown is not None
    assert str(authorities) in shown.trouble


def test_the_login_is_used_and_a_wrong_one_is_one_sentence_without_it(tmp_path: Path) -> None:
    htpasswd = tmp_path / "htpasswd"
    htpasswd.write_text(f"root:{bcrypt.hashpw(b'calvin', bcrypt.gensalt(4)).decode()}\n")
    certificate = bmcs.certificate(tmp_path)
    with bmcs.emulator(htpasswd, certificate) as url:
        bmc = Bmc(url=url, user="root", password_env="MUSTER_BMC_UNUSED", verify=str(certificate))
        assert len(read(bmc, Login("root", "calvin"))) == 5
        with pytest.raises(BmcSilent) as refused:
            read(bmc, Login("root", "hobbes"))
        assert "hobbes" not in str(refused.value)
        with pytest.raises(BmcSilent):
            read(bmc, Login())


def test_fans_air_and_supplies_are_reported_with_unit_device_and_the_vendors_name(folder: Path, static: str) -> None:
    bmcs.write(
        folder,
        fans=[bmcs.fan("Fan 1"), bmcs.fan("Fan 2", rpm=0, health="Critical")],
        temperatures=[bmcs.air(24), bmcs.air(26.5, "Riser Ambient"), bmcs.air(60, "CPU1", "CPU")],
        supplies=[bmcs.supply("PSU 1", 912.5), bmcs.supply("PSU 2", 0, "Critical")],
    )
    readings = read(static)
    assert {key: each.value if each.text is None else each.text for key, each in readings.items()} == {
        ("fan_speed", "fan0"): 8000.0, ("fan_state", "fan0"): "ok",
        ("fan_speed", "fan1"): 0.0, ("fan_state", "fan1"): "critical",
        ("inlet_temperature", "inlet"): 26.5,
        ("psu_state", "psu0"): "ok", ("psu_input_power", "psu0"): 912.5,
        ("psu_state", "psu1"): "critical", ("psu_input_power", "psu1"): 0.0,
    }  # fmt: skip
    assert readings["fan_speed", "fan1"].note == "1/Fan 2"
    assert readings["inlet_temperature", "inlet"].note == "1/Riser Ambient"


def test_fans_of_one_name_are_several_and_a_share_of_full_speed_is_no_rpm(folder: Path, static: str) -> None:
    share = {**bmcs.fan("Fan", rpm=40), "ReadingUnits": "Percent"}
    bmcs.write(folder, fans=[share, {**share, "Reading": 41}], temperatures=[])
    readings = read(static)
    assert (readings["fan_duty", "fan0"].value, readings["fan_duty", "fan1"].value) == (40.0, 41.0)
    assert ("fan_speed", "fan0") not in readings


def test_what_the_bmc_has_no_reading_of_is_not_supported_and_never_zero(folder: Path, static: str) -> None:
    bmcs.write(
        folder,
        fans=[bmcs.fan(rpm=None, health=None), bmcs.fan("Fan 2", state="Absent")],
        temperatures=[bmcs.air(None)],
        supplies=[bmcs.supply(watts=None), bmcs.supply("PSU 2", state="Absent")],
    )
    readings = read(static)
    silent = {key for key, each in readings.items() if each.value is None and each.text is None}
    assert silent == {
        ("fan_speed", "fan0"), ("fan_state", "fan0"), ("inlet_temperature", "inlet"), ("psu_input_power", "psu0"),
        ("psu_state", "psu1"),
    }  # fmt: skip
    assert all("not supported" in readings[key].note for key in silent)


def test_a_part_that_the_bmc_misses_is_reported_and_an_empty_place_is_not(folder: Path, static: str) -> None:
    """IBM's OpenBMC reports a missing supply as Critical and Absent (ibm-openbmc/bmcweb#1281); others give an empty
    place no health, or OK.
    """
    bmcs.write(
        folder,
        fans=[bmcs.fan(health=health, state="Absent") for health in (None, "OK", "Critical")],
        temperatures=[],
        supplies=[bmcs.supply(f"PSU {health}", health=health, state="Absent") for health in (None, "OK", "Critical")],
    )
    states = {part: each.text for (metric, part), each in read(static).items() if metric.endswith("_state")}
    assert states == {"fan0": "critical", "psu0": None, "psu1": None, "psu2": "critical"}


@pytest.mark.parametrize(
    ("state", "health", "reported"),
    [
        ("UnavailableOffline", "OK", "warning"),
        ("UnavailableOffline", "Critical", "critical"),
        ("UnavailableOffline", None, None),
        ("StandbySpare", "OK", "ok"),
    ],
)
def test_a_part_that_cannot_be_used_is_not_ok(
    folder: Path, static: str, state: str, health: str | None, reported: str | None
) -> None:
    bmcs.write(
        folder,
        fans=[bmcs.fan(health=health, state=state)],
        temperatures=[],
        supplies=[bmcs.supply(health=health, state=state)],
    )
    states = {part: each.text for (metric, part), each in read(static).items() if metric.endswith("_state")}
    assert states == {"fan0": reported, "psu0": reported}


def test_a_fan_without_an_id_hides_no_other(folder: Path, static: str) -> None:
    """iLO 4 sends fans without ``MemberId``, and with ``FanName`` for a name."""
    nameless = {"FanName": "Fan 2", "Reading": 30, "ReadingUnits": "Percent", "Status": {"Health": "Critical"}}
    bmcs.write(folder, fans=[bmcs.fan("Fan 1"), nameless, "nonsense"], temperatures=[bmcs.air(24)])
    readings = read(static)
    assert readings["fan_state", "fan1"].text == "critical"
    assert readings["fan_duty", "fan1"].note == "1/Fan 2"
    assert readings["inlet_temperature", "inlet"].value == 24.0


def test_newer_bmcs_report_in_subsystems_and_a_chassis_that_is_not_there_costs_nothing(
    folder: Path, static: str
) -> None:
    bmcs.write_newer(folder, fan_health="Critical")
    readings = read(static)
    assert {key: each.value if each.text is None else each.text for key, each in readings.items()} == {
        ("fan_speed", "fan0"): 9000.0, ("fan_state", "fan0"): "ok",
        ("fan_speed", "fan1"): 9000.0, ("fan_state", "fan1"): "critical",
        ("inlet_temperature", "inlet"): 23.5,
        ("psu_state", "psu0"): "ok", ("psu_input_power", "psu0"): 937.4,
    }  # fmt: skip
    bmcs.write_newer(folder, rpm=None)
    assert read(static)["fan_duty", "fan1"].value == 45.0


def test_a_chassis_without_thermal_and_power_is_silent_not_well(folder: Path, static: str) -> None:
    for path in folder.rglob("index.json"):
        path.unlink()
    bmcs.write(folder)
    with pytest.raises(BmcSilent):
        read(static)


def test_no_server_a_foreign_server_and_one_that_hangs_are_each_one_sentence(folder: Path, static: str) -> None:
    with pytest.raises(BmcSilent):
        read(f"http://127.0.0.1:{free_port()}", timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as hanging, pytest.raises(BmcSilent):
        read(f"http://127.0.0.1:{hanging.getsockname()[1]}", timeout_s=0.5)
    (folder / "index.json").write_text("{}")
    with pytest.raises(BmcSilent):
        read(static)
    bmcs.write(folder, fans=[bmcs.fan()])
    with pytest.raises(BmcSilent):
        read(static, limit_s=0.0)


@pytest.mark.parametrize("port", ["abc", "70000", "-1", "0"])
def test_a_port_that_is_none_is_refused_when_the_node_is_enrolled(port: str) -> None:
    with pytest.raises(BadBmc):
        parse_bmc({"url": f"https://10.0.0.7:{port}"})
    assert parse_bmc({}) is None


def test_the_password_comes_from_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bmc = Bmc(url="https://b", user="root", password_env="MUSTER_BMC_PASSWORD")
    with pytest.raises(BadBmc):
        login(bmc)
    monkeypatch.setenv("MUSTER_BMC_PASSWORD", "calvin")
    assert login(bmc) == Login("root", "calvin")
    assert "calvin" not in repr(login(bmc))
    monkeypatch.setenv("AIRFLOW_CONN_BMC", "https://admin:calvin@b:443")
    assert login(Bmc(url="https://B", connection="bmc")) == Login("admin", "calvin")
    with pytest.raises(BadBmc):
        login(Bmc(url="https://b", connection="absent"))


@pytest.mark.parametrize(
    "connection", ["postgres://airflow:calvin@db", "https://admin:calvin@", "https://a:calvin@b.c"]
)
def test_a_connection_of_another_host_gives_no_password(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", connection)
    with pytest.raises(BadBmc) as refused:
        login(Bmc(url="https://b", connection="other"))
    assert "calvin" not in str(refused.value)


@pytest.mark.parametrize("leads_away", ["redirect", "link"])
def test_a_bmc_sends_the_reader_to_no_other_address(leads_away: str) -> None:
    """A hostile BMC may answer with a redirect, or with links to an address of the controller's network."""
    with bmcs.answering(lambda path: (200, {}, b"{}")) as elsewhere:
        away = f"{elsewhere.url}/redfish/v1/Chassis"
        root = json.dumps({"Id": "R", "Name": "R", "RedfishVersion": "1.6.0", "Chassis": {"@odata.id": away}}).encode()
        reply = (307, {"Location": away}, b"") if leads_away == "redirect" else (200, {}, root)
        with bmcs.answering(lambda path: reply) as bmc, pytest.raises(BmcSilent):
            read(bmc.url)
        assert elsewhere.requests == []


def test_a_session_is_opened_once_and_ended() -> None:
    """By DMTF DSP0266 ("Redfish session login authentication"): 201 with X-Auth-Token and the session's Location."""
    opened = "/redfish/v1/SessionService/Sessions"

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path == opened:
            return 201, {"X-Auth-Token": "t", "Location": f"{opened}/7"}, b"{}"
        return 404, {}, b""

    with bmcs.answering(reply) as bmc, pytest.raises(BmcSilent):
        read(bmc.url, Login("root", "calvin"))
    assert bmc.requests == [f"POST {opened}", "/redfish/v1/", f"DELETE {opened}/7"]


def test_a_session_is_ended_when_the_time_for_reading_is_over() -> None:
    """Else each reading of a slow BMC leaves one open, until it takes no login any more."""
    given_up = threading.Event()

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/Sessions"):
            return 201, {"X-Auth-Token": "t", "Location": f"{path}/7"}, b"{}"
        if path == "/redfish/v1/":
            given_up.wait()
        return 200, {}, b"{}"

    with bmcs.answering(reply) as bmc:
        with pytest.raises(BmcSilent):
            read(bmc.url, Login("root", "calvin"), limit_s=3.0)
        given_up.set()
        assert bmc.requests[-1] == "DELETE /redfish/v1/SessionService/Sessions/7"


@pytest.mark.parametrize("location", ["https://bmc-7.example/sessions/7", "/sessions/7"])
def test_a_session_is_ended_at_this_bmc_by_whatever_name_it_calls_itself(tmp_path: Path, location: str) -> None:
    documents = bmcs.write(tmp_path, fans=[bmcs.fan()])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/Sessions"):
            return 201, {"X-Auth-Token": "t", "Location": location}, b"{}"
        return bmcs.stored(documents, path)

    with bmcs.answering(reply) as bmc:
        assert read(bmc.url, Login("root", "calvin"))
        assert bmc.requests[-1] == "DELETE /sessions/7"


@pytest.mark.parametrize("at", ["/redfish/v1/SessionService/Sessions/7", ""])
def test_a_session_without_a_location_is_ended_by_its_document_and_never_all_sessions(at: str) -> None:
    """DMTF DSP0266 wants ``Location`` and the document."""
    body = json.dumps({"@odata.id": at} if at else {}).encode()

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return (201, {"X-Auth-Token": "t"}, body) if path.endswith("/Sessions") else (404, {}, b"")

    with bmcs.answering(reply) as bmc, pytest.raises(BmcSilent):
        read(bmc.url, Login("root", "calvin"))
    assert bmc.requests[2:] == ([f"DELETE {at}"] if at else [])


def test_a_password_that_a_session_refuses_is_sent_no_second_time() -> None:
    """Each refused login counts, and several lock the account."""
    sessions, chassis = ({"@odata.id": f"/redfish/v1/{each}"} for each in ("SessionService/Sessions", "Chassis"))
    root = json.dumps({"Links": {"Sessions": sessions}, "Chassis": chassis}).encode()
    with bmcs.answering(lambda path: (401, {}, b"") if path.endswith("/Sessions") else (200, {}, root)) as bmc:
        with pytest.raises(BmcSilent):
            read(bmc.url, Login("root", "old"))
        assert bmc.requests == ["POST /redfish/v1/SessionService/Sessions", "/redfish/v1/"]


def test_one_redirect_within_the_bmc_is_followed(tmp_path: Path) -> None:
    """As to the same path with a slash; a document that leads on is in error."""
    documents = bmcs.write(tmp_path, fans=[bmcs.fan()])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return bmcs.stored(documents, path) if path.endswith("/") else (308, {"Location": f"{path}/"}, b"")

    with bmcs.answering(reply) as bmc:
        assert read(bmc.url)["fan_state", "fan0"].text == "ok"
    with bmcs.answering(lambda path: (308, {"Location": f"{path}x"}, b"")) as bmc:
        with pytest.raises(BmcSilent):
            read(bmc.url)
        assert bmc.requests == ["/redfish/v1/", "/redfish/v1/x"]


@pytest.mark.parametrize("link", ["http://[", "\ud800", "//elsewhere/redfish", "file:///etc/passwd"])
def test_a_link_that_is_no_path_of_this_bmc_is_refused(link: str) -> None:
    root = json.dumps({"Chassis": {"@odata.id": link}}).encode()
    with bmcs.answering(lambda path: (200, {}, root)) as bmc, pytest.raises(BmcSilent):
        read(bmc.url)
    assert bmc.requests == ["/redfish/v1/"]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


class Hostile:
    """Sends each connection ``head``, then ``piece`` again and again with a pause after each, until it is closed."""

    def __init__(self, head: bytes, piece: bytes, pause_s: float) -> None:
        self.sent = 0
        self._closed = threading.Event()
        self._reply = (head, piece, pause_s)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        head, piece, pause_s = self._reply
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(head)
                    while not self._closed.wait(pause_s):
                        connection.sendall(piece)
                        self.sent += len(piece)

    def close(self) -> None:
        self._closed.set()
        self._server.close()


@pytest.mark.parametrize("head", [b"", HEAD], ids=["header", "body"])
def test_a_bmc_that_drips_bytes_costs_no_more_than_the_limit(head: bytes) -> None:
    """Each byte comes within the timeout of a read; only the whole exchange's limit ends it."""
    bmc = Hostile(head, b" ", 0.1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, bmc.url, limit_s=1.0)
        done, _ = concurrent.futures.wait([reading], timeout=20)
        bmc.close()
        assert done, "it is read without a limit"
        assert isinstance(reading.exception(), BmcSilent)


def test_an_encoded_body_is_not_unpacked(tmp_path: Path) -> None:
    """HTTP lets a server encode what it was asked to send as it is, and a small body may unpack to any size."""
    documents = bmcs.write(tmp_path, fans=[bmcs.fan()])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Encoding": "gzip"}, gzip.compress(bmcs.stored(documents, path)[2])

    with bmcs.answering(reply) as bmc, pytest.raises(BmcSilent):
        read(bmc.url)
    assert bmc.requests == ["/redfish/v1/"]


def test_a_body_of_any_size_is_not_read_whole() -> None:
    bmc = Hostile(HEAD, bytes(65536), 0.0)
    with pytest.raises(BmcSilent):
        read(bmc.url, limit_s=10.0)
    bmc.close()
    assert bmc.sent < 4 * BYTES_MAX
