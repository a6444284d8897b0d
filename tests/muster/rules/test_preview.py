"""What a dry run says: every probe with its limit, times that add up, and the risks of each state."""

from __future__ import annotations

import itertools

import pytest

from muster.model.stages import CLUSTER_STAGES
from muster.model.states import State
from muster.rules.lifecycle.transitions import TRANSITIONS, Need, path_to_stage
from muster.rules.preview import risks_of_move, stage_minutes, stage_plans, time_needed
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.skus import list_skus, load_sku
from muster_criteria.stages import LEVELS, STAGES
from muster_criteria.words import duration


@pytest.mark.parametrize("name", list_skus())
@pytest.mark.parametrize("level", LEVELS)
def test_it_is_what_the_programme_runs(name: str, level: str) -> None:
    sku = load_sku(name)
    plans = stage_plans(sku, level)
    assert [plan.stage for plan in plans] == list(STAGES)
    for plan in plans:
        calls = programme.stage_calls(sku, plan.stage, level, 0)
        assert [(each.probe, each.timeout_s) for each in plan.probes] == [
            (call.probe, call.timeout_s) for call in calls
        ]
        assert plan.deadline_s >= sum(each.timeout_s for each in plan.probes)
    assert not any(probe.loads for plan in plans for probe in plan.probes if probe.probe == "inventory")
    minutes = stage_minutes(sku, level)
    assert all(60.0 * minutes[plan.stage] > sum(probe.timed_s for probe in plan.probes) for plan in plans)


def test_times_add_up() -> None:
    plans = stage_plans(load_sku("cpu-generic"), "short")
    longest = sum(plan.deadline_s for plan in plans)
    load = sum(probe.timed_s for plan in plans for probe in plan.probes)
    most = "unless a stage has to be repeated"
    assert time_needed(plans, None, 1, 16) == (
        f"at least {duration(load)} under load; at most {duration(longest)} {most} (none like it is recorded yet)"
    )
    assert time_needed(plans, 60.0, 5, 2) == (
        f"at least {duration(load * 3)} under load; about 3 min 00 s, as the latest such runs took; "
        f"at most {duration(longest * 3)} {most}; 5 nodes, 2 at a time"
    )


@pytest.mark.parametrize("name", list_skus())
def test_a_level_asks_for_more_work_than_the_one_below(name: str) -> None:
    """The same probes at every level, with more seeds: minutes, an hour, days."""
    sku = load_sku(name)
    load = [sum(probe.timed_s for plan in stage_plans(sku, level) for probe in plan.probes) for level in LEVELS]
    assert load == sorted(set(load))
    assert load[LEVELS.index("long")] >= 86400


def test_planned_integrity_keeps_to_its_levels() -> None:
    """Timed work of the stage on eight GPUs: a minute, ten minutes, an hour, up to two days (science.md#levels)."""
    sku = load_sku("h100-sxm-8")
    most = {"demo": 60.0, "short": 600.0, "standard": 3600.0, "long": 172800.0}
    for level in LEVELS:
        (plan,) = (each for each in stage_plans(sku, level) if each.stage == "integrity")
        assert sum(probe.timed_s for probe in plan.probes) <= most[level]


def goes_on(state: State, stage: str) -> bool:
    """Whether a run that passed the earlier stages may begin ``stage`` of a node that a person moved into ``state``."""
    done = frozenset(STAGES[: STAGES.index(stage)]) if stage in STAGES else frozenset()
    pairs = itertools.pairwise((state, *path_to_stage(stage, state, done)))
    needs = [TRANSITIONS.get(pair, ()) for pair in pairs]
    return all(Need.RUN in each for each in needs)


def test_a_run_that_cannot_go_on_is_reported() -> None:
    at_work = {State.INTAKE, State.BURN_IN, State.VALIDATION, State.CLUSTER_VALIDATION, State.REVALIDATION}
    for before, after in TRANSITIONS:
        ends = before in at_work and not any(goes_on(after, stage) for stage in (*STAGES, *CLUSTER_STAGES))
        assert ("cannot go on" in " ".join(risks_of_move(before, after))) == ends


def test_whatever_enters_or_leaves_production_is_reported() -> None:
    for before, after in TRANSITIONS:
        sentences = " ".join(risks_of_move(before, after))
        serving = {State.PRODUCTION, State.REVALIDATION}
        assert ("without a full-coverage PASS" in sentences) == (after is State.PRODUCTION and before not in serving)
        assert ("it leaves production" in sentences) == (before in serving and after not in serving)
