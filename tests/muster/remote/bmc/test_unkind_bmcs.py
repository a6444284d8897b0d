"""BMCs as unkind as real ones: documents in error, sessions that end, collections in pages, another machine's BMC."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from typing import Any

import pytest

from muster.remote.bmc.bmc import Bmc, Login
from muster.remote.bmc.redfish import CHASSIS_BYTES_MAX, read_chassis, read_health
from muster_criteria.chassis import Chassis, merged
from muster_criteria.health.bmc import Shown
from tests.support.servers import bmc as bmcs

ROOT, CHASSIS = "/redfish/v1/", "/redfish/v1/Chassis"
SESSIONS = "/redfish/v1/SessionService/Sessions"
SERIAL = "S1"

Documents = dict[str, Any]


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def machine(serial: str = SERIAL) -> Documents:
    """Three chassis with parts of the same names, as the boards of a machine with HGX have, and one log."""
    documents: Documents = {
        ROOT: {"Chassis": link(CHASSIS), "Systems": link("/systems")},
        "/systems": {"Members": [link("/systems/1")]},
        "/systems/1": {"SerialNumber": serial, "LogServices": link("/logs")},
        "/logs": {"Members": [link("/logs/1"), link("/logs/2")]},
        **{f"/logs/{each}": {"Entries": link(f"/logs/{each}/e")} for each in (1, 2)},
        **{f"/logs/{each}/e": {"Members": [bmcs.entry("1", "Critical", f"log {each}")]} for each in (1, 2)},
        CHASSIS: {"Members": [link(f"{CHASSIS}/{name}") for name in "ABC"]},
    }
    for at in (f"{CHASSIS}/{name}" for name in "ABC"):
        documents |= {
            at: {"ThermalSubsystem": link(f"{at}/T"), "PowerSubsystem": link(f"{at}/P")},
            f"{at}/T": {"Fans": link(f"{at}/T/F")}, f"{at}/P": {"PowerSupplies": link(f"{at}/P/S")},
            f"{at}/T/F": {"Members": [link(f"{at}/T/F/{number}") for number in (1, 2)]},
            f"{at}/P/S": {"Members": [link(f"{at}/P/S/1")]},
            f"{at}/P/S/1": {"Name": "PSU 1", "Status": {"Health": "OK"}},
        }  # fmt: skip
        for number in (1, 2):
            documents[f"{at}/T/F/{number}"] = {
                "Name": f"Fan {number}", "SpeedPercent": {"SpeedRPM": 9000}, "Status": {"Health": "OK"}
            }  # fmt: skip
    return documents


@dataclasses.dataclass
class Server:
    """A BMC with these documents. ``errors``: the status of those in error; ``ends``: of how many documents the first
    session lasts; ``hangs``: the path of a document that is never sent.
    """

    documents: Documents
    errors: dict[str, int] = dataclasses.field(default_factory=dict)
    ends: int = 1_000_000
    hangs: str = ""
    logins: int = 0
    asked: int = 0
    over: threading.Event = dataclasses.field(default_factory=threading.Event)

    def reply(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path == SESSIONS:
            self.logins += 1
            return 201, {"X-Auth-Token": str(self.logins), "Location": f"{SESSIONS}/{self.logins}"}, b"{}"
        self.asked += 1
        if path == self.hangs:
            self.over.wait()
        if self.logins == 1 and self.asked > self.ends:
            return 401, {}, b""
        if path in self.errors:
            return self.errors[path], {}, b""
        found = self.documents.get(path)
        return (404, {}, b"") if found is None else (200, {}, json.dumps(found).encode())


def looked(server: Server, *, serial: str = "", limit_s: float = 60.0) -> tuple[Chassis, Shown, list[str]]:
    """What both readers show, the first with its requests."""
    with bmcs.answering(server.reply) as bmc:
        reader = Bmc(url=bmc.url), Login("root", "calvin")
        chassis = read_chassis(*reader, serial=serial, timeout_s=30.0, limit_s=limit_s)
        requests, server.logins, server.asked = list(bmc.requests), 0, 0
        health = read_health(*reader, serial=serial, timeout_s=30.0, limit_s=limit_s)
        server.over.set()
    return chassis, health, requests


def states(chassis: Chassis) -> dict[tuple[str, str], str | float | None]:
    return {(each.metric, each.note): each.value if each.text is None else each.text for each in chassis.readings}


WHOLE = machine()
ALONE = WHOLE | {CHASSIS: {"Members": [link(f"{CHASSIS}/A")]}}
BELOW = {name: sorted(path for path in WHOLE if path.startswith(f"{CHASSIS}/{name}")) for name in "AB"}


@pytest.mark.parametrize("status", [401, 500])
def test_a_chassis_in_error_costs_itself_alone_and_is_said(status: int) -> None:
    """500: a board that lost its firmware; 401: of one document in a session, for a privilege or a licence."""
    whole, well, _ = looked(Server(WHOLE))
    assert (whole.trouble, well.trouble, len(well.logs)) == ("", "", 2)
    for path in BELOW["B"]:
        chassis, health, _ = looked(Server(WHOLE, errors={path: status}))
        assert f"{status} " in chassis.trouble
        assert path in chassis.trouble
        assert chassis.trouble.partition(" could ")[2] == health.trouble.partition(" could ")[2]
        others = {key: value for key, value in states(whole).items() if not key[1].startswith("B/")}
        assert others.items() <= states(chassis).items()
        assert {each for each in well.sensors if " B/" not in each.device} <= set(health.sensors)
        assert health.logs == well.logs


def test_a_fan_that_stands_still_is_found_whatever_other_document_is_in_error() -> None:
    fan = f"{CHASSIS}/B/T/F/2"
    broken = WHOLE | {fan: WHOLE[fan] | {"SpeedPercent": {"SpeedRPM": 0}}}
    for path in BELOW["A"]:
        assert states(looked(Server(broken, errors={path: 500}))[0])["fan_speed", "B/Fan 2"] == 0


@pytest.mark.parametrize("after", range(1, 22, 7))
def test_a_session_that_ends_is_opened_once_more(after: int) -> None:
    """As of a BMC that was restarted, or ends a session by its time (DMTF DSP0266: 401)."""
    whole, well, _ = looked(Server(WHOLE))
    server = Server(WHOLE, ends=after)
    chassis, health, requests = looked(server)
    assert (chassis, health) == (whole, well)
    assert requests.count(f"POST {SESSIONS}") == 2
    assert {f"DELETE {SESSIONS}/1", f"DELETE {SESSIONS}/2"} <= set(requests)


def test_what_was_read_in_time_stays() -> None:
    chassis, health, _ = looked(Server(WHOLE, hangs=f"{CHASSIS}/B"), limit_s=3.0)
    for trouble in (chassis.trouble, health.trouble):
        assert f"{CHASSIS}/B" in trouble
    assert {name.partition("/")[0] for _, name in states(chassis)} == {"A"}
    assert len(health.sensors) == 3


def paged(documents: Documents, size: int) -> Documents:
    """The same with every collection in pages of ``size``, as DMTF DSP0266 lets a BMC divide them."""
    found: Documents = {}
    for path, document in documents.items():
        members = document.get("Members", [])
        for at in range(0, max(len(members), 1), size):
            more = {"Members@odata.nextLink": f"{path}?$skip={at + size}"} if at + size < len(members) else {}
            page = {"Members": members[at : at + size], **more} if members else {}
            found[f"{path}?$skip={at}" if at else path] = document | page
    return found


def test_collections_in_pages_are_read_whole() -> None:
    assert looked(Server(paged(WHOLE, 1)))[:2] == looked(Server(WHOLE))[:2]


def test_pages_without_end_are_left_and_cost_nothing_else() -> None:
    endless = itertools.count()
    fans = f"{CHASSIS}/A/T/F"

    class Endless(Server):
        def reply(self, path: str) -> tuple[int, dict[str, str], bytes]:
            if path.startswith(fans) and "?" in path:
                page = {"Members": [], "Members@odata.nextLink": f"{fans}?{next(endless)}"}
                return 200, {}, json.dumps(page).encode()
            return super().reply(path)

    documents = WHOLE | {fans: WHOLE[fans] | {"Members@odata.nextLink": f"{fans}?first"}}
    assert states(looked(Endless(documents))[0]) == states(looked(Server(WHOLE))[0])
    assert next(endless) < 1000


@pytest.mark.parametrize(("recorded", "systems", "read"), [
    (SERIAL, [{"SerialNumber": "s1 "}], True),
    (SERIAL, [{"SerialNumber": "S2"}], False),
    (SERIAL, [{"SerialNumber": "CN0001", "SKU": SERIAL}], True),  # Dell: its SKU is what DMI reports
    (SERIAL, [{"SerialNumber": "165"}, {"SerialNumber": SERIAL}], True),  # DGX H100: the HGX baseboard comes first
    (SERIAL, [{"SerialNumber": "165"}, {"SerialNumber": "S2"}], False),
    (SERIAL, [{"SerialNumber": "165"}, {"SerialNumber": None}], True),  # which is the machine is not known
    (SERIAL, [{"SerialNumber": "165"}, None], True),
    (SERIAL, [{"SKU": "P1"}], True),
    (SERIAL, [], True),
    *((SERIAL, [{"SerialNumber": filler}], True) for filler in ("N/A", "0123456789", "Default string", "   ", "0000")),
    (SERIAL, [{"SerialNumber": "N/A", "SKU": "P1"}], True),
    (SERIAL, [{"SerialNumber": "N/A"}, {"SerialNumber": "S2"}], True),
    ("", [{"SerialNumber": "S2"}], True),
])  # fmt: skip
def test_another_machines_bmc_is_not_read_where_both_serials_are_known(
    recorded: str, systems: list[Any], read: bool
) -> None:
    documents = WHOLE | {
        "/systems": {"Members": [link(f"/systems/{number}") for number in range(len(systems))]},
        **{f"/systems/{number}": system for number, system in enumerate(systems)},
    }
    errors = {path: 500 for path, document in documents.items() if document is None}
    chassis, health, _ = looked(Server(documents, errors), serial=recorded)
    assert bool(chassis.readings) is read
    assert bool(chassis.trouble) is not read
    assert bool(health.sensors) is read
    if not read:
        assert "serial" in chassis.trouble
        assert chassis.trouble == health.trouble
        assert health.entries == ()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_systems_that_are_refused_cost_no_reading(status: int) -> None:
    """Without a session, 401 and 403 are otherwise the end of a reading."""
    with bmcs.answering(Server(WHOLE, errors={"/systems": status}).reply) as bmc:
        found = read_chassis(Bmc(url=bmc.url), Login(), serial=SERIAL)
    assert found.trouble == ""
    assert len(states(found)) == len(states(looked(Server(WHOLE))[0]))


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_part_is_the_same_however_many_chassis_answer(meanwhile: bool, turned: bool) -> None:
    """As when the boards of GPUs get power after the machine, or page two of the chassis is refused."""
    (one, one_health, _), (all_three, health, _) = looked(Server(ALONE)), looked(Server(WHOLE))
    before, after = (all_three, one) if turned else (one, all_three)
    found = states(merged(before, after, meanwhile=meanwhile))
    assert found.keys() == states(all_three).keys()
    assert {found[key] for key in states(one) if key[0].endswith("_state")} == {"ok"}
    assert {each.device for each in one_health.sensors} <= {each.device for each in health.sensors}


def test_some_full_logs_are_read_whole_and_a_test_reads_no_more_than_it_needs() -> None:
    entries = [bmcs.entry(str(number), "OK", "x" * 800) for number in range(2000)]
    logs = {f"/logs/{each}": {"Entries": link(f"/logs/{each}/e")} for each in range(5)}
    full = WHOLE | logs | {f"{path}/e": {"Members": entries} for path in logs}
    full["/logs"] = {"Members": [link(path) for path in logs]}
    with bmcs.answering(Server(full).reply) as bmc:
        shown = read_health(Bmc(url=bmc.url), Login())
    assert (shown.trouble, len(shown.logs)) == ("", 5)
    huge = WHOLE | {f"{CHASSIS}/A": WHOLE[f"{CHASSIS}/A"] | {"x": "x" * CHASSIS_BYTES_MAX}}
    with bmcs.answering(Server(huge).reply) as bmc:
        assert read_chassis(Bmc(url=bmc.url), Login()).trouble
