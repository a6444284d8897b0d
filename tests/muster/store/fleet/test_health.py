"""What is kept of observations: one row a check, part and boot, and who may leave service for one."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster import store
from muster.admission.idle_fleet import known
from muster.errors import IllegalMove, Refusal, UnknownNode
from muster.judging import policies
from muster.model.health import Cursor, Observation, Report
from muster.model.stages import STAGES
from muster.model.states import SERVING, State
from muster.rules.lifecycle.transitions import steps
from muster.rules.service import health as rules
from muster.store.database import retention
from muster_criteria.device_events.judge import OLDEST
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import copied, fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"
T0 = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
"""Later than the tests' machines are enrolled."""
LOST = Reading("gpu_lost", "gpu3", bad=True)


@pytest.fixture(autouse=True)
def serving(fleet_db: str) -> None:
    copied.records(_serving)


def _serving() -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify(serials={"gpu3": "S3"})
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "tested")


def observe(
    *seen: Reading, minutes: float = 0, boot: str = "b1", source: str = "sweep", node: str = NODE
) -> list[Observation]:
    report = Report(node, source, seen, boot, cursor=Cursor(node, boot, 5.0, {"a": 1.0}, T0) if boot else None)
    return store.health.record([report], policies.health(), T0 + datetime.timedelta(minutes=minutes))


def kept() -> list[Observation]:
    return store.health.of_node(NODE)


def return_to_service(reason: str, *, serials: dict[str, str] | None = None) -> None:
    """As after a repair: a passing run, and a person who admits it."""
    if store.nodes.get(NODE).state is not State.QUARANTINE:
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "broken")
    for state in steps(State.QUARANTINE, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", reason)
    fleet.qualify(run_id=reason, serials=serials or {"gpu3": "S3"})
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "tested")


def due(minutes: float = 0) -> Observation | None:
    since = T0 + datetime.timedelta(minutes=minutes, days=-1)
    nodes = {each.name: each for each in store.nodes.find(states=SERVING)}
    return rules.due(store.health.open_in_service(since), nodes).get(NODE)


XID = Reading("xid/95", "gpu3", severity="RESET")
DOWN, UP = Reading("port_down", "nic:mlx5_3", bad=True), Reading("port_down", "nic:mlx5_3", bad=False)


@pytest.mark.both_dialects
def test_what_comes_back_in_the_same_boot_withdraws_the_node_again() -> None:
    for minutes in (0, 60, 120):
        observe(XID, minutes=minutes)
        found = due(minutes)
        assert found is not None
        assert (found.check, found.count) == (XID.check, 1)
        store.health.withdraw(found, "XID 95")
        assert due(minutes) is None
        return_to_service(f"reset {minutes}")
        assert due(minutes) is None, "it was not seen since"
    assert [each.acted for each in kept()] == ["withdrawn"] * 3


def test_what_was_seen_before_a_repair_withdraws_no_repaired_node() -> None:
    observe(XID, LOST, DOWN)
    observe(DOWN, minutes=20)
    assert due(20) is not None
    return_to_service("gpu3 replaced", serials={"gpu3": "S9"})
    observe(Reading("gpu_lost", "gpu3", bad=False), UP, minutes=60, boot="b2")
    assert due(60) is None
    assert all(each.over for each in kept() if each.track)
    observe(DOWN, minutes=61, boot="b2")
    assert due(61) is None, "how long it was bad before the repair counts no more"
    observe(DOWN, minutes=81, boot="b2")
    assert due(81) is not None


@pytest.mark.parametrize("tested", [False, True])
def test_what_is_reported_between_the_last_test_and_the_entry_withdraws_the_node(tested: bool) -> None:
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "broken")
    for state in steps(State.QUARANTINE, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "repaired")
    fleet.qualify(run_id="repaired", serials={"gpu3": "S3"})
    observe(Reading("corrupted_results"), source="checker")
    if tested:
        fleet.qualify(run_id="again", serials={"gpu3": "S3"})
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "tested")
    assert (due() is None) is tested


def test_a_state_that_was_reported_once_withdraws_a_node_that_is_busy_for_days() -> None:
    observe(Reading("leak", bad=True), source="checker")
    found = due(minutes=3 * 24 * 60)
    assert found is not None
    store.health.withdraw(found, "it leaks")


def test_a_state_was_bad_for_no_time_in_which_it_was_not_read() -> None:
    week = 7 * 24 * 60.0
    for minutes, seen in ((0, DOWN), (week, UP), (week + 20, DOWN)):
        observe(seen, minutes=minutes)
        assert [each.action for each in kept()] == [HealthAction.NOTE]
    observe(DOWN, minutes=week + 30)
    assert due(week + 30) is not None


def test_a_state_that_is_good_now_causes_nothing_new() -> None:
    observe(DOWN)
    observe(UP, minutes=20)
    assert [each.action for each in kept()] == [HealthAction.NOTE]


def test_the_states_of_a_part_end_when_it_is_taken_out() -> None:
    observe(LOST, XID, DOWN)
    fleet.qualify(run_id="idle", serials={"gpu3": "S9"})
    assert {each.check: each.over for each in kept()} == {"gpu_lost": True, "xid/95": False, "port_down": False}


@pytest.mark.both_dialects
def test_an_event_demands_a_test_however_long_a_job_keeps_the_node() -> None:
    observe(XID)
    assert known([store.nodes.get(NODE)], T0 + datetime.timedelta(days=60)).signs[NODE].requested


@pytest.mark.both_dialects
def test_a_state_that_returns_after_a_test_is_due_again() -> None:
    observe(DOWN)
    observe(DOWN, minutes=20)
    fleet.qualify(run_id="idle")
    observe(UP, minutes=60)
    observe(DOWN, minutes=70)
    assert store.health.urgent()[NODE].after == max(store.verdicts.stage_numbers()[NODE].values())


@pytest.mark.both_dialects
def test_corrupted_results_end_no_job_after_the_node_was_repaired() -> None:
    (new,) = observe(Reading("corrupted_results"), source="checker")
    assert new.action is HealthAction.AT_ONCE
    store.health.withdraw(new, "results are wrong")
    assert store.health.corrupting(NODE) is not None
    return_to_service("gpu3 replaced")
    (other,) = observe(LOST, minutes=10)
    store.health.withdraw(other, "gpu3 is lost")
    assert store.health.corrupting(NODE) is None


def test_a_state_from_outside_whose_end_was_lost_begins_again() -> None:
    fires, day = Reading("alert/Ecc", severity="ISOLATE", bad=True, part="gpu 3"), 24 * 60.0
    observe(fires, boot="", source="alerts")
    assert observe(fires, minutes=day, boot="", source="alerts") == [], "as long as it is repeated, it goes on"
    fleet.qualify(run_id="idle")
    (again,) = observe(fires, minutes=20 * day, boot="", source="alerts")
    assert again.track is not None
    assert (again.track.down_s, again.action) == (0.0, HealthAction.TEST_SOONER)
    assert store.health.urgent()[NODE].after > 0
    observe(dataclasses.replace(fires, bad=False), minutes=40 * day, boot="", source="alerts")
    (late,) = kept()
    assert (late.over, late.track and late.track.down_s) == (True, 0.0), "what was not reported was not bad for so long"


@pytest.mark.both_dialects
def test_another_machine_has_nothing_up_yet() -> None:
    observe(UP)
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "broken")
    store.adoption.replace(NODE, "Ada", "new chassis", host_key=fleet.host_key("other"))
    assert store.health.cursors([NODE])[NODE] == Cursor(NODE)
    observe(UP, boot="b9")
    assert store.health.cursors([NODE])[NODE].boot_id == "b9"


@pytest.mark.both_dialects
def test_what_the_kernel_says_after_the_last_test_is_the_sweeps() -> None:
    entered = store.nodes.events(NODE)[-1].at
    assert store.health.judged_until() == {NODE: entered}, "no test has read the log"
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "broken")
    for state in steps(State.QUARANTINE, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "repaired")
    lease = fleet.begin(run_id="again")
    for stage in STAGES:
        log = [Measurement("device_events", OLDEST, "node", "s", 0.0)] if stage == "burn_in" else None
        parsed, raw = fleet.result(stage, measurements=log)
        ended = datetime.datetime.now(datetime.UTC).timestamp() - 3600
        store.runs.begin_stage(lease.key, stage, node=NODE)
        fleet.record(lease.key, parsed.model_copy(update={"ended_at": ended}), fleet.judgement(stage), raw)
        if log:
            read = datetime.datetime.fromtimestamp(ended, datetime.UTC)
    store.runs.finish(lease.key, Verdict.PASS, "All is well.")
    store.leases.release(lease.key, "over")
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "tested")
    assert store.health.judged_until() == {NODE: read}
    observe(UP)
    assert store.health.judged_until() == {NODE: store.nodes.events(NODE)[-1].at}, "the sweep knows what it has read"


@pytest.mark.both_dialects
def test_one_form_once_for_each_check_part_and_boot() -> None:
    (new,) = observe(Reading("xid/79", "gpu3", value="lost", severity="ISOLATE", count=2))
    assert (new.part, new.device, new.boot_id, new.source, new.action) == (
        "gpu S3", "gpu3", "b1", "sweep", HealthAction.LEAVE_WHEN_JOB_ENDS,
    )  # fmt: skip
    assert observe(Reading("xid/79", "gpu3", value="lost", severity="ISOLATE"), minutes=10) == []
    (row,) = kept()
    assert (row.count, row.first_seen, row.last_seen) == (3, T0, T0 + datetime.timedelta(minutes=10))
    assert (row.source, row.value) == ("sweep", "lost")
    observe(Reading("xid/79", "gpu3", severity="ISOLATE"), boot="b2")
    observe(Reading("xid/79", "gpu4", severity="ISOLATE"))
    assert len(kept()) == 3
    assert sum(event.actor == "health" for event in store.nodes.events(NODE)) == 3


def test_a_node_that_boots_again_and_again_is_due_for_a_test() -> None:
    reboot, hang = Reading("rebooted"), Reading("hung/counters")
    for number, boot in enumerate(("b2", "b3", "b4")):
        assert observe(reboot, hang, minutes=50 * number, boot=boot) != []
    assert [each.action for each in kept() if each.boot_id == "b4"] == [HealthAction.TEST_SOONER] * 2
    assert {each.action for each in kept() if each.boot_id != "b4"} == {HealthAction.NOTE}
    (late,) = observe(reboot, minutes=50 * 2 + 24 * 60 - 1, boot="b5")
    assert late.action is HealthAction.NOTE


def test_a_state_goes_on_through_a_reboot_and_ends() -> None:
    observe(LOST)
    observe(LOST, minutes=10, boot="b2")
    observe(Reading("gpu_lost", "gpu3", bad=False), minutes=20, boot="b2")
    (row,) = kept()
    assert row.track is not None
    assert (row.count, row.track.bad, row.track.down_s, row.over) == (2, False, 1200.0, False)
    observe(Reading("gpu_lost", "gpu3", bad=False), minutes=90, boot="b2")
    assert kept()[0].over
    assert store.health.open_in_service(T0) == []
    observe(Reading("row_remap_failed", "gpu3", bad=False))
    assert len(kept()) == 1, "what is good is no observation"


LOW = HealthAction.TEST_SOONER
SAID = st.tuples(
    st.sampled_from(["gpu_lost", "unreachable", "xid/79"]), st.sampled_from([None, True, False]), st.integers(1, 99)
)


@pytest.mark.both_dialects
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(SAID, min_size=1, max_size=6), first=st.booleans())
def test_what_another_source_says_changes_nothing_of_what_the_sweep_saw(
    said: list[tuple[str, bool | None, int]], first: bool
) -> None:
    """However often, earlier or later: it neither ends a state, nor makes it return, nor adds to its count."""
    store.nodes.add(fleet.new_node(other := f"n{len(store.nodes.find())}"))

    def reported(minutes: float) -> None:
        for check, bad, count in said:
            seen = Reading(check, "gpu3", severity="ISOLATE", bad=bad, count=count)
            report = Report(other, "epilog", (seen,), "b1", most=LOW)
            store.health.record([report], policies.health(), T0 + datetime.timedelta(minutes=minutes))

    if first:
        reported(-5)
    sweep = (LOST, Reading("unreachable", "gpu3", bad=True), Reading("xid/79", "gpu3", severity="ISOLATE"))
    observe(*sweep, node=other)
    before = {each.check: each for each in store.health.of_node(other) if each.source == "sweep"}
    for minutes in (5, 90, 180):
        reported(minutes)
    rows = store.health.of_node(other)
    assert {each.check: each for each in rows if each.source == "sweep"} == before
    assert len(before) == len(sweep)
    assert all(each.action.rank <= LOW.rank for each in rows if each.source == "epilog")


def test_a_clock_that_went_back_loses_nothing() -> None:
    observe(LOST, minutes=60)
    observe(LOST, Reading("xid/31", "gpu3"), minutes=-60)
    assert {each.check: each.count for each in kept()} == {"gpu_lost": 2, "xid/31": 1}
    lost = next(each for each in kept() if each.check == "gpu_lost")
    assert (lost.last_seen, sum(times for _, times in lost.recent)) == (T0 - datetime.timedelta(minutes=60), 2)


@pytest.mark.both_dialects
def test_an_unknown_node_records_nothing_of_the_others() -> None:
    reports = [Report(NODE, "sweep", (LOST,)), Report("gone", "sweep", (LOST,))]
    with pytest.raises(UnknownNode):
        store.health.record(reports, policies.health())
    assert kept() == []


def test_the_cursor_is_kept() -> None:
    assert store.health.cursors([NODE, "other"])["other"] == Cursor("other")
    observe(LOST)
    assert store.health.cursors([NODE])[NODE] == Cursor(NODE, "b1", 5.0, {"a": 1.0}, T0)


@pytest.mark.both_dialects
def test_one_is_found_by_its_number_however_many_came_after_it() -> None:
    (new,) = observe(LOST)
    observe(*(Reading(f"alert/a{each}") for each in range(150)), boot="b2", minutes=60)
    assert new.id not in {each.id for each in store.health.of_node(NODE)}
    found = store.health.of_id(NODE, new.id)
    assert found is not None
    assert found.check == new.check
    assert store.health.of_id(NODE, 1_000_000) is None


def test_it_leaves_service_with_its_evidence_and_the_scheduler_is_told() -> None:
    (new,) = observe(LOST)
    store.health.withdraw(new, "gpu3 is lost")
    assert store.nodes.get(NODE).state is State.QUARANTINE
    last = store.nodes.events(NODE)[-1]
    assert (last.actor, last.evidence["observed"]) == ("health", f"health/{new.id}")
    with pytest.raises(IllegalMove):
        store.health.withdraw(new, "again")
    assert not store.certificates.newest(NODE) or store.certificates.newest(NODE).revoked  # type: ignore[union-attr]


def test_a_tested_node_and_one_in_shadow_mode_stay() -> None:
    (new,) = observe(LOST)
    lease = fleet.begin(run_id="again")
    with pytest.raises(IllegalMove) as refused:
        store.health.withdraw(new, "lost")
    assert refused.value.code is Refusal.LEASED
    store.leases.release(lease.key, "over")
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node("gpu-0002"))])
    (other,) = observe(LOST, node="gpu-0002")
    with pytest.raises(IllegalMove) as refused:
        store.health.withdraw(other, "lost")
    assert refused.value.code is Refusal.SHADOW


@pytest.mark.both_dialects
def test_the_circuit_breaker_holds_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FLEET": "1", "SHARE": "0.5", "NODES": "1"}.items():
        monkeypatch.setenv(f"MUSTER_BREAKER_{name}", value)
    for number in (2, 3):
        store.nodes.add(fleet.new_node(f"gpu-000{number}"))
        fleet.qualify(f"gpu-000{number}")
        store.nodes.move(f"gpu-000{number}", State.PRODUCTION, "Ada", "tested")
    (first,), (second,) = observe(LOST), observe(LOST, node="gpu-0002")
    store.health.withdraw(first, "lost")
    with pytest.raises(IllegalMove) as refused:
        store.health.withdraw(second, "lost")
    assert refused.value.code is Refusal.BREAKER
    assert store.nodes.get("gpu-0002").state is State.PRODUCTION


@pytest.mark.both_dialects
def test_old_observations_go_and_no_others() -> None:
    observe(LOST)
    retention.apply(T0 + datetime.timedelta(days=retention.HEALTH_DAYS - 1))
    assert kept()
    retention.apply(T0 + datetime.timedelta(days=retention.HEALTH_DAYS + 1))
    assert kept() == []
