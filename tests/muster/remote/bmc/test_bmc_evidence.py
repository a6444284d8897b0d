"""Evidence of a BMC: its logs whole, in whatever form they come, and what is left out is said."""

from __future__ import annotations

import datetime
import json
import threading
from typing import Any

import pytest

from muster.model.nodes import Node
from muster.model.states import State
from muster.remote import evidence
from muster.remote.bmc import redfish_logs
from muster.remote.evidence import Piece
from tests.support.servers import bmc as bmcs

LOG = "/redfish/v1/Systems/1/LogServices/IML/Entries"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def documents(number: int, first: int, *, links: bool) -> dict[str, Any]:
    """A system with one log of ``number`` entries: pages of ``first`` and the rest, of whole entries or of links."""
    entries = {
        f"{LOG}/{each}": bmcs.entry(str(each), "Critical", f"fault {each}", created=f"2026-01-01T00:{each:06}Z")
        for each in range(number)
    }
    members = [link(path) if links else entry for path, entry in entries.items()]
    beginning = {"Members": members[:first], "Members@odata.nextLink": f"{LOG}?$skip={first}"}
    return {
        "/redfish/v1/Systems": {"Members": [link("/redfish/v1/Systems/1")]},
        "/redfish/v1/Systems/1": {"LogServices": link("/redfish/v1/Systems/1/LogServices")},
        "/redfish/v1/Systems/1/LogServices": {"Members": [link("/redfish/v1/Systems/1/LogServices/IML")]},
        "/redfish/v1/Systems/1/LogServices/IML": {"Entries": link(LOG)},
        LOG: beginning if number > first else {"Members": members},
        f"{LOG}?$skip={first}": {"Members": members[first:]},
        **entries,
    }  # fmt: skip


def taken(known: dict[str, Any], error: str = "", slow: str = "", serial: str = "") -> Piece:
    """``error``: the path of a document for which the BMC has an error; ``slow``: of one that takes all the
    time that there is.
    """
    over = threading.Event()

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        if path == error:
            return 500, {}, b""
        if path == slow:
            over.wait()
        return (200, {}, json.dumps(known[path]).encode()) if path in known else (404, {}, b"")

    with bmcs.answering(reply) as server:
        node = Node(
            "n1", "n1.example", 22, "root", "", "h100-sxm-8", State.QUARANTINE, {}, "", "", "", {}, simulated=False,
            added_at=datetime.datetime.now(datetime.UTC), bmc={"url": server.url},
        )  # fmt: skip
        paths = ["/redfish/v1/UpdateService/FirmwareInventory", "/redfish/v1/Systems"]
        (piece,) = evidence.of_bmc(node, paths, serial)
        over.set()
    return piece


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("first", [2, 9])
def test_a_log_is_taken_with_its_text_from_links_and_further_pages(links: bool, first: int) -> None:
    piece = taken(documents(5, first, links=links))
    assert piece.why == ""
    assert all(f"fault {each}" in piece.content.decode() for each in range(5))


def test_a_document_in_error_costs_no_other() -> None:
    """As of a baseboard of GPUs, a second system, that does not answer the BMC."""
    board = "/redfish/v1/Systems/HGX_Baseboard_0"
    known = documents(1, 1, links=False)
    known["/redfish/v1/Systems"]["Members"].insert(0, link(board))
    piece = taken(known, error=board)
    system = "/redfish/v1/Systems/1"
    assert set(json.loads(piece.content)) == {"/redfish/v1/Systems", system, f"{system}/LogServices/IML", LOG}
    assert board in piece.why


@pytest.mark.parametrize("part", [
    "UpdateService/FirmwareInventory", "Systems/1/LogServices/Journal/Entries",
    "Systems/1/LogServices/HostLogger/Entries",
])  # fmt: skip
def test_what_takes_all_the_time_is_taken_after_the_logs(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """As the firmware of a DGX H100 (two to three minutes), and OpenBMC's journal and record of the host's console."""
    monkeypatch.setattr(evidence, "BMC_LIMIT_S", 4.0)
    known, slow = documents(1, 1, links=False), f"/redfish/v1/{part}"
    if (journal := slow.removesuffix("/Entries")) != slow:
        known["/redfish/v1/Systems/1/LogServices"]["Members"].insert(0, link(journal))
        known[journal] = {"Entries": link(slow)}
    piece = taken(known, slow=slow)
    assert "fault 0" in piece.content.decode()
    assert slow in piece.why


@pytest.mark.parametrize("serial", ["", "S1", "S2"])
def test_nothing_is_taken_of_another_machines_bmc(serial: str) -> None:
    known = documents(1, 1, links=False) | {"/redfish/v1/": {"Systems": link("/redfish/v1/Systems")}}
    known["/redfish/v1/Systems/1"]["SerialNumber"] = "S1"
    piece = taken(known, serial=serial)
    assert bool(piece.content) is (serial != "S2")
    assert ("S1" in piece.why) is (serial == "S2")


def test_what_is_left_out_of_a_long_log_is_said() -> None:
    number = redfish_logs.LINKS_MAX + 7
    piece = taken(documents(number, number, links=True))
    assert f"7 of the {number} entries of {LOG} were left out" in piece.why
    assert f"fault {number - 1}" in piece.content.decode()


def test_what_is_left_out_of_too_many_documents_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "DOCUMENTS_MAX", 2)
    assert (
        "/redfish/v1/Systems/1/LogServices/IML and what follows was left out" in taken(documents(1, 1, links=True)).why
    )
