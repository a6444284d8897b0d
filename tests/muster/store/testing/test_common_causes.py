"""What nodes have in common, by the records: the third of a rack is held, the fourth after the window is not."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster import store
from muster.judging.verdict import compared_with
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database.engine import writing
from muster.store.database.models import FindingRow, StageRow
from muster_criteria.model import COMMON_CAUSE, FaultClass, Finding, Verdict
from tests.muster import fleet

WRONG = fleet.finding(rule="exactly", metric="gemm_mismatches")


def visit(
    name: str,
    rack: str = "r1",
    verdict: Verdict = Verdict.FAIL,
    found: Finding = fleet.FINDING,
    kernel: str = "6.1",
) -> State:
    """One run that ends at intake, judged beside its neighbours as the stage's operator does; where it is then."""
    store.nodes.add(fleet.new_node(name, rack=rack))
    lease = fleet.begin(name)
    parsed, raw = fleet.result("intake", node=name)
    parsed = parsed.model_copy(update={"environment": {"kernel": kernel}})
    store.runs.begin_stage(lease.key, "intake")
    judgement = fleet.judgement("intake", verdict, findings=(found,) if verdict is Verdict.FAIL else ())
    marked = compared_with(judgement, name, parsed.environment)
    fleet.record(lease.key, parsed, marked, raw)
    store.runs.finish(lease.key, verdict, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    return store.nodes.get(name).state


def age(hours: float) -> None:
    """Let everything that was judged so far be so much older."""
    with writing() as session:
        for row in session.query(StageRow):
            row.recorded_at -= datetime.timedelta(hours=hours)


@pytest.mark.usefixtures("fleet_db")
class TestAlike:
    @pytest.mark.both_dialects
    def test_the_third_node_of_a_rack_is_held_and_not_quarantined(self) -> None:
        assert [visit("a"), visit("b")] == [State.QUARANTINE] * 2
        assert visit("c") is State.REGISTERED
        run = store.runs.get(RunKey(fleet.DAG, "c__new"))
        assert run.verdict is Verdict.FAIL
        assert run.why_held
        cause = store.verdicts.open_findings("c")[0].finding
        assert (cause.rule, dict(cause.labels)) == (COMMON_CAUSE, {"by": "rack", "name": "r1"})
        assert store.nodes.events("c")[-1].evidence["held"]

    def test_those_failed_before_it_came_to_light_are_reported(self) -> None:
        visit("a"), visit("b")
        visit("elsewhere", rack="r2", kernel="6.8"), visit("corrupt", found=WRONG)
        before = {name: len(store.nodes.events(name)) for name in ("a", "b", "elsewhere", "corrupt")}
        visit("c", kernel="6.7")
        marked = {name: store.nodes.events(name)[count:] for name, count in before.items()}
        assert {name: len(events) for name, events in marked.items()} == {"a": 1, "b": 1, "elsewhere": 0, "corrupt": 0}
        (event,) = marked["a"]
        assert (event.from_state, event.to_state) == (State.QUARANTINE, State.QUARANTINE)
        assert event.evidence["common_cause"].endswith("/c__new")
        assert all(word in event.reason for word in ("c failed", "gemm_rate", "rack r1"))

    @pytest.mark.parametrize(("hours", "state"), [(23.9, State.REGISTERED), (24.1, State.QUARANTINE)])
    def test_only_what_was_found_within_the_window_counts(self, hours: float, state: State) -> None:
        visit("a"), visit("b")
        age(hours)
        assert visit("c") is state

    @pytest.mark.parametrize(("well", "state"), [(3, State.REGISTERED), (4, State.QUARANTINE)])
    def test_half_of_those_tested_must_fail_alike(self, well: int, state: State) -> None:
        for number in range(well):
            visit(f"good{number}", verdict=Verdict.PASS)
        visit("a"), visit("b")
        assert visit("c") is state

    def test_where_the_same_fault_is_waived_a_node_is_neither_company_nor_a_healthy_one(self) -> None:
        for number in range(4):
            visit(f"known{number}")
        with writing() as session:
            for row in session.query(FindingRow):
                row.waived = "by Ada"
        visit("a")
        assert visit("b") is State.QUARANTINE
        assert visit("c") is State.REGISTERED

    def test_another_rack_another_symptom_and_wrong_bits_do_not_wait(self) -> None:
        visit("a"), visit("b")
        assert visit("c", rack="r2", kernel="6.2") is State.QUARANTINE
        assert visit("d", found=fleet.finding(metric="hbm_total")) is State.QUARANTINE
        assert visit("e", found=WRONG) is State.QUARANTINE

    @pytest.mark.parametrize(
        ("reason", "state"), [("hw_thermal", State.REGISTERED), ("hw_power_brake", State.QUARANTINE)]
    )
    def test_a_fault_of_another_cause_is_not_excused_by_its_metric(self, reason: str, state: State) -> None:
        def throttled(why: str) -> Finding:
            fault = FaultClass.PSU if why == "hw_power_brake" else FaultClass.COOLING
            return fleet.finding(rule="exactly", metric="throttle_time", fault_class=fault, labels=(("reason", why),))

        visit("a", found=throttled("hw_thermal")), visit("b", found=throttled("hw_thermal"))
        assert visit("c", found=throttled(reason)) is state

    def test_nodes_of_one_image_wait_in_whatever_rack_they_stand(self) -> None:
        visit("a", rack="r2"), visit("b", rack="r3")
        assert visit("c") is State.REGISTERED
        assert dict(store.verdicts.open_findings("c")[0].finding.labels) == {"by": "image", "name": "kernel 6.1"}

    def test_simulated_nodes_say_nothing_of_real_ones(self) -> None:
        visit("a"), visit("b")
        with writing() as session:
            from muster.store.database.models import NodeRow

            for row in session.query(NodeRow):
                row.simulated = True
        assert visit("c") is State.QUARANTINE

    def test_a_node_in_service_goes_on_serving_until_a_person_decides(self) -> None:
        store.nodes.add(fleet.new_node("c", rack="r1"))
        fleet.qualify("c")
        store.nodes.move("c", State.PRODUCTION, "ann", "tested elsewhere")
        visit("a"), visit("b")
        lease = fleet.begin("c", "c__again")
        with writing() as session:
            from muster.store.database.models import NodeRow

            session.get(NodeRow, "c").state = State.REVALIDATION  # type: ignore[union-attr]
        parsed, raw = fleet.result("intake", node="c", note="again")
        judgement = fleet.judgement("intake", Verdict.FAIL, findings=(fleet.FINDING,))
        marked = compared_with(judgement, "c", parsed.environment)
        fleet.record(lease.key, parsed, marked, raw)
        store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
        node = store.nodes.get("c")
        assert (node.state, node.held_run) == (State.PRODUCTION, RunKey(fleet.DAG, "c__again"))

    def test_what_was_recorded_later_does_not_change_what_was_judged_then(self) -> None:
        visit("a")
        then = datetime.datetime.now(datetime.UTC)
        visit("b")
        judgement = dataclasses.replace(fleet.judgement("intake", Verdict.FAIL, findings=(fleet.FINDING,)))
        store.nodes.add(fleet.new_node("c", rack="r1"))
        assert compared_with(judgement, "c", {}, before=then) == judgement
        assert compared_with(judgement, "c", {}) != judgement
