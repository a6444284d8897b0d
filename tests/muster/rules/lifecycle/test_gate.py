"""Nothing but everything passes by itself: the gate on any combination of verdicts, findings, waivers and states."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.nodes import Lemon, Node, Pause
from muster.model.runs import OpenFinding, StageVerdict
from muster.model.stages import CLUSTER_STAGES, STAGES
from muster.model.states import State
from muster.rules.lifecycle.gate import Admit, Decision, Limits, NeedsPerson, Refuse, against, decide, stage_of
from muster_criteria.context.waivers import Waiver
from muster_criteria.model import Severity, Verdict
from muster_criteria.stages import LEVELS
from tests.muster import fleet

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
LIMITS = Limits(fresh=100 * HOUR, level="standard")
ALL = (*STAGES, *CLUSTER_STAGES)
OUT_OF_SERVICE = (
    State.QUARANTINE,
    State.TRIAGE,
    State.REPAIR,
    State.RMA,
    State.RETIRED,
    State.REGISTERED,
    State.BURN_IN,
)


def node(state: State = State.CLUSTER_VALIDATION, *, shadow: bool = False, **labels: str) -> Node:
    came = NOW - 1000 * HOUR
    return Node("gpu-0001", "h", 22, "", "", "sku", state, {}, "~", "", "", labels, False, came, shadow=shadow)


def stage_verdict(
    stage: str, verdict: Verdict = Verdict.PASS, *, age: float = 1, level: str = "standard", full: bool = True
):
    run = f"run-{stage}-{age}"
    return StageVerdict(stage, level, verdict, full, "because", NOW - age * HOUR, "dag", run)


def found(
    severity: Severity = Severity.CRITICAL, waived: str = "", decided_by: StageVerdict | None = None
) -> OpenFinding:
    finding = fleet.finding(severity=severity, waived=waived, id="f-1")
    by = decided_by or stage_verdict("performance", Verdict.FAIL)
    return OpenFinding(finding, by.stage, by.dag_id, by.run_id, by.recorded_at)


def waiver(until: float = 1) -> Waiver:
    created = NOW - HOUR
    return Waiver(1, "gpu-0001", "", "floor", "gemm_rate", "gpu3", (), "Ada", "known", created, NOW + until * HOUR)


WELL = [stage_verdict(stage) for stage in ALL]


def decision_for(verdicts: list[StageVerdict] = WELL, findings=(), waivers=(), at: Node | None = None) -> Decision:
    verdicts = sorted(verdicts, key=lambda each: each.recorded_at)  # as the records give them
    return decide(at or node(), verdicts, findings, waivers, limits=LIMITS, now=NOW)


ODD = st.builds(
    stage_verdict,
    st.sampled_from([*ALL, "vendor"]),
    st.sampled_from(Verdict),
    age=st.floats(0, 200),
    level=st.sampled_from(LEVELS),
    full=st.booleans(),
)


@given(
    dropped=st.sets(st.sampled_from(ALL), max_size=1),
    odd=st.lists(ODD, max_size=2),
    severities=st.lists(st.tuples(st.sampled_from(Severity), st.sampled_from(["", "by Ada"])), max_size=1),
    waivers=st.lists(st.sampled_from([-1.0, -0.001, 0.0, 0.001, 1.0]), max_size=1),  # hours, past no clock's resolution
    state=st.sampled_from([State.CLUSTER_VALIDATION, State.CLUSTER_VALIDATION, *State]),
    shadow=st.sampled_from([False, False, True]),
    spare=st.sampled_from(["", "yes"]),
)
def test_nothing_but_everything_passes_by_itself(
    dropped: set[str], odd: list[StageVerdict], severities: list[tuple[Severity, str]], waivers: list[float],
    state: State, shadow: bool, spare: str,
) -> None:  # fmt: skip
    """The conditions of admission, written the other way round, and each of them necessary and together sufficient."""
    verdicts = [each for each in WELL if each.stage not in dropped] + odd
    findings = [found(severity, waived) for severity, waived in severities]
    at = node(state, shadow=shadow, spare=spare)
    decision = decision_for(verdicts, findings, [waiver(until) for until in waivers], at)
    stands = [
        each
        for each in verdicts
        if not any(
            later.stage == each.stage and later.recorded_at > each.recorded_at
            and LEVELS.index(later.level) >= LEVELS.index(each.level)
            and later.verdict not in (Verdict.INCONCLUSIVE, Verdict.SKIPPED)
            for later in verdicts
        )
    ]  # fmt: skip
    everything = (
        (
            state in (State.CLUSTER_VALIDATION, State.REVALIDATION, State.PRODUCTION)
            or (state is State.QUALIFIED and spare == "yes")
        )
        and not shadow
        and all(each.verdict is Verdict.PASS and each.full_coverage for each in stands)
        and all(
            any(
                each.stage == stage and NOW - each.recorded_at <= LIMITS.fresh
                and (stage in CLUSTER_STAGES or each.level in ("standard", "long"))
                for each in stands
            )
            for stage in ALL
        )
        and all(severity is Severity.INFO for severity, _ in severities)
        and not any(until > 0 for until in waivers)
    )  # fmt: skip
    assert isinstance(decision, Admit) == everything
    if not isinstance(decision, Admit):
        assert decision.reasons
        assert all(reason.strip() for reason in decision.reasons)


@given(st.lists(ODD, max_size=4), st.sampled_from(State), st.booleans())
def test_a_fail_is_refused_whatever_else_there_is(odd: list[StageVerdict], state: State, shadow: bool) -> None:
    failed = stage_verdict("integrity", Verdict.FAIL, age=0, level="long")
    assert isinstance(decision_for([*WELL, *odd, failed], at=node(state, shadow=shadow)), Refuse)


@pytest.mark.parametrize("state", OUT_OF_SERVICE)
def test_from_where_no_node_enters_no_person_may_admit(state: State) -> None:
    decision = decision_for(at=node(state))
    assert decision == Refuse((f"its state is {state}, and no node enters production from there",))


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        (WELL[1:], "intake was never tested"),
        (WELL[:-1], "cluster_validation was never tested"),
        ([*WELL, stage_verdict("thermal", Verdict.WARN, age=0)], "thermal is WARN in run run-thermal-0: because"),
        ([*WELL, stage_verdict("thermal", Verdict.INCONCLUSIVE, age=0, level="demo")], "thermal is INCONCLUSIVE"),
        ([*WELL[1:], stage_verdict("intake", full=False)], "intake passed without full coverage"),
        (
            [*WELL[1:], stage_verdict("intake", level="short")],
            "intake passed at level short only, and standard is required",
        ),
        (
            [*WELL[1:], stage_verdict("intake", age=101)],
            "intake passed last on 2026-05-27 19:00 UTC, longer ago than 100 hours",
        ),
        ([*WELL[:-1], stage_verdict("cluster_validation", age=101)], "cluster_validation passed last on"),
    ],
)
def test_what_is_lacking_is_stated_and_left_to_a_person(verdicts: list[StageVerdict], reason: str) -> None:
    decision = decision_for(verdicts)
    assert isinstance(decision, NeedsPerson)
    assert len(decision.reasons) == 1
    assert decision.reasons[0].startswith(reason)


def test_a_stage_that_passed_since_needs_no_person() -> None:
    assert decision_for([*WELL, stage_verdict("thermal", Verdict.FAIL, age=5)]) == Admit()
    assert decision_for([*WELL, stage_verdict("thermal", age=0, level="short")]) == Admit()
    one_after_the_other = [stage_verdict("intake", Verdict.FAIL, age=3), stage_verdict("intake", age=2)]
    assert decision_for([*one_after_the_other, *WELL[1:]]) == Admit()
    assert isinstance(
        decision_for(
            [*WELL, stage_verdict("thermal", Verdict.FAIL, age=0, level="demo"), stage_verdict("thermal", age=5)]
        ),
        Refuse,
    )


def test_a_waived_fail_is_for_a_person_and_one_whose_waiver_is_over_is_refused() -> None:
    failed = stage_verdict("performance", Verdict.FAIL, age=0)
    waived_findings = [found(waived="by Ada until 2026-07-01: known", decided_by=failed)]
    decision = decision_for([*WELL, failed], waived_findings, [waiver()])
    assert isinstance(decision, NeedsPerson)
    assert any("waived by Ada until 2026-07-01" in reason for reason in decision.reasons)
    assert isinstance(decision_for([*WELL, failed], [found(decided_by=failed)], [waiver(-1)]), Refuse)
    assert isinstance(decision_for([*WELL, failed], [*waived_findings, found(decided_by=failed)]), Refuse)
    warned = found(Severity.WARNING, decided_by=failed)
    assert isinstance(decision_for([*WELL, failed], [*waived_findings, warned]), NeedsPerson)
    another = dataclasses.replace(failed, run_id="another")
    assert isinstance(decision_for([*WELL, failed], [found(waived="by Ada", decided_by=another)]), Refuse)


def test_where_it_stands_counts() -> None:
    assert decision_for(at=node(State.PRODUCTION)) == Admit()
    assert isinstance(decision_for(at=node(State.QUALIFIED)), NeedsPerson)
    assert decision_for(at=node(State.PRODUCTION, shadow=True)) == NeedsPerson(
        ("it was adopted in service and is unverified",)
    )


def test_a_paused_node_enters_only_by_a_person_and_one_that_serves_is_as_before() -> None:
    pause = Pause("Ada", NOW + HOUR, "a customer has borrowed it")
    entering, serving = (
        dataclasses.replace(node(state), pause=pause) for state in (State.CLUSTER_VALIDATION, State.PRODUCTION)
    )
    assert isinstance(decision_for(at=node()), Admit)
    assert isinstance(decision_for(at=entering), NeedsPerson)
    assert isinstance(decision_for(at=serving), Admit)


@pytest.mark.parametrize("known", [{"fails_again": "it failed twice"}, {"rack_held": "its rack is held"}])
def test_what_keeps_a_node_from_entering_ends_no_service(known: dict[str, str]) -> None:
    serving, entering = node(State.PRODUCTION), node()
    assert decide(entering, WELL, (), (), limits=LIMITS, now=NOW, **known) == NeedsPerson(tuple(known.values()))
    assert decide(serving, WELL, (), (), limits=LIMITS, now=NOW, **known) == Admit()
    lemon = {"lemon": Lemon("Ada", NOW, "it hangs")}
    assert isinstance(decision_for(at=dataclasses.replace(entering, **lemon)), NeedsPerson)
    assert isinstance(decision_for(at=dataclasses.replace(serving, **lemon)), Admit)


def test_a_repair_that_no_test_has_proved_is_a_persons() -> None:
    for state in (State.CLUSTER_VALIDATION, State.PRODUCTION):
        unproved = ["the repair of gpu3 is not proved"]
        decision = decide(node(state), WELL, (), (), limits=LIMITS, now=NOW, unproved=unproved)
        assert decision == NeedsPerson(tuple(unproved))


def test_a_simulated_pass_admits_no_real_node() -> None:
    verdicts = [*WELL[1:], dataclasses.replace(WELL[0], simulated=True)]
    assert isinstance(decision_for(verdicts), NeedsPerson)
    assert decision_for(verdicts, at=dataclasses.replace(node(), simulated=True)) == Admit()


def test_an_open_critical_finding_is_refused_without_a_fail_too() -> None:
    assert isinstance(decision_for(findings=[found()]), Refuse)
    for other in (found(waived="by Ada"), found(Severity.WARNING)):
        assert isinstance(decision_for(findings=[other]), NeedsPerson)


def test_with_what_a_person_keeps_a_node_it_serves_on_and_does_not_enter_again() -> None:
    failed = stage_verdict("thermal", Verdict.FAIL, age=0)
    finding = found(decided_by=failed)
    for state, then in ((State.PRODUCTION, NeedsPerson), (State.CLUSTER_VALIDATION, Refuse)):
        kept = decide(
            node(state), [*WELL, failed], [finding], (), limits=LIMITS, now=NOW, kept=[stage_of(failed)]
        )  # fmt: skip
        assert isinstance(kept, then)


@pytest.mark.parametrize(
    ("severity", "waived", "accepted", "kept", "stands"),
    [
        (Severity.CRITICAL, "", False, False, True),
        (Severity.CRITICAL, "", True, False, True),
        (Severity.CRITICAL, "", False, True, False),
        (Severity.CRITICAL, "by Ada", False, False, False),
        (Severity.WARNING, "", False, False, True),
        (Severity.WARNING, "", True, False, False),
        (Severity.INFO, "", False, False, False),
    ],
)
def test_what_stands_against_a_service_whatever_another_test_finds(
    severity: Severity, waived: str, accepted: bool, kept: bool, stands: bool
) -> None:
    """Who accepts warnings of a stage accepts no failure of it."""
    open_ = found(severity, waived)
    known = [stage_of(open_)]
    left = against(WELL, [open_], accepted=known if accepted else (), kept=known if kept else ())
    assert bool(left) == stands


def test_a_fail_stands_against_a_service_until_a_person_keeps_the_node_with_it() -> None:
    failed = stage_verdict("thermal", Verdict.FAIL, age=0)
    of = [stage_of(failed)]
    assert against([*WELL, failed], (), accepted=of, kept=())
    assert not against([*WELL, failed], (), accepted=(), kept=of)
    assert not against(WELL, (), accepted=(), kept=())
