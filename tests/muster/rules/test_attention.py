"""What does not serve: no node is left out, each once by its state, with somebody whose turn it is and a command."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model import dags
from muster.model.attention import Attention, Cause, Turn
from muster.model.figures import FleetRow
from muster.model.health import Observation
from muster.model.nodes import Lease
from muster.model.questions import Question
from muster.model.racks import HeldRack
from muster.model.repairs import Fault, Incident
from muster.model.runs import RunKey
from muster.model.schedulers import ABSENT, ADMITTED, CLOSED, OPEN, WITHDRAWN, Place
from muster.model.states import State
from muster.rules import attention as rules
from muster.rules.attention import OTHERS_MIN
from muster_criteria.health.policy import HealthAction
from muster_criteria.model import Verdict
from muster_reports.advice import way_to_test

NOW = datetime.datetime(2026, 5, 4, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


def row(name: str = "n1", state: State = State.REGISTERED, **fields: object) -> FleetRow:
    made = FleetRow(name, state, "h100", "r1", False, None, None, "", "", None, "", None, NOW - HOUR)
    return dataclasses.replace(made, **fields)


def after(name: str, state: State, verdict: Verdict, **fields: object) -> FleetRow:
    ended = {"verdict": verdict, "headline": f"{verdict}.", "ended_at": NOW - HOUR, "dag_id": dags.NODE_QUALIFICATION}
    return row(name, state, **(ended | fields))


def place(name: str = "n1", state: State = State.PRODUCTION, wanted: str = ADMITTED, **fields: object) -> Place:
    made = Place(name, "alpha", f"{name}-there", state, wanted, "", NOW - HOUR, wanted, 0, "", "", "", "")
    return dataclasses.replace(made, **fields)


def incident(**fields: object) -> Incident:
    made = Incident(7, "n1", Fault("gpu_memory", "gpu3"), "XID 95", NOW - HOUR, False, ("intake",), "standard")
    return dataclasses.replace(made, **fields)


def attention(
    rows: Sequence[FleetRow],
    places: Iterable[Place] = (),
    questions: Iterable[tuple[Question, datetime.datetime]] = (),
    leases: Iterable[Lease] = (),
    **others: object,
) -> list[Attention]:
    known = rules.Known(
        places={each.node: each for each in places},
        questions={each.node: (each, until) for each, until in questions},
        leases={each.node: each for each in leases},
        **others,
    )
    return rules.attention(rows, known, NOW)


def test_a_run_that_cannot_reach_its_node_is_listed_with_the_cause() -> None:
    lease = Lease("n1", dags.NODE_QUALIFICATION, "r1", 1, NOW)
    at_work = only(attention([row(state=State.INTAKE)], leases=[lease]))
    assert (at_work.cause, at_work.listed) == (Cause.IN_TEST, False)
    why = "ops@n1: permission denied"
    retried = only(attention([row(state=State.INTAKE)], leases=[lease], obstacles={"n1": why}))
    assert (retried.cause, retried.turn, retried.listed) == (Cause.RETRIED, Turn.MUSTER, True)
    assert (retried.why, retried.command) == (why, "muster node check n1")
    over = only(attention([row(state=State.INTAKE)], obstacles={"n1": why}))
    assert over.cause is Cause.IN_TEST


@pytest.mark.parametrize("days", [4, 6])
@pytest.mark.parametrize(("seen", "waits"), [
    (row(state=State.REVALIDATION), True),
    (after("n1", State.QUALIFIED, Verdict.PROVISIONAL), True),
    (row(state=State.INTAKE), False),
    (after("n1", State.QUALIFIED, Verdict.PASS, dag_id=dags.CLUSTER_QUALIFICATION, spare=True), False),
])  # fmt: skip
def test_what_waits_for_muster_for_days_is_listed(seen: FleetRow, waits: bool, days: int) -> None:
    """Without a test that has limits of its own, and a spare, which is to wait."""
    seen = dataclasses.replace(seen, state_since=NOW - days * 24 * HOUR)
    found = only(attention([seen], members={("h100", False): 9}))
    assert found.turn is Turn.MUSTER
    assert (found.late, found.listed) == (waits and days == 6,) * 2


def test_what_a_repair_leaves_to_a_person_is_said_with_its_incident() -> None:
    rows = [row(state=State.QUARANTINE)]
    asked = only(attention(rows, incidents=[incident(asks="reboot is not switched on")]))
    assert (asked.cause, asked.turn, asked.command) == (Cause.QUARANTINE, Turn.PERSON, "muster evidence show 7")
    assert asked.why.startswith("reboot is not switched on")
    lease = Lease("n1", dags.REPAIR, "r1", 1, NOW)
    for state in (State.QUARANTINE, State.REPAIR):
        under_way = only(attention([row(state=state)], leases=[lease], incidents=[incident()]))
        assert (under_way.cause, under_way.turn) == (Cause.IN_REPAIR, Turn.MUSTER)
    unproved = only(attention([row()], incidents=[incident()]))
    assert (unproved.turn, unproved.command) == (Turn.PERSON, "muster qualify n1 --level standard --reason …")


def test_a_repair_that_waits_for_its_turn_is_musters_until_nothing_looks_any_more() -> None:
    rows = [row(state=State.QUARANTINE)]
    waits = incident(waits="n2 is under repair", waits_at=NOW - HOUR / 4)
    found = only(attention(rows, incidents=[waits]))
    assert (found.cause, found.turn, found.command) == (
        Cause.WAITS_FOR_REPAIR, Turn.MUSTER, "muster evidence show 7",
    )  # fmt: skip
    assert found.why.startswith("n2 is under repair")
    stale = dataclasses.replace(waits, waits_at=NOW - 2 * HOUR)
    assert only(attention(rows, incidents=[stale])).cause is Cause.QUARANTINE
    asks = dataclasses.replace(waits, asks="the BMC refuses")
    assert only(attention(rows, incidents=[asks])).turn is Turn.PERSON


def only(found: list[Attention]) -> Attention:
    (one,) = found
    return one


def test_qualified_nodes_wait_for_a_block_of_those_that_can_be_tested_together() -> None:
    rows = [after(name, State.QUALIFIED, Verdict.PASS) for name in ("n1", "n2")]
    rows += [after("sim", State.QUALIFIED, Verdict.PASS, simulated=True)]
    first, second, alone = attention(rows)
    assert {first.cause, second.cause, alone.cause} == {Cause.WAITS_FOR_BLOCK}
    assert (first.command, second.command) == ("muster block n1 n2 --reason …",) * 2
    assert alone.command == "muster admit sim --reason …"
    assert not first.serving


def test_a_block_is_proposed_of_nodes_that_it_would_get_alone() -> None:
    rack = HeldRack("r9", ("imex",), "IMEX is not up", ("held",), RunKey("cluster_qualification", "b"), NOW)
    rows = [after(name, State.QUALIFIED, Verdict.PASS) for name in ("n1", "n2")]
    rows.append(after("over", State.QUALIFIED, Verdict.PASS, paused_until=NOW))
    rows.append(after("paused", State.QUALIFIED, Verdict.PASS, paused_until=NOW + datetime.timedelta(days=1)))
    rows.append(after("held", State.QUALIFIED, Verdict.PASS, rack="r9"))
    commands = {each.node: each.command for each in attention(rows, racks={("r9", False): rack})}
    assert {commands[name] for name in ("n1", "n2", "over")} == {"muster block n1 n2 over --reason …"}


@pytest.mark.parametrize(
    ("seen", "cause", "turn"),
    [
        (row(), Cause.NOT_TESTED, Turn.PERSON),
        (after("n1", State.REGISTERED, Verdict.INCONCLUSIVE), Cause.INCONCLUSIVE, Turn.PERSON),
        (after("n1", State.QUALIFIED, Verdict.WARN, came_from=State.REVALIDATION), Cause.FALLEN, Turn.PERSON),
        (after("n1", State.QUALIFIED, Verdict.WARN), Cause.BLOCK_DECIDED, Turn.PERSON),
        (
            after("n1", State.QUALIFIED, Verdict.PASS, dag_id=dags.CLUSTER_QUALIFICATION),
            Cause.BLOCK_DECIDED, Turn.PERSON,
        ),
        (
            after("n1", State.QUALIFIED, Verdict.INCONCLUSIVE, dag_id=dags.CLUSTER_QUALIFICATION),
            Cause.WAITS_FOR_BLOCK, Turn.PERSON,
        ),
        (after("n1", State.QUALIFIED, Verdict.PROVISIONAL), Cause.PROVISIONAL, Turn.PERSON),
        (
            after("n1", State.QUALIFIED, Verdict.PROVISIONAL, dag_id=dags.CLUSTER_QUALIFICATION),
            Cause.BLOCK_DECIDED, Turn.PERSON,
        ),
        (after("n1", State.REVALIDATION, Verdict.INCONCLUSIVE), Cause.TEST_DUE, Turn.MUSTER),
        (after("n1", State.QUARANTINE, Verdict.FAIL), Cause.QUARANTINE, Turn.PERSON),
        (row(state=State.TRIAGE), Cause.TRIAGE, Turn.PERSON),
        (row(state=State.REPAIR), Cause.REPAIR, Turn.PERSON),
        (row(state=State.RMA), Cause.RMA, Turn.VENDOR),
        (row(state=State.BURN_IN), Cause.IN_TEST, Turn.MUSTER),
    ],
)  # fmt: skip
def test_each_state_out_of_service_has_its_turn(seen: FleetRow, cause: Cause, turn: Turn) -> None:
    found = only(attention([seen]))
    assert (found.cause, found.turn, found.serving) == (cause, turn, False)


def test_a_machine_that_its_vendor_has_comes_back_as_the_same_one_first() -> None:
    assert only(attention([row("n1", state=State.RMA)])).command.startswith("muster node move n1 registered ")


def test_a_person_s_reason_stands_before_the_last_verdict() -> None:
    found = only(attention([after("n1", State.QUARANTINE, Verdict.PASS, moved_for="smells of smoke")]))
    assert f"{found.command.removesuffix('…')}'why'" in way_to_test("n1", found.state)
    assert found.why == "smells of smoke"


def test_a_refused_test_is_the_reason_until_a_test_ends() -> None:
    seen = after("n1", State.REGISTERED, Verdict.INCONCLUSIVE)
    later, before = (NOW, "not tested: it is in use"), (NOW - 2 * HOUR, "not tested: it is in use")
    assert only(attention([seen], refusals={"n1": later})).why == "not tested: it is in use"
    assert only(attention([seen], refusals={"n1": before})).why == seen.headline


@pytest.mark.parametrize(
    ("others", "turn"), [(OTHERS_MIN, Turn.MUSTER), (OTHERS_MIN - 1, Turn.PERSON), (-1, Turn.PERSON)]
)
def test_what_no_fleet_can_re_evaluate_is_decided_by_a_person(others: int, turn: Turn) -> None:
    seen = after("n1", State.QUALIFIED, Verdict.PROVISIONAL)
    members = {("h100", False): others + 1, ("h100", True): 100, ("another", False): 100}
    found = only(attention([seen], members=members))
    assert (found.turn, found.command) == (turn, "muster admit n1 --reason …")
    assert only(attention([seen], members=members, uncompared={"another"})).turn is turn
    assert only(attention([seen], members=members, uncompared={"h100"})).turn is Turn.PERSON


@pytest.mark.parametrize("state", [State.PRODUCTION, State.REVALIDATION])
def test_a_node_that_cannot_be_tested_is_listed_until_a_test_ends(state: State) -> None:
    """Else it would serve for ever on its last PASS, or wait for ever, and no person would know."""
    times = [NOW - each * HOUR / 4 for each in (3, 2, 1)]
    last = {"n1": (times[-1], "not tested: no SKU file of that name")}
    seen, serving = after("n1", state, Verdict.PASS), state is State.PRODUCTION
    found = only(attention([seen], refusals=last, untestable={"n1": times}))
    assert (found.cause, found.turn, found.since, found.serving) == (Cause.NO_VERDICT, Turn.PERSON, times[0], serving)
    assert found.why.endswith("no SKU file of that name")
    for tested, refused in ((seen, times[1:]), (dataclasses.replace(seen, ended_at=NOW), times)):
        others = attention([tested], refusals=last, untestable={"n1": refused})
        assert [each.turn for each in others] == ([] if serving else [Turn.MUSTER])


def test_a_question_is_answered_by_its_command_until_its_end() -> None:
    asked = Question(1, dags.ADMISSION, "r1", "n1", NOW - HOUR, "", "", "", "", None, None, "Admit n1?", ("Admit",))
    seen = after("n1", State.QUALIFIED, Verdict.WARN)
    found = only(attention([seen], questions=[(asked, NOW + HOUR)]))
    assert (found.cause, found.since, found.until) == (Cause.QUESTION, NOW - HOUR, NOW + HOUR)
    assert found.command == "muster approve r1 --option … --reason …"


def test_paused_tests_are_ended_by_a_person_before_anything_else() -> None:
    seen = after("n1", State.REVALIDATION, Verdict.INCONCLUSIVE, paused_until=NOW + HOUR)
    found = only(attention([seen]))
    assert (found.turn, found.until, found.command) == (Turn.PERSON, NOW + HOUR, "muster node resume n1 --reason …")
    over = dataclasses.replace(seen, paused_until=NOW - HOUR)
    assert only(attention([over])).turn is Turn.MUSTER


@pytest.mark.parametrize("held", [None, RunKey("dag", "run")])
def test_a_pause_hides_no_decision_that_a_person_is_asked_for(held: RunKey | None) -> None:
    asked = Question(1, dags.ADMISSION, "r1", "n1", NOW - HOUR, "", "", "", "", None, None, "Admit n1?", ("Admit",))
    seen = after("n1", State.QUALIFIED, Verdict.WARN, held_run=held)
    paused = dataclasses.replace(seen, paused_until=NOW + 24 * HOUR)
    question = [(asked, NOW + HOUR)]
    assert attention([paused], questions=question) == attention([seen], questions=question)
    if held:
        assert attention([paused]) == attention([seen])


def test_a_node_that_serves_needs_somebody_for_a_held_verdict_or_tests_without_one() -> None:
    held = after("n1", State.PRODUCTION, Verdict.FAIL, held_run=RunKey("dag", "run"))
    blind = after("n2", State.PRODUCTION, Verdict.INCONCLUSIVE, inconclusive=3)
    found = attention([blind, held, row("n3", State.PRODUCTION), row("n4", State.RETIRED)])
    assert [(each.node, each.cause, each.serving) for each in found] == [
        ("n1", Cause.HELD, True), ("n2", Cause.NO_VERDICT, True),
    ]  # fmt: skip
    assert all(f"muster node {way} n1" in found[0].command for way in ("move", "keep"))


def test_what_waits_for_a_person_comes_before_all_that_a_scheduler_has_not_confirmed() -> None:
    rows = [row(f"n{number}", State.PRODUCTION) for number in range(60)]
    blind = after("blind", State.PRODUCTION, Verdict.INCONCLUSIVE, inconclusive=3)
    found = attention([*rows, blind], [place(each.node, done="") for each in rows])
    assert [each.cause for each in found] == [Cause.NO_VERDICT, *[Cause.NOT_CONFIRMED] * 60]


@pytest.mark.parametrize(
    ("state", "there", "cause", "command"),
    [
        (State.PRODUCTION, place(shown="closed: root: bad fan"), Cause.CLOSED,
         "scontrol update nodename=n1-there state=resume"),
        (State.PRODUCTION, place(shown="down"), Cause.CLOSED, "scontrol show node n1-there"),
        (State.PRODUCTION, place(done="", last_error="no answer"), Cause.NOT_CONFIRMED, "muster doctor"),
        (State.PRODUCTION, place(done=""), Cause.NOT_CONFIRMED, "scontrol show node n1-there"),
        (State.PRODUCTION, place(shown="closed: al: x", verify="al: muster:verify"), Cause.TEST_DUE,
         "muster revalidate n1 --reason …"),
    ],
)  # fmt: skip
def test_a_node_in_production_that_its_scheduler_keeps_from_users_is_missing_capacity(
    state: State, there: Place, cause: Cause, command: str
) -> None:
    found = only(attention([row(state=state)], [there], kinds={"alpha": "slurm"}))
    assert (found.cause, found.command) == (cause, command)


@pytest.mark.parametrize("state", [State.PRODUCTION, State.RETIRED])
def test_a_node_that_its_scheduler_does_not_know_does_not_serve_and_a_person_is_told_how_to_remove_it(
    state: State,
) -> None:
    found = only(attention([row(state=state)], [place(shown=ABSENT, difference="alpha does not know n1-there")]))
    assert (found.serving, found.turn) == (False, Turn.PERSON)
    assert found.command == "muster node remove n1 --reason …"


@pytest.mark.parametrize("state", sorted(set(State) - {State.PRODUCTION, State.RETIRED}))
def test_a_node_that_is_not_in_its_scheduler_yet_or_is_repaired_is_not_to_be_removed(state: State) -> None:
    there = place(wanted=WITHDRAWN, done=WITHDRAWN, shown=ABSENT, difference="alpha does not know n1-there")
    for found in attention([row(state=state)], [there]):
        assert found.serving is False
        assert "node remove" not in found.command


@pytest.mark.parametrize(
    ("shown", "command"),
    [("closed: cordoned", "kubectl uncordon n1-there"),
     ("closed: tainted: example.org/maintenance", "kubectl describe node n1-there"),
     (CLOSED, "kubectl taint node n1-there muster.dev/withdrawn-")],
)  # fmt: skip
def test_the_command_that_opens_a_node_of_kubernetes_undoes_what_closed_it(shown: str, command: str) -> None:
    closed = [row(state=State.PRODUCTION)], [place(shown=shown)]
    assert only(attention(*closed, kinds={"alpha": "kubernetes"})).command == command


@pytest.mark.parametrize("there", [place(shown="closed: root: bad fan"), place(done="", held_since=NOW)])
def test_no_command_opens_a_node_that_is_to_leave_service(there: Place) -> None:
    held = row(state=State.PRODUCTION, held_run=RunKey("dag", "run"))
    leaves = {"n1": Observation(
        1, "n1", "gpu3", "gpu3", "xid/79", "", NOW, NOW, 1, "b", "sweep", "ISOLATE", None,
        HealthAction.LEAVE_WHEN_JOB_ENDS, None, HealthAction.AT_ONCE, "",
    )}  # fmt: skip
    for rows, leaving in (([held], {}), ([row(state=State.PRODUCTION)], leaves)):
        found = attention(rows, [there], kinds={"alpha": "slurm"}, leaving=leaving)
        assert [each.command for each in found if each.cause in (Cause.CLOSED, Cause.DIFFERS)] == [
            "scontrol show node n1-there"
        ]


def test_what_the_scheduler_shows_as_wanted_is_nothing_to_do() -> None:
    assert attention([row(state=State.PRODUCTION)], [place(shown=OPEN)]) == []
    quarantined = place(state=State.QUARANTINE, wanted=WITHDRAWN, shown=CLOSED)
    assert only(attention([row(state=State.QUARANTINE)], [quarantined])).cause is Cause.QUARANTINE


verdicts = st.sampled_from([None, *Verdict])
rows_of = st.builds(
    lambda state, verdict, came, inconclusive, pause, dag: after(
        "n1", state, verdict, came_from=came, inconclusive=inconclusive, paused_until=pause, dag_id=dag
    ),
    st.sampled_from(list(State)), verdicts, st.sampled_from([None, *State]), st.integers(0, 4),
    st.sampled_from([None, NOW - HOUR, NOW + HOUR]),
    st.sampled_from([dags.NODE_QUALIFICATION, dags.CLUSTER_QUALIFICATION]),
)  # fmt: skip


@given(rows_of, st.booleans())
def test_no_node_out_of_service_waits_unseen(seen: FleetRow, leased: bool) -> None:
    leases = [Lease("n1", "dag", "run", 1, NOW)] if leased else []
    found = attention([seen], leases=leases)
    if seen.state is State.RETIRED:
        assert found == []
    elif seen.state is not State.PRODUCTION:
        assert not only(found).serving
    assert all(each.why and each.command.startswith("muster ") for each in found)


def test_the_nodes_of_a_held_rack_wait_for_one_decision_about_it() -> None:
    rack = HeldRack("r1", ("imex",), "IMEX is not up", ("n1", "n2"), RunKey("cluster_qualification", "b"), NOW)
    rows = [after(name, State.QUALIFIED, Verdict.PASS) for name in ("n1", "n2")]
    rows.append(after("n3", State.QUALIFIED, Verdict.PASS, rack="r2"))
    first, second, other = attention(rows, racks={("r1", False): rack})
    assert {first.cause, second.cause} == {Cause.RACK}
    assert {first.command, second.command} == {"muster racks release r1 --reason …"}
    assert other.cause is Cause.WAITS_FOR_BLOCK


def test_nodes_are_compared_a_number_of_times_that_grows_with_the_fleet_alone() -> None:
    compared = 0

    class Sku(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    rows = [after(f"n{number}", State.QUALIFIED, Verdict.PASS, sku=Sku("h100")) for number in range(100)]
    found = attention(rows)
    assert {each.cause for each in found} == {Cause.WAITS_FOR_BLOCK}
    assert compared <= 4 * len(rows)
