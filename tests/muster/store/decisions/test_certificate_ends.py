"""When a certificate ends, and which tests renew it."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.admission.entry import move
from muster.model.stages import STAGES
from muster.model.states import State
from muster.store.decisions import certificates
from tests.muster import fleet
from tests.muster.store.decisions.test_certificates import NODE, in_production, made_in_production

pytestmark = pytest.mark.usefixtures("sqlite_db")


def test_a_certificate_rests_on_the_oldest_of_the_latest_passes() -> None:
    """A test of some stages is no test of the node since then: what waits for one, as muster:verify, waits on."""
    first = in_production()
    fleet.qualify(run_id="some", stages=("intake", "thermal"))
    assert store.certificates.of_node(NODE) == [first]
    fleet.qualify(run_id="all")
    every = store.certificates.newest(NODE)
    assert first.tested_since
    assert every
    assert every.tested_since
    assert every.tested_since > first.tested_since


def test_short_tests_do_not_put_off_the_end_of_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CERTIFICATE_DAYS", "30")
    start = store.clock.now()

    def test(day: int, *stages: str) -> tuple[int, bool]:
        """How many certificates it has after a test on that day, and whether the newest is valid."""
        monkeypatch.setattr(certificates.access, "now", lambda: start + datetime.timedelta(days=day))
        fleet.qualify(run_id=f"on day {day}", stages=stages or STAGES)
        return len(store.certificates.of_node(NODE)), not store.certificates.uncertified()

    short = ("intake", "performance")
    made_in_production()
    assert [test(10), test(12, *short), test(38, *short)] == [(2, True), (2, True), (2, True)]
    newest = store.certificates.newest(NODE)
    assert newest
    assert newest.expires_at == start + datetime.timedelta(days=40)
    assert [test(41, *short), test(42), test(43, *short)] == [(2, False), (3, True), (3, True)]


def test_a_test_puts_no_shorter_certificate_in_the_place_of_a_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    start = store.clock.now()
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    monkeypatch.setattr(certificates.access, "now", lambda: start + datetime.timedelta(days=5))
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    newest = store.certificates.newest(NODE)
    monkeypatch.setattr(certificates.access, "now", lambda: start + datetime.timedelta(days=6))
    fleet.qualify(run_id="intake alone", stages=("intake",))
    assert store.certificates.newest(NODE) == newest
