"""How states go on between tests, and what is a place's rather than its nodes'."""

from __future__ import annotations

import dataclasses
import datetime
from itertools import accumulate, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.judging import policies
from muster.model.health import Observation, Track
from muster.model.nodes import Node
from muster.model.states import State
from muster.rules.service import health
from muster_criteria.health.policy import HealthAction

POLICY = policies.health()
T0 = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)
STABLE, SWEEP = POLICY.stable_s, 600.0


def at(seconds: float) -> datetime.datetime:
    return T0 + datetime.timedelta(seconds=seconds)


def walk(*readings: tuple[float, bool]) -> Track | None:
    track = None
    for seconds, bad in readings:
        track = health.step(track, bad, at(seconds), POLICY)
    return track


def test_a_state_that_was_never_bad_is_nothing() -> None:
    assert walk((0, False), (600, False)) is None


def test_recovery_counts_from_the_recovery_and_not_from_the_fault() -> None:
    long_bad = [(each * SWEEP, True) for each in range(10)]
    recovered = 10 * SWEEP
    assert not walk(*long_bad, (recovered, False), (recovered + STABLE - 1, False)).over  # type: ignore[union-attr]
    assert walk(*long_bad, (recovered, False), (recovered + STABLE, False)).over  # type: ignore[union-attr]


def test_down_time_adds_up_over_flaps_and_begins_anew_once_it_was_over() -> None:
    flapping = [(0, True), (600, False), (1200, True), (1800, False), (2400, True), (3000, False)]
    track = walk(*flapping)
    assert track is not None
    assert (track.down_s, track.flaps, track.over) == (1800, 2, False)
    later = 3000 + STABLE
    again = walk(*flapping, (later, False), (later + 600, True))
    assert again is not None
    assert (again.down_s, again.flaps, again.over) == (0, 0, False)


def test_a_state_that_a_clock_ahead_has_written_is_over_as_any_other() -> None:
    ahead = 365 * 86400.0
    track = walk((ahead, True), (ahead + 600, False), (1200, False), (1200 + STABLE, False))
    assert track is not None
    assert track.over


def test_a_boot_brings_nothing() -> None:
    up = POLICY.bring_up_s
    assert health.step(None, True, T0, POLICY, uptime_s=up - 1) is None
    assert health.step(None, True, T0, POLICY, uptime_s=up) is not None
    good = walk((0, True), (600, False))
    assert health.step(good, True, at(1200), POLICY, uptime_s=up - 1) == good, "no flap of a node that comes up"


@given(st.lists(st.tuples(st.floats(-7200, 7200), st.booleans()), max_size=40))
def test_no_clock_makes_time_negative_or_longer_than_it_was(steps: list[tuple[float, bool]]) -> None:
    track = None
    times = list(accumulate(seconds for seconds, _ in steps))
    for seconds, (_, bad) in zip(times, steps, strict=True):
        track = health.step(track, bad, at(seconds), POLICY)
    forward = sum(max(seconds, 0.0) for seconds, _ in steps)
    assert track is None or 0 <= track.down_s <= forward + 1e-3


def node(name: str, **labels: str) -> Node:
    return Node(
        name=name, host=name, port=22, user="", host_key="", sku="h100-sxm-8", state=State.PRODUCTION, launch={},
        work_dir="", rack=labels.pop("rack", ""), pool="", labels=labels, simulated=False, added_at=T0,
    )  # fmt: skip


IDS = count(1)


def seen(name: str, check: str = "port_down", age_s: float = 60, **changed: object) -> Observation:
    fields = {
        "id": next(IDS), "node": name, "part": "nic:mlx5_0", "device": "nic:mlx5_0", "check": check, "value": "",
        "first_seen": at(-age_s), "last_seen": at(-age_s), "count": 1, "boot_id": "b", "source": "sweep",
        "severity": "", "rate": None, "action": HealthAction.LEAVE_WHEN_JOB_ENDS,
        "track": Track(True, at(-age_s), at(-age_s), 4000.0), "most": HealthAction.AT_ONCE, "acted": "",
    }  # fmt: skip
    return Observation(**(fields | changed))  # type: ignore[arg-type]


def test_half_a_rack_at_once_is_the_racks() -> None:
    fleet = [node(f"n{each}", rack="r1" if each < 36 else "r2", leaf=f"l{each % 4}") for each in range(72)]
    found = [seen(f"n{each}") for each in range(18)]
    (common,) = health.common(found, fleet, POLICY)
    assert (common.place, len(common.nodes), common.of) == ("rack r1", 18, 36)
    own = [seen("n50"), seen("n0", part="nic:mlx5_1", age_s=86400.0)]
    assert health.theirs([*found, *own], [common]) == own
    assert health.common(found[:17], fleet, POLICY) == []
    said = [dataclasses.replace(each, most=HealthAction.TEST_SOONER) for each in found]
    assert health.common(said, fleet, POLICY) == [common]
    by_others = [dataclasses.replace(each, source="acme") for each in said]
    assert health.common(by_others, fleet, POLICY) == []  # who may drain no node keeps none from being drained
    may_drain = [dataclasses.replace(each, source="acme") for each in found]
    assert health.common(may_drain, fleet, POLICY) == [common]


def test_what_is_over_or_of_a_node_out_of_service_is_not_shown_at_once() -> None:
    fleet = [node(f"n{each}", rack="r1") for each in range(6)]
    assert health.common([seen(each.name) for each in fleet[:3]], fleet, POLICY)
    over = Track(False, at(-60), at(-60), over=True)
    for third in (seen("n2", track=over), seen("gone")):
        assert not health.common([*(seen(each.name) for each in fleet[:2]), third], fleet, POLICY)


def test_a_leaf_is_a_place_and_one_node_none() -> None:
    fleet = [node(f"n{each}", leaf="l1" if each < 6 else "l2") for each in range(20)]
    assert health.common([seen("n0"), seen("n0", device="gpu1")], fleet, POLICY) == []
    assert [each.place for each in health.common([seen(f"n{each}") for each in range(4)], fleet, POLICY)] == ["leaf l1"]


def test_a_gpus_error_is_never_a_places_and_old_drops_are_not_at_once() -> None:
    fleet = [node(f"n{each}", rack="r1") for each in range(4)]
    assert health.common([seen(each.name, "gpu_lost", track=None) for each in fleet], fleet, POLICY) == []
    apart = POLICY.place.within_s + 1
    drops = [seen(each.name, age_s=apart * number, track=None) for number, each in enumerate(fleet)]
    assert health.common(drops, fleet, POLICY) == []


def test_what_was_shown_at_once_stays_the_places_however_long_ago() -> None:
    fleet = [node(f"n{each}", rack="r1") for each in range(4)]
    for age_s in (60.0, 86400.0, -86400.0):  # also what a clock that was ahead has written
        found = [seen(each.name, age_s=age_s, track=None) for each in fleet]
        assert [each.nodes for each in health.common(found, fleet, POLICY)] == [tuple(each.name for each in fleet)] * 2


def test_a_node_that_is_read_no_more_still_shows_what_the_others_of_its_place_go_on_to_show() -> None:
    fleet = [node(f"n{each}", rack="r1") for each in range(4)]
    paused = seen("n0", age_s=86400.0)
    since = Track(True, at(-90000.0), T0, 90000.0)
    events = tuple((at(-seconds).timestamp(), 1) for seconds in (86500.0, 60.0))
    for others in ({"track": since}, {"track": None, "recent": events}):
        found = [paused, *(seen(each.name, **others) for each in fleet[1:])]
        assert [paused.id in each.seen for each in health.common(found, fleet, POLICY)] == [True, True]


def test_the_nodes_that_showed_it_are_named_and_those_that_showed_it_again_alone_leave() -> None:
    fleet = [node(f"n{each}", rack="r1") for each in range(8)]
    then, day = POLICY.place.within_s + 1, 86400.0
    before = ((at(-day).timestamp(), 1),)
    again = [seen(f"n{each}", age_s=then * each, track=None, recent=before) for each in range(1, 4)]
    found = [seen("n0", age_s=day, track=None), *again]
    (common, _) = health.common(found, fleet, POLICY)
    assert (common.nodes, common.seen) == (("n0", "n1", "n2", "n3"), {found[0].id})


def test_the_whole_fleet_is_a_place_too() -> None:
    fleet = [node(f"n{each}") for each in range(10)]
    (common,) = health.common([seen(f"n{each}", "unreachable") for each in range(6)], fleet, POLICY)
    assert common.place == "the fleet"


@given(st.dictionaries(st.integers(0, 7), st.booleans(), max_size=8), st.integers(0, 30), st.integers(0, 30))
def test_simulated_nodes_change_nothing_for_real_ones(real: dict[int, bool], others: int, showing: int) -> None:
    fleet = [node(f"n{each}", rack="r1") for each in real]
    found = [seen(f"n{each}") for each, shows in real.items() if shows]
    simulated = [dataclasses.replace(node(f"s{each}", rack="r1"), simulated=True) for each in range(others)]
    theirs = [seen(each.name) for each in simulated[:showing]]
    mixed = health.common([*theirs, *found], [*simulated, *fleet], POLICY)
    assert [each for each in mixed if not each.simulated] == health.common(found, fleet, POLICY)
    assert [each for each in mixed if each.simulated] == health.common(theirs, simulated, POLICY)


def test_a_source_causes_no_more_than_it_may_and_a_watched_group_nothing() -> None:
    xid = seen("n1", "xid/79", severity="ISOLATE", track=None)
    assert health.decide(xid, node("n1"), POLICY, HealthAction.AT_ONCE) is HealthAction.LEAVE_WHEN_JOB_ENDS
    assert health.decide(xid, node("n1"), POLICY, HealthAction.TEST_SOONER) is HealthAction.TEST_SOONER
    watching = POLICY.model_copy(update={"mode": "watch"})
    assert health.decide(xid, node("n1"), watching, HealthAction.AT_ONCE) is HealthAction.NOTE


@pytest.mark.parametrize(
    "changed",
    [{"action": HealthAction.TEST_SOONER}, {"acted": "it left service"}, {"node": "elsewhere"},
     {"track": Track(True, T0, T0, over=True)}, {"track": Track(False, T0, T0)}],
)  # fmt: skip
def test_a_node_leaves_service_for_the_gravest_that_is_bad_now_and_was_not_acted_upon(changed: dict[str, Any]) -> None:
    leaves, at_once = seen("n1", track=None), seen("n1", action=HealthAction.AT_ONCE)
    assert health.due([leaves, at_once], {"n1"}) == health.due([at_once, leaves], {"n1"}) == {"n1": at_once}
    assert health.due([dataclasses.replace(at_once, **changed), leaves], {"n1"}) == {"n1": leaves}


TIMES = st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 50_000)), max_size=200)


@given(TIMES, st.floats(1, 86_400))
def test_what_is_remembered_never_counts_more_within_a_time_than_was_seen_and_is_bounded(
    steps: list[tuple[float, int]], window: float
) -> None:
    now, all_, kept = 0.0, [], []
    for wait, times in steps:
        now += wait
        all_.append((now, times))
        kept = health.remember(kept, now, times)
    assert len(kept) <= health.RECENT_MAX
    within = [sum(times for when, times in of if now - when <= window) for of in (kept, all_)]
    assert within[0] <= within[1]
    if now <= 86_400:
        assert sum(times for _, times in kept) == sum(times for _, times in all_)


def test_of_more_times_than_are_kept_none_is_forgotten() -> None:
    kept: list[tuple[float, int]] = []
    for minute in range(health.RECENT_MAX + 10):
        kept = health.remember(kept, 60.0 * minute, 3)
    assert len(kept) == health.RECENT_MAX
    assert kept[0] == (0.0, 3 * 11)


def test_what_a_clock_ahead_has_written_is_no_burst() -> None:
    hour, ahead, kept = 3600.0, 10 * 3600.0, []
    for number in range(5):
        kept = health.remember(kept, ahead + number * hour, 1)
    kept = health.remember(kept, 5 * hour, 1)
    assert [times for _, times in kept if kept[-1][0] - _ < hour] == [2], "the last by the wrong clock, and this one"
    assert sum(times for _, times in kept) == 6
