"""The room of a source on a node: it fills no table, pushes out nothing that is due, hides nothing it reports later."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.api import report_forms
from muster.judging import policies
from muster.model.health import Report
from muster.store.fleet import shares
from muster.store.fleet.shares import EVENTS_MAX, OTHERS
from muster_criteria.health.readings import Reading
from tests.muster import fleet

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]

NODE, SOURCE = "gpu-0001", "alerts"


@pytest.fixture(autouse=True)
def enrolled(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node())


def observe(*seen: Reading, boot: str = "b1", source: str = "sweep", minutes: float = 0) -> None:
    at = store.clock.now() + datetime.timedelta(minutes=minutes)
    store.health.record([Report(NODE, source, seen, boot)], policies.health(), at)


def checks() -> dict[str, int]:
    return {each.check: each.count for each in store.health.of_node(NODE, limit=200)}


def report(check: str, boot: str) -> None:
    (found,) = report_forms.read("muster", {"node": NODE, "check": check, "boot_id": boot})
    if not isinstance(found, str):
        store.health.record([Report(NODE, SOURCE, (found.seen_of(NODE),), boot)], policies.health())


@pytest.mark.parametrize("first", [OTHERS, OTHERS.lower()])
def test_no_source_names_what_finds_no_room(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """What has that name is pushed out by nothing."""
    monkeypatch.setattr(shares, "ROWS_MAX", 5)
    for number in range(5):
        for name in (number, SOURCE):
            report(f"{first}/{name}", f"b{number}")
    report("xid/79", "b9")
    assert "xid/79" in checks()


def test_one_source_fills_no_table_whatever_boots_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "ROWS_MAX", 100)
    observe(Reading("gpu_lost", "gpu3", bad=True))
    for start in range(0, 160, 20):
        alerts = [Reading(f"alert/a{each}") for each in range(start, start + 20)]
        observe(*alerts, boot=f"b{start}", source=SOURCE, minutes=start)
    found = checks()
    assert len(found) == 100 + 1
    assert {"gpu_lost", "alert/a159"} <= found.keys()  # another source's stay, and what is new comes in
    assert "alert/a0" not in found
    events = [event for event in store.nodes.events(NODE) if event.actor == "health"]
    assert len(events) == 1 + EVENTS_MAX + 1
    assert SOURCE in events[-1].reason


def test_what_is_due_is_not_pushed_out_and_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "ROWS_MAX", 5)
    due = [Reading(f"xid/{79 + each}", f"gpu{each}", severity="ISOLATE") for each in range(5)]
    observe(*due)
    observe(*(Reading(f"alert/a{each}") for each in range(30)), boot="b2", minutes=60)
    assert checks() == {**{each.check: 1 for each in due}, f"{OTHERS}/sweep": 30}
    observe(Reading("alert/new"), boot="b3", minutes=60 * 24 * 40)
    assert "alert/new" in checks()  # what was due a month ago went
