"""When a certificate ends, and which tests renew it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest

from muster import store
from muster.admission.entry import move
from muster.errors import NoPerson
from muster.model.stages import STAGES
from muster.model.states import State
from muster.store.database import access
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from muster.store.decisions import certificates
from muster_criteria.model import Coverage, Finding, Gap, Lack, Severity, Verdict
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


@pytest.mark.parametrize(
    ("findings", "state"), [((), State.PRODUCTION), ((fleet.finding(severity=Severity.WARNING),), State.QUALIFIED)]
)
def test_a_revalidation_that_could_not_judge_all_ends_no_service_and_renews_no_certificate(
    findings: tuple[Finding, ...], state: State
) -> None:
    first = in_production()
    lease = fleet.begin(run_id="idle")
    for stage in STAGES:
        unjudged = {"verdict": Verdict.PROVISIONAL, "coverage": Coverage(2, 2, 1), "findings": findings}
        fleet.do_stage(lease, stage, **unjudged if stage == "thermal" else {})
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "It has no limit.")
    store.leases.release(lease.key, "over")
    assert store.nodes.get(NODE).state is state
    found = store.certificates.newest(NODE)
    assert found
    assert (found.id, bool(found.revoked)) == (first.id, state is not State.PRODUCTION)


def provisional(
    run_id: str,
    stage: str,
    stages: Sequence[str] = STAGES,
    devices: Sequence[str] = ("gpu0",),
    level: str = "short",
) -> None:
    """A run that could not judge all of ``stage``, on these devices, and found nothing."""
    lease = fleet.begin(run_id=run_id, level=level, required_stages=stages)
    gaps = tuple(Gap(Lack.UNJUDGED, "no limit", "peak_c", device) for device in devices)
    for each in stages:
        unjudged = {"verdict": Verdict.PROVISIONAL, "coverage": Coverage(9, 9, 9 - len(gaps), unjudged=gaps)}
        fleet.do_stage(lease, each, level=level, **unjudged if each == stage else {})
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "It has no limit.")
    store.leases.release(lease.key, "over")


@pytest.mark.parametrize(
    ("stage", "stages", "devices", "renewed"),
    [
        ("thermal", STAGES, ("gpu0", "gpu1"), True),
        ("thermal", STAGES, ("gpu1",), True),
        ("thermal", STAGES, ("gpu0", "gpu2"), False),
        ("performance", STAGES, ("gpu0", "gpu1"), False),
        ("performance", STAGES, (), False),
        ("thermal", ("thermal",), ("gpu0",), False),
    ],
)
def test_what_could_not_be_judged_when_a_person_admitted_the_node_renews_its_certificate(
    stage: str, stages: Sequence[str], devices: Sequence[str], renewed: bool
) -> None:
    store.nodes.add(fleet.new_node())
    provisional("first", "thermal", devices=("gpu0", "gpu1"))
    move(NODE, State.PRODUCTION, "Ada", "no peers yet")
    first = store.certificates.newest(NODE)
    with writing() as session:  # as it is after half a year
        row = session.get(CertificateRow, first.id if first else "")
        assert row
        row.expires_at = access.now() - datetime.timedelta(days=1)
    assert list(store.certificates.uncertified()) == [NODE]
    provisional("idle", stage, stages, devices)
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert store.certificates.uncertified().keys() == (set() if renewed else {NODE})
    verdicts = [each.verdict for each in store.certificates.of_node(NODE)]
    assert (verdicts[0] == Verdict.PROVISIONAL) is renewed


def test_a_person_accepts_what_a_changed_sku_file_leaves_unjudged_on_a_node_that_serves() -> None:
    """Else its certificate would expire, and no test of it could give it another one."""
    first = in_production()
    provisional("idle", "thermal")
    assert store.certificates.newest(NODE) == first
    with pytest.raises(NoPerson):
        move(NODE, State.PRODUCTION, "Ada", " ")
    move(NODE, State.PRODUCTION, "Ada", "the old limit was wrong")
    accepted = store.certificates.newest(NODE)
    assert accepted
    assert accepted.id != first.id
    with writing() as session:
        session.get_one(CertificateRow, accepted.id).expires_at = access.now() - datetime.timedelta(days=1)
    provisional("later", "thermal")
    newest = store.certificates.newest(NODE)
    assert newest
    assert (newest.verdict, newest.revoked) == (Verdict.PROVISIONAL, "")
    assert store.certificates.uncertified() == {}
    assert store.nodes.get(NODE).state is State.PRODUCTION


@pytest.mark.parametrize(("level", "renewed"), [("demo", True), ("short", False), ("long", False)])
def test_a_shorter_test_leaves_accepted_what_the_whole_one_could_not_judge(level: str, renewed: bool) -> None:
    in_production()
    provisional("whole", "thermal", devices=("gpu0", "gpu1"))
    provisional("last", "thermal", ("thermal",), level=level)
    move(NODE, State.PRODUCTION, "Ada", "the old limit was wrong")
    with writing() as session:
        for row in session.query(CertificateRow):
            row.expires_at = access.now() - datetime.timedelta(days=1)
    provisional("later", "thermal", devices=("gpu0", "gpu1"), level="long")
    assert store.certificates.uncertified().keys() == (set() if renewed else {NODE})
