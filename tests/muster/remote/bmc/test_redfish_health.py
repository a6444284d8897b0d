"""A BMC read between tests: sushy-tools' emulators with logs and leak detectors, and BMCs that hang, lie or flood."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.remote.bmc import redfish_logs
from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.redfish import read_health
from muster.remote.bmc.redfish_client import BYTES_MAX
from muster.remote.bmc.redfish_logs import PAGES_MAX
from muster_criteria.health.bmc import NOTHING_KNOWN, Sensor, Shown, read
from muster_criteria.health.policy import Bmcs
from tests.support.servers import bmc as bmcs


def shown(url: str, limit_s: float = 120.0) -> Shown:
    return read_health(Bmc(url=url), Login(), timeout_s=60.0, limit_s=limit_s)


def test_openstacks_own_emulator_has_sensors_and_no_logs() -> None:
    with bmcs.emulator() as url:
        found = shown(url)
    assert not found.trouble
    assert found.entries == ()
    assert {(each.kind, each.state) for each in found.sensors} == {("fan", "ok"), ("inlet", None)}
    assert Sensor("inlet", "inlet", value=25.0, unit="°C") in found.sensors


def test_sensors_have_the_vendors_names_and_an_empty_bay_is_absent(tmp_path: Path) -> None:
    bmcs.write(
        tmp_path,
        fans=[bmcs.fan("Fan"), bmcs.fan("Fan", rpm=0, health="Critical")],
        temperatures=[bmcs.air(24), bmcs.air(36.5, "Riser Ambient")],
        supplies=[bmcs.supply("PSU 1"), bmcs.supply("PSU 2", None, None, state="Absent")],
    )
    with bmcs.static(tmp_path) as url:
        found = shown(url)
    assert found.sensors == (
        Sensor("fan", "fan 1/Fan", "ok", 8000, "RPM"), Sensor("fan", "fan 1/Fan #2", "critical", 0, "RPM"),
        Sensor("psu", "psu 1/PSU 1", "ok"), Sensor("psu", "psu 1/PSU 2", "absent"),
        Sensor("inlet", "inlet", value=36.5, unit="°C"),
    )  # fmt: skip


def test_the_logs_of_system_and_manager_and_a_leak_are_read(tmp_path: Path) -> None:
    bmcs.write(tmp_path, fans=[bmcs.fan()])
    bmcs.write_log(tmp_path, "Systems/1", "SEL", [
        bmcs.entry("1", "OK", "System boot"), bmcs.entry("2", "Critical", "Uncorrectable ECC", sensor="Memory"),
    ])  # fmt: skip
    bmcs.write_log(tmp_path, "Managers/bmc", "EventLog", [
        bmcs.entry("5", "Warning", "Fan speed low", origin="/redfish/v1/Chassis/1/Sensors/FAN%203"),
    ])  # fmt: skip
    bmcs.write_leak(tmp_path, "Critical")
    with bmcs.static(tmp_path) as url:
        found = shown(url)
    assert not found.trouble
    assert {(each.severity, each.text, each.origin) for each in found.entries} == {
        ("critical", "Uncorrectable ECC", "Memory"), ("warning", "Fan speed low", "FAN 3"),
    }  # fmt: skip
    assert Sensor("leak", "leak 1/Cold Plate", "critical") in found.sensors


def test_pages_and_entries_that_are_links_alone_are_followed() -> None:
    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        log = "/redfish/v1/Systems/1/LogServices/SEL/Entries"
        pages: dict[str, Any] = {
            "/redfish/v1/": {"Systems": link("/redfish/v1/Systems"), "Chassis": link("/redfish/v1/Chassis")},
            "/redfish/v1/Chassis": {"Members": []},
            "/redfish/v1/Systems": {"Members": [link("/redfish/v1/Systems/1")]},
            "/redfish/v1/Systems/1": {"LogServices": link("/l")},
            "/l": {"Members": [link("/l/SEL")]},
            "/l/SEL": {"Entries": link(log)},
            log: {"Members": [link("/e/1")], "Members@odata.nextLink": f"{log}?$skip=1"},
            f"{log}?$skip=1": {"Members": [bmcs.entry("2", "Critical", "two")], "Members@odata.nextLink": log},
            "/e/1": bmcs.entry("1", "Warning", "one"),
        }
        found = pages.get(path)
        return (200, {}, json.dumps(found).encode()) if found else (404, {}, b"")

    with bmcs.answering(reply) as server:
        found = shown(server.url)
    assert not found.trouble
    assert sorted(each.text for each in found.entries) == ["one", "two"]
    assert found.long == ()


@pytest.mark.parametrize(("step", "missed"), [(1, True), (-1, False)])
def test_a_log_without_end_is_named_if_its_newest_entries_come_last(step: int, missed: bool) -> None:
    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/e"):
            number = int(path.rpartition("=")[2])
            entry = bmcs.entry(str(number), "OK", "boot", created=f"2026-01-01T00:{number:06d}Z")
            following = f"/e?p={number + step}"
            body: Any = {"@odata.id": "/e?p=500", "Members@odata.nextLink": following, "Members": [entry]}
        else:
            body = {
                "/redfish/v1/": {"Managers": link("/m"), "Chassis": link("/c")}, "/m": {"Members": [link("/m/1")]},
                "/m/1": {"LogServices": link("/l")}, "/l": {"Members": [link("/l/1")]},
                "/l/1": {"Entries": link("/e?p=500")},
            }.get(path, {})  # fmt: skip
        return 200, {}, json.dumps(body).encode()

    with bmcs.answering(reply) as server:
        found = shown(server.url)
        assert sum(each.startswith("/e") for each in server.requests) == PAGES_MAX
    assert bool(found.long) is missed
    assert not found.trouble


def paged(first: int, last: int, size: int, *, links: bool = False) -> redfish_logs.Logs:
    """What is read of a log in pages of ``size`` entries or links, its newest entry last: each 1000th is critical."""
    entries = [
        bmcs.entry(str(each), "Critical" if each % 1000 == 0 else "OK", f"{each}", created=f"2026-01-01T00:{each:06d}Z")
        for each in range(first, last)
    ]
    pages: dict[str, Any] = {f"/e/{each['Id']}": each for each in entries}
    members = [link(path) for path in pages] if links else entries
    for at in range(0, len(entries), size):
        more = {"Members@odata.nextLink": f"/e?{at + size}"} if at + size < len(entries) else {}
        pages[f"/e?{at}"] = {"Members": members[at : at + size], **more}
    return only_log("/e?0", pages)


def only_log(entries: str, documents: dict[str, Any], service: str = "/l/1") -> redfish_logs.Logs:
    """What is read of a BMC whose only log has its entries at that path."""
    documents = documents | {
        "/": {"Managers": link("/m")}, "/m": {"Members": [link("/m/1")]}, "/m/1": {"LogServices": link("/l")},
        "/l": {"Members": [link(service)]}, service: {"Entries": link(entries)},
    }  # fmt: skip
    logs = redfish_logs.Logs()
    redfish_logs.read(documents["/"], documents.get, logs)
    return logs


def new_of(readings: Sequence[redfish_logs.Logs]) -> list[list[str]]:
    """The texts of what is new at each of the readings of one BMC."""
    known, texts = NOTHING_KNOWN, list[list[str]]()
    for logs in readings:
        entries = Shown((), tuple(logs.entries.values()), tuple(logs.read), tuple(logs.long))
        found, known = read(entries, known, Bmcs())
        texts.append([each.value for each in found if each.bad is None])
    return texts


def test_the_newest_of_a_log_in_pages_are_read_where_they_come_last() -> None:
    """As OpenBMC's: 1,000 entries a page. What was dropped at its older end makes nothing new."""
    assert new_of([paged(0, 5000, 1000), paged(0, 5001, 1000), paged(700, 5002, 1000)]) == [[], ["5000"], []]


@pytest.mark.parametrize(("spans", "new"), [
    ([(600, 1000), (600, 1001), (601, 1002)], [[], ["1000"], []]),
    ([(800, 1300), (801, 1301)], [[], []]),  # an old one comes to the newer end of its page
    ([(850, 1051), (851, 1051)], [[], []]),  # the last page has one entry, then is no more
])  # fmt: skip
def test_the_newest_links_of_pages_that_are_too_long_are_read(
    spans: list[tuple[int, int]], new: list[list[str]]
) -> None:
    assert new_of([paged(*span, redfish_logs.LINKS_MAX * 2, links=True) for span in spans]) == new


def test_a_log_without_times_is_left_after_so_many_entries() -> None:
    """The third page has no other."""
    entries = [bmcs.entry("1", "OK", "boot") | {"Created": None}] * (redfish_logs.ENTRIES_MAX // 2)
    pages = {f"/e{each}": {"Members": entries, "Members@odata.nextLink": f"/e{each + 1}"} for each in range(2)}
    assert only_log("/e0", {**pages, "/e0": {**pages["/e0"], "@odata.id": "/e0"}}).long == ["/e0"]


def test_a_log_whose_newest_are_not_reached_has_no_events() -> None:
    """Old entries come into what is read, as a full log drops its oldest."""
    longs = [paged(first, first + 30 * PAGES_MAX, 20) for first in (500, 700)]
    assert [each.long for each in longs] == [["/e?0"]] * 2
    assert new_of(longs) == [[], []]
    assert new_of([*longs, paged(900, 1010, 20)])[-1] == []


@pytest.mark.parametrize(("service", "entries"), [
    ("/l/Journal", 0), ("/l/Journal/", 0), ("/l/HostLogger", 0), ("/l/PostCodes", 0), ("/l/SEL", 1),
])  # fmt: skip
def test_what_programs_say_is_no_log_of_the_node(service: str, entries: int) -> None:
    """Its shape: bmcweb, manager_logservices_journal.hpp. A daemon of the BMC that crashed is critical there.

    The names of the others: systems_logservices_hostlogger.hpp and systems_logservices_postcodes.hpp.
    """
    crashed = bmcs.entry("7", "Critical", "Process 214 (ipmid) dumped core") | {"OemRecordFormat": "BMC Journal Entry"}
    assert len(only_log("/e", {"/e": {"Members": [crashed]}}, service).entries) == entries


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize(("times", "missed"), [("rising", False), ("falling", False), ("", True)])
def test_of_a_log_of_too_many_entries_the_newest_are_read(links: bool, times: str, missed: bool) -> None:
    number = (redfish_logs.LINKS_MAX if links else redfish_logs.ENTRIES_MAX) + 50
    newest = 0 if times == "falling" else number - 1
    entries = []
    for place in range(number):
        age = number - place if times == "rising" else place
        entry = bmcs.entry(
            str(place), "Critical" if place == newest else "OK", "ecc", created=f"2026-01-01T00:{number - age:06d}Z"
        )
        entries.append(entry if times else entry | {"Created": None})
    members = [link(f"/e/{each['Id']}") for each in entries] if links else entries
    logs = only_log("/e", {"/e": {"Members": members}, **{f"/e/{each['Id']}": each for each in entries}})
    assert [each.id for each in logs.entries.values()] == ([] if missed else [str(newest)])
    assert logs.long == (["/e"] if missed else [])


def one_entry(entry: dict[str, Any]) -> redfish_logs.Logs:
    """What is read of a BMC whose only log has that entry."""
    return only_log("/e", {"/e": {"Members": [entry]}})


@pytest.mark.parametrize("vendor", ["Hpe", "Hp", ""])
def test_an_event_that_a_log_counts_up_in_the_entry_of_its_first_is_new_again(vendor: str) -> None:
    """As HPE's logs do it: ``Oem.Hpe.Count`` and ``Updated``."""
    first = bmcs.entry("12", "Critical", "Uncorrectable ECC", created="2026-01-01T00:00:00Z")
    readings = []
    for month in (1, 1, 2, 2, 5):
        at = f"2026-{month:02d}-01T00:00:00Z"
        changed = {"Oem": {vendor: {"Count": month, "Updated": at}}} if vendor else {"Modified": at}
        readings.append(one_entry(first | changed))
    assert [len(new) for new in new_of(readings)] == [0, 0, 1, 0, 1]


def test_an_entry_that_a_person_marks_as_resolved_is_the_same() -> None:
    """As OpenBMC's: its ``Modified`` is that of the mark."""
    entry = bmcs.entry("12", "Critical", "Uncorrectable ECC")
    fresh, resolved = {"Modified": entry["Created"]}, {"Modified": "2026-12-01T00:00:00Z", "Resolved": True}
    keys = {found.key for each in (fresh, resolved) for found in one_entry(entry | each).entries.values()}
    assert len(keys) == 1


def test_a_repeated_entry_that_is_marked_as_resolved_is_not_new() -> None:
    entry = bmcs.entry("12", "Critical", "Uncorrectable ECC")
    repeated, resolved = {"Modified": "2026-12-01T00:00:00Z"}, {"Modified": "2026-12-02T00:00:00Z", "Resolved": True}
    changes = ({}, repeated, repeated | {"Resolved": True}, resolved)
    readings = [one_entry(entry | {"Severity": "OK"}), *(one_entry(entry | changed) for changed in changes)]
    assert [len(new) for new in new_of(readings)] == [0, 1, 1, 0, 0]


def test_a_log_that_is_not_read_in_time_costs_no_sensor(tmp_path: Path) -> None:
    """The BMC hangs at its log: the port accepts, and nothing is sent."""
    chassis = bmcs.write(tmp_path, fans=[bmcs.fan()])
    hang = threading.Event()

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith("/redfish/v1/Systems"):
            hang.wait(20)
        status, headers, body = bmcs.stored(chassis, path)
        if path == "/redfish/v1/":
            body = json.dumps(json.loads(body) | {"Systems": link("/redfish/v1/Systems")}).encode()
        return status, headers, body

    with bmcs.answering(reply) as server:
        found = shown(server.url, limit_s=1.0)
        hang.set()
    assert [each.device for each in found.sensors] == ["fan 1/Fan 1"]
    assert "longer than 1 s" in found.trouble


def test_a_chassis_in_error_costs_no_log(tmp_path: Path) -> None:
    """As of a BMC whose switch board has lost its firmware: a 500 for that chassis alone."""
    chassis = bmcs.write(tmp_path, fans=[bmcs.fan()])
    bmcs.write_log(tmp_path, "Systems/1", "SEL", [bmcs.entry("2", "Critical", "Uncorrectable ECC", sensor="Memory")])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith(bmcs.CHASSIS):
            return 500, {}, b""
        return bmcs.stored(chassis, path)

    with bmcs.answering(reply) as server:
        found = shown(server.url)
    assert [each.text for each in found.entries] == ["Uncorrectable ECC"]
    assert [each.log for each in found.entries] == list(found.logs)
    assert f"it answers 500 Internal Server Error to {bmcs.CHASSIS}" in found.trouble


@pytest.mark.parametrize("status", [403, 500])
def test_a_log_of_which_a_document_is_refused_is_not_read_whole_and_the_others_are(tmp_path: Path, status: int) -> None:
    """In a session "forbidden" is said of that document alone: a privilege or a licence is missing for it."""
    documents = bmcs.write(tmp_path, fans=[bmcs.fan()])
    bmcs.write_log(tmp_path, "Systems/1", "SEL", [bmcs.entry("2", "Critical", "Uncorrectable ECC")])
    bmcs.write_log(tmp_path, "Managers/bmc", "Audit", [bmcs.entry("5", "Warning", "Login failed")])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path.endswith("/Sessions"):
            return 201, {"X-Auth-Token": "t"}, b"{}"
        if path.endswith("/Audit/Entries"):
            return status, {}, b""
        return bmcs.stored(documents, path)

    with bmcs.answering(reply) as server:
        found = read_health(Bmc(url=server.url), Login("root", "calvin"), timeout_s=60.0, limit_s=120.0)
    assert [each.device for each in found.sensors] == ["fan 1/Fan 1"]
    assert [each.text for each in found.entries] == ["Uncorrectable ECC"]
    assert [each.log for each in found.entries] == list(found.logs)
    assert str(int(status)) in found.trouble


@pytest.mark.parametrize("status", [401, 403, 429])
def test_a_bmc_that_refuses_the_login_is_asked_no_second_document(status: int) -> None:
    """Each refused request counts as a failed login, and several lock the account."""
    kinds = {kind: link(f"/redfish/v1/{kind}") for kind in ("Chassis", "Systems", "Managers")}

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, json.dumps(kinds).encode()) if path == "/redfish/v1/" else (status, {}, b"")

    with bmcs.answering(reply) as server:
        found = read_health(Bmc(url=server.url), Login("root", "wrong"), timeout_s=60.0, limit_s=120.0)
        documents = [path for path in server.requests if path != "/redfish/v1/"]
    assert documents == ["POST /redfish/v1/SessionService/Sessions", "/redfish/v1/Chassis"]
    assert str(int(status)) in found.trouble


def test_a_document_that_does_not_come_in_time_costs_no_log(tmp_path: Path) -> None:
    """As of a baseboard of GPUs that the BMC of a DGX reads while it is asked."""
    chassis, hang = bmcs.write(tmp_path, fans=[bmcs.fan()]), threading.Event()
    bmcs.write_log(tmp_path, "Systems/1", "SEL", [bmcs.entry("2", "Critical", "Uncorrectable ECC")])

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path == bmcs.CHASSIS:
            hang.wait()
        return bmcs.stored(chassis, path)

    with bmcs.answering(reply) as server:
        found = read_health(Bmc(url=server.url), Login(), timeout_s=2.0, limit_s=120.0)
        hang.set()
    assert [each.log for each in found.entries] == list(found.logs)
    assert bmcs.CHASSIS in found.trouble


def test_a_document_in_error_is_requested_once() -> None:
    root = {kind: link("/redfish/v1/All") for kind in ("Chassis", "Systems", "Managers")}

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, json.dumps(root).encode()) if path == "/redfish/v1/" else (500, {}, b"")

    with bmcs.answering(reply) as server:
        assert shown(server.url).trouble
        assert server.requests == ["/redfish/v1/", "/redfish/v1/All"]


def test_a_port_that_accepts_and_never_answers_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = shown(f"http://127.0.0.1:{server.getsockname()[1]}", limit_s=1.0)
    assert found.sensors == ()
    assert "longer than 1 s" in found.trouble


@pytest.mark.parametrize(
    "body",
    [b"\0" * (BYTES_MAX + 1), b"[" * 200_000, b"{}", b"null", b'{"Chassis": 7, "Systems": [1]}',
     b'{"Chassis": {"@odata.id": "//x/"}}'],
    ids=["oversized", "nested", "empty", "null", "no links", "another address"],
)  # fmt: skip
def test_a_bmc_that_lies_or_floods_is_a_sentence_and_nothing_else(body: bytes) -> None:
    with bmcs.answering(lambda _: (200, {}, body)) as server:
        found = shown(server.url)
    assert found.trouble
    assert found.sensors == ()
    assert found.entries == ()


def test_documents_that_lead_to_themselves_end() -> None:
    itself = dict.fromkeys(("Systems", "LogServices", "Entries"), link("/s"))
    body = {**itself, "Members": [link("/s")], "Members@odata.nextLink": "/s", "Severity": {}, "Links": []}
    with bmcs.answering(lambda _: (200, {}, json.dumps(body).encode())) as server:
        found = shown(server.url)
        assert len(server.requests) < 10
    assert dataclasses.replace(found, logs=()) == Shown()


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}
