"""No path into production without a certificate; a changed machine, an expiry and the end of service revoke it."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path

import pytest
from sqlalchemy import inspect
from sqlalchemy.orm import undefer

from muster import acting, store
from muster.admission.entry import move
from muster.admission.idle_fleet import known
from muster.errors import ControllerFault
from muster.model.certificates import Certificate, VersionChange
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import State
from muster.rules.lifecycle.gate import NeedsPerson
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from muster.store.decisions import certificates
from muster_criteria.model import Severity, Verdict
from tests.muster import copied, fleet
from tests.support.plugins.statements import executed

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


def in_production() -> Certificate:
    copied.records(made_in_production)
    found = store.certificates.newest(NODE)
    assert found
    return found


def made_in_production() -> None:
    """As ``in_production``, by the settings and the clock of this test."""
    store.nodes.add(fleet.new_node(serials={"gpu0": "S1"}))
    fleet.qualify()
    move(NODE, State.PRODUCTION, "Ada", "needed now")


def contact(serials: dict[str, str], driver: str = "") -> None:
    """A stage of a revalidation, with what the node reports."""
    lease = fleet.begin(run_id=f"r-{serials}-{driver}")
    parsed, raw = fleet.result("intake", serials=serials, environment={"driver": driver} if driver else {})
    store.runs.begin_stage(lease.key, "intake")
    fleet.record(lease.key, parsed, fleet.judgement("intake"), raw)
    store.leases.release(lease.key, "over")


def test_a_certificate_names_what_was_tested_and_who_admitted() -> None:
    content = json.loads(in_production().document)["certificate"]
    assert (content["node"], content["admitted_by"], content["serials"]) == (NODE, "Ada", {"gpu0": "S1"})
    assert {each["stage"] for each in content["stages"]} == set(STAGES)
    assert store.certificates.uncertified() == {}


@pytest.mark.parametrize(("serials", "revoked"), [({"gpu0": "S1"}, False), ({"gpu0": "S2"}, True), ({}, False)])
def test_another_part_seen_at_a_later_contact_revokes_it(serials: dict[str, str], revoked: bool) -> None:
    in_production()
    contact(serials)
    found = store.certificates.newest(NODE)
    assert found
    assert bool(found.revoked) is revoked
    assert store.nodes.get(NODE).state is State.REVALIDATION


def test_the_end_of_service_revokes_it_and_the_next_admission_issues_another() -> None:
    first = in_production()
    move(NODE, State.REGISTERED, "Ada", "new rack")
    now = store.certificates.newest(NODE)
    assert now
    assert now.revoked
    fleet.qualify(run_id="again")
    move(NODE, State.PRODUCTION, "Ada", "moved")
    second = store.certificates.newest(NODE)
    assert second
    assert (second.id != first.id, second.revoked) == (True, "")


def test_an_expired_certificate_leaves_the_node_in_service_and_due(monkeypatch: pytest.MonkeyPatch) -> None:
    found = in_production()
    monkeypatch.setattr(certificates.access, "now", lambda: found.expires_at + datetime.timedelta(seconds=1))
    assert list(store.certificates.uncertified()) == [NODE]
    node = store.nodes.get(NODE)
    assert known([node], found.expires_at).signs[NODE].requested
    assert store.nodes.get(NODE).state is State.PRODUCTION


def test_a_revalidation_that_passes_issues_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    first = in_production()
    fleet.qualify(run_id="revalidation")
    second = store.certificates.newest(NODE)
    assert second
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert second.id != first.id
    assert second.verdict == Verdict.PASS
    assert second.tested_since
    assert first.tested_since
    assert second.tested_since > first.tested_since


@pytest.mark.parametrize("way", ["part", "driver", "finding"])
def test_what_revokes_the_newest_revokes_the_earlier_ones(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier one is valid while nothing has changed: its holder learns of the change as the newest one's does."""
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")  # a FAIL is held: the node stays in service
    store.nodes.add(fleet.new_node(serials={"gpu0": "S1"}))
    fleet.qualify(environment={"driver": "580.1"})
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    fleet.qualify(run_id="again", environment={"driver": "580.1"})
    assert [each.revoked for each in store.certificates.of_node(NODE)] == ["", ""]
    if way == "finding":
        fleet.fail(NODE, "bad")
    else:
        contact({"gpu0": "S2"} if way == "part" else {}, "590.1" if way == "driver" else "")
    newest, first = store.certificates.of_node(NODE)
    assert newest.revoked
    assert (first.revoked, first.revoked_at) == (newest.revoked, newest.revoked_at)
    remarks = [event for event in store.nodes.events(NODE) if "certificate is revoked" in event.reason]
    assert [event.evidence for event in remarks] == [{"certificates": [newest.id, first.id]}]


def test_a_node_in_shadow_mode_has_none_until_it_is_verified() -> None:
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
    assert (store.certificates.newest(NODE), store.certificates.uncertified()) == (None, {})
    store.adoption.verify(NODE, "Ada", "acceptance protocol 12")
    assert store.certificates.newest(NODE)


@pytest.mark.parametrize("trouble", ["missing", "lost", "readable by others", "no key"])
def test_without_a_usable_key_nothing_enters_production(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.key"
    if trouble == "lost":
        in_production()
        move(NODE, State.REGISTERED, "Ada", "new rack")
        store.signing.key_path().unlink()
    else:
        monkeypatch.setenv("MUSTER_CERTIFICATE_KEY_FILE", str(path))
        if trouble != "missing":
            path.write_text("x")
            path.chmod(0o644 if trouble == "readable by others" else 0o600)
        store.nodes.add(fleet.new_node())
    fleet.qualify(run_id="again")
    with pytest.raises(ControllerFault):
        move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert store.nodes.get(NODE).state is State.QUALIFIED
    with pytest.raises(ControllerFault):
        store.certificates.check_signing_key()


@pytest.mark.parametrize(("ours", "mode", "usable"), [(True, 0o600, True), (True, 0o440, False), (False, 0o440, True),
                                                      (False, 0o644, False)])  # fmt: skip
def test_the_group_may_read_a_key_that_is_not_ours(
    ours: bool, mode: int, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kubernetes mounts a secret for a pod with an fsGroup: root's, and readable for that group."""
    store.signing.new_key()
    path = store.signing.key_path()
    path.chmod(mode)
    if not ours:
        monkeypatch.setattr(store.signing.os, "geteuid", lambda: path.stat().st_uid + 1)
    if usable:
        assert store.signing.signing_key(create=False)
        return
    with pytest.raises(ControllerFault):
        store.signing.signing_key(create=False)


@pytest.mark.both_dialects
def test_what_expired_long_ago_is_neither_revoked_nor_kept() -> None:
    first = in_production()
    with writing() as session:
        row = session.get_one(CertificateRow, first.id, options=[undefer(CertificateRow.document)])
        same = {each.key: getattr(row, each.key) for each in inspect(CertificateRow).column_attrs}
        same["certified"] = {"serials": {"gpu0": "S1"}, "environment": {"driver": "580.1"}}
        for number in range(1000):
            past = row.expires_at - datetime.timedelta(days=1000)
            session.add(CertificateRow(**{**same, "id": f"old {number}", "number": number + 2, "expires_at": past}))
        session.add(CertificateRow(**{**same, "id": "newest", "number": 1002}))
        session.delete(row)
    contact({}, "590.1")
    (remark,) = (event for event in store.nodes.events(NODE) if "certificate is revoked" in event.reason)
    assert remark.evidence == {"certificates": ["newest"]}
    newest = store.certificates.newest(NODE)
    assert newest
    assert store.signs.certificate_ends()[NODE][0] == newest.revoked_at
    assert store.retention.apply()["certificates"] == 1000


@pytest.mark.both_dialects
def test_a_persons_command_makes_no_key_where_the_components_may_have_another_home(fleet_db: str) -> None:
    """Records on PostgreSQL say nothing of whose MUSTER_HOME this is."""
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    elsewhere = fleet_db.startswith("postgresql")
    with acting.under("os:ada"), pytest.raises(ControllerFault) if elsewhere else contextlib.nullcontext():
        store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert store.signing.key_path().exists() is not elsewhere
    assert store.certificates.make_key() == (store.signing.key_path() if elsewhere else None)


def test_a_lost_key_is_not_made_again_by_an_upgrade() -> None:
    in_production()
    store.signing.key_path().unlink()
    assert store.certificates.make_key() is None


def test_a_rehearsed_admission_makes_no_key() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    with store.engine.rehearsal():
        store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert not store.signing.key_path().exists()
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert store.signing.key_path().exists()


def test_a_new_driver_is_a_change_until_a_whole_test_passes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many others hold a certificate for the same decides whether this one is a canary."""
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    for name in (NODE, "gpu-0002", "sim"):
        store.nodes.add(fleet.new_node(name, simulated=name == "sim"))
        fleet.qualify(name, environment={"driver": "580.1"})
        move(name, State.PRODUCTION, "Ada", "needed now")
    assert store.certificates.version_changes() == {}
    contact({}, "590.1")
    assert store.certificates.version_changes() == {NODE: VersionChange("driver 590.1", 0)}
    for name in ("gpu-0002", "sim"):  # a simulated one is a canary of no real one
        fleet.qualify(name, f"{name}-again", environment={"driver": "590.1"})
    assert store.certificates.version_changes() == {NODE: VersionChange("driver 590.1", 1)}
    sign = known([store.nodes.get(NODE)], datetime.datetime.now(datetime.UTC)).signs[NODE]
    assert (sign.change, sign.proven) == ("driver 590.1", 1)


@pytest.mark.parametrize(
    ("now", "valid"), [("28.39+8.72+9.10", True), ("28.39+8.72", True), ("28.39+8.72+9.11", False)]
)
def test_a_nic_that_was_not_readable_once_revokes_nothing(now: str, valid: bool) -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify(environment={"nic": "28.39+8.72+9.10"})
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    fleet.qualify(run_id="again", environment={"nic": now}, stages=("intake",))
    assert (NODE not in store.certificates.uncertified()) is valid
    assert (store.certificates.version_changes() == {}) is valid


@pytest.mark.parametrize(("stages", "certified"), [(("intake",), False), (STAGES, True)])
def test_what_passed_with_the_old_driver_certifies_nothing_of_the_new_one(
    stages: tuple[str, ...], certified: bool
) -> None:
    """A revalidation is shorter than the qualification, and of no block, and certifies the new driver all the same."""
    store.nodes.add(fleet.new_node())
    fleet.qualify(environment={"driver": "580.1"}, level="standard")
    block = fleet.begin(run_id="block", required_stages=CLUSTER_STAGES)
    fleet.do_stage(block, *CLUSTER_STAGES, environment={"driver": "580.1"})
    store.leases.release(block.key, "over")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    fleet.qualify(run_id="idle", environment={"driver": "590.1"}, stages=stages)
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert (NODE not in store.certificates.uncertified()) is certified
    assert (NODE not in store.certificates.version_changes()) is certified
    if not certified:
        sign = known([store.nodes.get(NODE)], datetime.datetime.now(datetime.UTC)).signs[NODE]
        assert (sign.change, bool(sign.requested)) == ("driver 590.1", True)


@pytest.mark.parametrize(("since", "admitted"), [(STAGES[0], True), (STAGES[-1], False)])
def test_a_stage_that_passed_before_the_driver_was_replaced_in_the_same_run_certifies_nothing_of_the_new_one(
    since: str, admitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    store.nodes.add(fleet.new_node())
    run = fleet.begin(required_stages=STAGES)
    for stage in STAGES:
        replaced = STAGES.index(stage) >= STAGES.index(since)
        fleet.do_stage(run, stage, environment={"driver": "590.1" if replaced else "580.1"})
    store.runs.finish(run.key, Verdict.PASS, "All is well.")
    store.leases.release(run.key, "over")
    block = fleet.begin(run_id="block", required_stages=CLUSTER_STAGES)
    fleet.do_stage(block, *CLUSTER_STAGES, environment={"driver": "590.1"})
    store.runs.finish(block.key, Verdict.PASS, "All is well.")
    assert isinstance(store.admission.decision(NODE), NeedsPerson) is not admitted


@pytest.mark.parametrize(("stages", "certified"), [(("integrity",), False), (STAGES, True)])
def test_what_passed_with_the_old_part_certifies_nothing_of_the_new_one(
    stages: tuple[str, ...], certified: bool
) -> None:
    """The test of a few stages that sees the new part first is no test of it."""
    in_production()
    fleet.qualify(run_id="idle", serials={"gpu0": "S2"}, stages=stages)
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert (NODE not in store.certificates.uncertified()) is certified


def test_a_part_swapped_after_the_qualification_needs_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    store.nodes.add(fleet.new_node())
    fleet.qualify(serials={"gpu0": "S1"})
    block = fleet.begin(run_id="block", required_stages=CLUSTER_STAGES)
    fleet.do_stage(block, *CLUSTER_STAGES, serials={"gpu0": "S2"})
    store.runs.finish(block.key, Verdict.PASS, "All is well.")
    assert isinstance(store.admission.decision(NODE), NeedsPerson)


def test_short_tests_make_no_warning_a_pass() -> None:
    in_production()
    lease = fleet.begin(run_id="warns", required_stages=("thermal",))
    fleet.do_stage(lease, "thermal", Verdict.WARN, findings=(fleet.finding(severity=Severity.WARNING),))
    store.runs.finish(lease.key, Verdict.WARN, "It is warm.")
    store.leases.release(lease.key, "over")
    move(NODE, State.PRODUCTION, "Ada", "accepted")
    fleet.qualify(run_id="others", stages=STAGES[:-1])
    assert [each.verdict in list(Verdict) for each in store.certificates.of_node(NODE)] == [False, False]
    fleet.qualify(run_id="none warns")
    assert [each.verdict for each in store.certificates.of_node(NODE)][:1] == [Verdict.PASS]


def test_without_a_pass_of_each_stage_it_rests_on_no_test() -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    for stage in STAGES:
        fleet.do_stage(lease, stage, Verdict.PROVISIONAL if stage == "thermal" else Verdict.PASS)
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "It is unknown.")
    store.leases.release(lease.key, "over")
    move(NODE, State.PRODUCTION, "Ada", "needed now")
    found = store.certificates.newest(NODE)
    assert found
    assert found.tested_since is None


@pytest.mark.both_dialects
def test_the_number_of_queries_does_not_grow_with_the_fleet_or_the_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    asked = (
        store.certificates.uncertified,
        store.certificates.version_changes,
        lambda: store.certificates.of_node("n0"),
    )
    counts = []
    for number in range(3):
        store.nodes.add(fleet.new_node(f"n{number}"))
        fleet.qualify(f"n{number}", environment={"driver": "580.1"})
        move(f"n{number}", State.PRODUCTION, "Ada", "needed now")
        if number:
            fleet.qualify("n0", f"again{number}", environment={"driver": "580.1"})
            fleet.qualify(f"n{number}", f"new{number}", stages=("intake",), environment={"driver": f"590.{number}"})
        with executed() as statements:
            for each in asked:
                each()
        counts.append(len(statements))
    assert len(set(counts)) == 1
    assert store.certificates.version_changes() == {f"n{one}": VersionChange(f"driver 590.{one}", 0) for one in (1, 2)}
    assert list(store.certificates.uncertified()) == ["n1", "n2"]
    held = store.certificates.of_node("n0", 2)
    assert (len(held), held[0]) == (2, store.certificates.newest("n0"))
