"""No source hides what it reports later, by whatever names it gives to what it reports first."""

from __future__ import annotations

import pytest

from muster import store
from muster.api import report_forms
from muster.judging import policies
from muster.model.health import Report
from muster.store.fleet import shares
from muster.store.fleet.shares import OTHERS
from tests.muster import fleet

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]

NODE, SOURCE = "gpu-0001", "alerts"


def report(check: str, boot: str) -> None:
    (found,) = report_forms.read("muster", {"node": NODE, "check": check, "boot_id": boot})
    if not isinstance(found, str):
        store.health.record([Report(NODE, SOURCE, (found.seen_of(NODE),), boot)], policies.health())


@pytest.mark.parametrize("first", [OTHERS, OTHERS.lower()])
def test_no_source_names_what_finds_no_room(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """What has that name is pushed out by nothing."""
    monkeypatch.setattr(shares, "ROWS_MAX", 5)
    store.nodes.add(fleet.new_node())
    for number in range(5):
        for name in (number, SOURCE):
            report(f"{first}/{name}", f"b{number}")
    report("xid/79", "b9")
    assert "xid/79" in {each.check for each in store.health.of_node(NODE)}
