"""What the end of a run rests on: each thing that stands against a node's service counts by itself."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster.model.breaker import Breaker
from muster.model.events import Evidence
from muster.model.nodes import Node
from muster.model.runs import Run, RunKey, StageVerdict
from muster.model.stages import STAGES
from muster.model.states import State
from muster.rules.lifecycle import ending
from muster.rules.lifecycle.ending import RunFacts
from muster_criteria.context.alike import GROUPED, Neighbour
from muster_criteria.model import COMMON_CAUSE, Verdict, symptom_name
from tests.muster import fleet

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
KEY = RunKey("dag", "run")
FAILED = fleet.finding()
IN_A_RACK = ((GROUPED, "rack"), ("name", "r1"))
CAUSE = fleet.finding(rule=COMMON_CAUSE, metric=symptom_name(FAILED), device="node", labels=IN_A_RACK)


def stage(name: str = STAGES[-1], verdict: Verdict = Verdict.PASS, *, full: bool = True) -> StageVerdict:
    return StageVerdict(name, "standard", verdict, full, "because", NOW, KEY.dag_id, KEY.run_id)


WELL = [stage(each) for each in STAGES]


def facts(last: StageVerdict | None = None, /, *, state: State = State.REVALIDATION, **changes: object) -> RunFacts:
    """A run of all stages, of which the last one may have ended otherwise, on a real node that served before."""
    node = Node("n", "h", 22, "", "", "sku", state, {}, "~", "", "", {}, simulated=False, added_at=NOW)
    run = Run(KEY.dag_id, KEY.run_id, "n", "sku", "standard", "new", None, STAGES, State.PRODUCTION, None, None, "",
              simulated=False, started_at=NOW, ended_at=None)  # fmt: skip
    stages = [*WELL[:-1], last or WELL[-1]]
    known = {"stages": stages, "verdicts": stages, "suspect": False, "accepted": False} | changes
    for key, one in (("of_run", run), ("of_node", node)):
        known[key.removeprefix("of_")] = dataclasses.replace(one, **known.pop(key, {}))
    return RunFacts(**known)


SIMULATED = {"of_run": {"simulated": True}}
ELSEWHERE = {"of_run": {"state_before": State.QUALIFIED}}
GAP = {"stages": [*WELL[:-1], stage(full=False)]}


@pytest.mark.parametrize(
    "changes",
    [{"suspect": True}, {"against": ["an open finding"]}, SIMULATED, GAP, {"stages": WELL[:-1]},
     {"of_run": {"required_stages": ()}}],
)  # fmt: skip
def test_a_full_pass_is_of_each_stage_on_this_kind_of_node_with_nothing_against_it(changes: dict[str, object]) -> None:
    assert facts().full_coverage
    assert facts(**SIMULATED, of_node={"simulated": True}).full_coverage
    assert not facts(**changes).full_coverage


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.PROVISIONAL])
@pytest.mark.parametrize(
    "changes",
    [{"clean": False}, {"suspect": True}, {"against": ["an open finding"]}, SIMULATED, ELSEWHERE,
     {"stages": [*WELL[:-1], stage(verdict=Verdict.WARN)]}],
)  # fmt: skip
def test_a_test_that_could_not_judge_all_is_no_reason_only_if_nothing_was_found(
    verdict: Verdict, changes: dict[str, object]
) -> None:
    known = {"clean": True} | changes
    assert facts(stage(verdict=verdict), clean=True).nothing_new(verdict)
    assert not facts(stage(verdict=verdict), **known).nothing_new(verdict)


@pytest.mark.parametrize("changes", [{"clean": False}, {"against": ["an open finding"]}, ELSEWHERE])
def test_a_test_that_was_not_made_is_no_reason_only_if_nothing_was_found(changes: dict[str, object]) -> None:
    known = {"clean": True} | changes
    assert facts(clean=True).nothing_new(Verdict.SKIPPED)
    assert not facts(**known).nothing_new(Verdict.SKIPPED)
    undecided = stage(verdict=Verdict.INCONCLUSIVE)
    assert not facts(undecided, clean=True).nothing_new(Verdict.SKIPPED)
    assert facts(undecided, clean=True, preempted=True).nothing_new(Verdict.SKIPPED)


@pytest.mark.parametrize(
    "changes", [{"accepted": False}, {"suspect": True}, {"against": ["an open finding"]}, SIMULATED, GAP]
)
def test_a_warning_is_no_reason_only_if_it_is_accepted_and_all_was_tested(changes: dict[str, object]) -> None:
    warned = stage(verdict=Verdict.WARN)
    known = {"accepted": True} | changes
    assert facts(warned, accepted=True).nothing_new(Verdict.WARN)
    assert not facts(warned, **known).nothing_new(Verdict.WARN)


@pytest.mark.parametrize(
    ("changes", "back"),
    [({"accepted": True}, State.PRODUCTION), ({}, State.QUALIFIED),
     ({"accepted": True, "suspect": True}, State.QUALIFIED)],
)  # fmt: skip
def test_a_node_returns_to_service_with_accepted_warnings_alone(changes: dict[str, object], back: State) -> None:
    end, _ = ending.end_of_run(facts(stage(verdict=Verdict.WARN), **changes), Verdict.WARN, "standard")
    assert end.path == (back,)
    assert (ending.CORRUPTED in end.reason) == ("suspect" in changes)


def test_a_held_verdict_stands_until_a_later_test_replaces_what_it_found() -> None:
    assert facts(stage(verdict=Verdict.FAIL)).still_held(KEY) == KEY
    assert facts().still_held(KEY) is None
    assert facts(stage(verdict=Verdict.FAIL)).still_held(None) is None


@pytest.mark.parametrize(
    ("level", "asked", "required", "verified"),
    [
        ("standard", "standard", STAGES, True),
        ("long", "standard", STAGES, True),
        ("short", "standard", STAGES, False),
        ("standard", "standard", STAGES[:-1], False),
    ],
)
def test_shadow_mode_ends_only_on_a_test_as_complete_as_a_qualification(
    level: str, asked: str, required: tuple[str, ...], verified: bool
) -> None:
    run = {"level": level, "required_stages": required}
    end, full = ending.end_of_run(
        facts(state=State.PRODUCTION, of_run=run, of_node={"shadow": True}), Verdict.PASS, asked
    )
    assert (end.path, end.verified, full) == ((), verified, verified)


def test_a_job_that_the_node_refused_as_an_older_one_costs_no_budget() -> None:
    undecided = stage(verdict=Verdict.INCONCLUSIVE)
    for blameless, count in ((False, 2), (True, 1)):
        run = facts(undecided, state=State.BURN_IN, of_node={"inconclusive": 1}, blameless=blameless)
        assert ending.end_of_run(run, Verdict.INCONCLUSIVE, "standard")[0].inconclusive == count


def test_what_a_blameless_run_found_counts() -> None:
    end, _ = ending.end_of_run(facts(stage(verdict=Verdict.FAIL), blameless=True), Verdict.FAIL, "standard")
    assert end.path == (State.QUARANTINE,)


@pytest.mark.parametrize(
    ("of", "level", "verdict", "count"),
    [
        (STAGES[2], "standard", Verdict.INCONCLUSIVE, 2),
        (STAGES[2], "short", Verdict.INCONCLUSIVE, 2),
        (STAGES[2], "long", Verdict.INCONCLUSIVE, 0),  # no such run can answer it
        ("cluster_validation", "standard", Verdict.INCONCLUSIVE, 0),
        (STAGES[2], "standard", Verdict.WARN, 0),
    ],
)
def test_a_pass_of_other_stages_ends_no_row_of_inconclusive_tests(
    of: str, level: str, verdict: Verdict, count: int
) -> None:
    """Else a node serves of which a stage never has a result, and no person is asked."""
    short = [stage(STAGES[0]), stage(STAGES[3])]
    standing = dataclasses.replace(stage(of, verdict), level=level)
    run = facts(stages=short, verdicts=[standing, *short], of_run={"required_stages": (STAGES[0], STAGES[3])},
                of_node={"inconclusive": 2})  # fmt: skip
    assert ending.end_of_run(run, Verdict.PASS, "standard")[0].inconclusive == count
    assert ending.end_of_run(facts(of_node={"inconclusive": 2}), Verdict.PASS, "standard")[0].inconclusive == 0


def test_a_fail_is_held_for_an_open_breaker_or_for_a_cause_that_others_share() -> None:
    end, _ = ending.end_of_run(facts(stage(verdict=Verdict.FAIL)), Verdict.FAIL, "standard")
    assert end.path == (State.QUARANTINE,)
    closed, opened = (Breaker(out, 20, 2, datetime.timedelta(hours=24), 20) for out in (("a",), ("a", "b")))

    def held(breaker: Breaker | None, *findings: object, verdict: Verdict = Verdict.FAIL) -> tuple[bool, bool]:
        after, shared = ending.hold_back(end, State.REVALIDATION, verdict, breaker, findings)
        return bool(after.why_held) and State.QUARANTINE not in after.path, shared

    assert held(closed, FAILED) == (False, False)
    assert held(opened, FAILED) == (True, False)
    assert held(closed, CAUSE, FAILED) == held(None, CAUSE, FAILED) == (True, True)
    assert held(closed, CAUSE, FAILED, dataclasses.replace(FAILED, metric="memory_mismatches")) == (False, False)
    assert held(closed, CAUSE, FAILED, verdict=Verdict.WARN) == (False, False)


def test_nodes_that_failed_alike_before_are_told_of_the_cause() -> None:
    rack = {"rack": "r1"}
    alike = Neighbour("a", rack, frozenset({CAUSE.metric}))
    others = [alike, Neighbour("b", {"rack": "r2"}, alike.failing), Neighbour("c", rack, frozenset({"gpu lost"}))]
    neighbours = {"performance": others, "intake": []}
    within = dataclasses.replace(CAUSE, labels=())
    causes = [("performance", each) for each in (dataclasses.replace(CAUSE, rule="floor"), within, CAUSE)]
    assert set(ending.shared_cause_notes("n", causes, neighbours)) == {"a"}
    assert not ending.shared_cause_notes("n", causes[:-1], neighbours)
    assert not ending.shared_cause_notes("n", [("intake", CAUSE)], neighbours)


def test_what_is_claimed_of_a_run_is_replaced_by_the_facts() -> None:
    claimed = Evidence(KEY, verdict=Verdict.PASS, full_coverage=True, budget_spent=True, person="Ada", reason="fine")
    assert ending.attested(claimed, None) == Evidence(person="Ada", reason="fine")
    failed = ending.attested(claimed, facts(stage(verdict=Verdict.FAIL)))
    assert (failed.verdict, failed.full_coverage, failed.budget_spent) == (Verdict.FAIL, False, False)
    ended = facts(of_run={"verdict": Verdict.PASS})
    assert ending.attested(claimed, ended) == dataclasses.replace(claimed, budget_spent=False)


@pytest.mark.parametrize("last", [None, stage(verdict=Verdict.WARN), stage(full=False)])
def test_the_pass_of_a_block_does_not_qualify_its_members(last: StageVerdict | None) -> None:
    block = stage("cluster_validation")
    run = {"required_stages": (block.stage,), "verdict": Verdict.PASS}
    own = [*WELL[:-1], *([last] if last else []), block]
    for verdicts, full in (([*WELL, block], True), (own, False)):
        known = facts(state=State.CLUSTER_VALIDATION, of_run=run, stages=[block], verdicts=verdicts)
        assert ending.attested(Evidence(KEY), known).full_coverage == full
    gap = facts(state=State.CLUSTER_VALIDATION, of_run=run, stages=[stage(block.stage, full=False)], verdicts=WELL)
    assert not ending.attested(Evidence(KEY), gap).full_coverage


@pytest.mark.parametrize(("state", "path"), [
    (State.REVALIDATION, (State.QUARANTINE, State.TRIAGE)), (State.PRODUCTION, (State.QUARANTINE, State.TRIAGE)),
    (State.INTAKE, (State.REGISTERED,)),
])  # fmt: skip
@pytest.mark.parametrize("shadow", [False, True])
def test_another_machine_leaves_service_at_once_unless_in_shadow_mode(
    state: State, path: tuple[State, ...], shadow: bool
) -> None:
    refused = stage(verdict=Verdict.INCONCLUSIVE)
    seen = facts(refused, state=state, of_node={"shadow": shadow}, clean=True, other_machine=True)
    end, full = ending.end_of_run(seen, Verdict.INCONCLUSIVE, "standard")
    assert (end.path, full) == (() if shadow else path, False)
