"""States and counters under load: what was so once was so, and what cannot be known is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from muster_criteria.measured import THROTTLED
from muster_node.hardware.nvidia.throttling import HARMFUL_FIRST, throttle_fields
from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_node.workloads.under_load.gpus import (
    AT_REST,
    COUNTED,
    HEAT,
    METRICS,
    VIOLATION,
    Found,
    Reading,
    add,
    throttled,
    under_load,
)
from muster_node.workloads.under_load.growth import Growth

GPU = "gpu3"
HEALTHY: dict[str, Any] = {
    "ecc_uncorrected": 0.0,
    "ecc_corrected": 3.0,
    "pcie_replay": 4.0,
    "row_remap_corrected": 0.0,
    "row_remap_uncorrected": 0.0,
    "row_remap_pending": 0.0,
    "row_remap_failed": 0.0,
    "channel_repair_pending": 0.0,
    "tpc_repair_pending": 0.0,
    "unrepairable_memory": 0.0,
    "retired_pages_pending": 0.0,
    "sram_threshold_exceeded": 0.0,
    "recovery_action": "none",
    "mode_change_pending": 0.0,
    "ecc_mode": 1.0,
    "mig_mode": 0.0,
    "nvlink_active": 18.0,
    "fabric_state": "completed",
    "fabric_healthy": 1.0,
    "pcie_generation": 5.0,
    "pcie_width": 16.0,
    "power_limit": 700.0,
    "utilisation": 100.0,
    "foreign_processes": 0.0,
    "gpu_lost": 0.0,
}


def _facts(**changed: Any) -> list[Fact]:
    facts = []
    for name, content in {**HEALTHY, **changed}.items():
        value, text = (None, content) if isinstance(content, str) else (content, None)
        note = "NVML: Unknown Error (error 999)" if content is None else ""
        facts.append(Fact(name, GPU, "count", value, text, note=note))
    return facts


def _found(*readings: Sequence[Fact], sampled: dict[str, float] | None = None) -> dict[tuple[str, str], Found]:
    taken = [Reading(60.0 * place, facts) for place, facts in enumerate(readings)]
    found = list(under_load(taken, [GPU], {GPU: sampled or {}}))
    assert {each.metric for each in found} <= set(METRICS)
    return {(each.metric, next(iter(each.labels.values()), "")): each for each in found}


def test_the_judge_and_the_sweep_name_only_reasons_that_are_reported() -> None:
    reported, usual = {reason for reason, _ in HARMFUL_FIRST}, {"sw_power_cap", "reliability"}
    assert {*COUNTED, "board_limit", "reliability"} == reported  # the two are new in driver 615, and reported once seen
    assert {*reported, VIOLATION} - usual == THROTTLED
    assert {*HEAT} <= THROTTLED
    counted = {reason for driver in ("550", "575.57", "580.95") for reason in throttle_fields(driver)}
    assert counted - usual <= THROTTLED


def test_a_healthy_load_changes_nothing() -> None:
    found = _found(_facts(), _facts(), _facts())
    assert found["ecc_uncorrected_delta", ""].value == found["pcie_replay_rate", ""].value == 0.0
    assert found["nvlink_active", ""].value == 18.0
    assert found["recovery_action", ""].text == "none"
    assert found["counters_reset", ""].value == found["settings_changed", ""].value == found["gpu_lost", ""].value == 0
    assert found["pcie_generation_loaded", ""].value == 5.0


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("row_remap_pending", 1.0), ("row_remap_failed", 1.0), ("sram_threshold_exceeded", 1.0),
        ("nvlink_active", 17.0),
        ("recovery_action", "reset of the GPU"), ("fabric_state", "not started"), ("fabric_healthy", 0.0),
        ("ecc_mode", 0.0), ("pcie_width", 1.0), ("foreign_processes", 1.0), ("gpu_lost", 1.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", [1, 2, 3])
def test_what_was_so_once_was_so(name: str, bad: float | str, when: int) -> None:
    """In the middle of the load, near its end, or after it."""
    readings = [_facts() for _ in range(4)]
    readings[when] = _facts(**{name: bad})
    found = _found(*readings)[name, ""]
    assert bad in (found.value, found.text)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("row_remap_pending", 1.0), ("row_remap_failed", 1.0), ("retired_pages_pending", 1.0), ("nvlink_active", 10.0),
        ("channel_repair_pending", 1.0), ("tpc_repair_pending", 1.0), ("unrepairable_memory", 1.0),
        ("sram_threshold_exceeded", 1.0), ("mode_change_pending", 1.0), ("fabric_healthy", 0.0),
        ("recovery_action", "reset of the GPU"), ("foreign_processes", 1.0), ("gpu_lost", 1.0), ("pcie_width", 1.0),
    ],
)  # fmt: skip
def test_what_was_bad_before_the_load_and_recovered_in_it_was_bad(name: str, bad: float | str) -> None:
    found = _found(_facts(**{name: bad}), _facts(), _facts())[name, ""]
    assert bad in (found.value, found.text)


def test_no_counter_that_is_known_is_no_absence_of_resets() -> None:
    unknown = dict.fromkeys(("ecc_uncorrected", "ecc_corrected", "pcie_replay", "row_remap_corrected",
                             "row_remap_uncorrected"))  # fmt: skip
    found = _found(_facts(**unknown), _facts(**unknown))["counters_reset", ""]
    assert found.value is None
    assert "error 999" in found.note


@pytest.mark.parametrize("name", ["row_remap_pending", "nvlink_active", "fabric_healthy", "recovery_action"])
def test_a_state_that_cannot_be_read_after_the_load_is_missing(name: str) -> None:
    found = _found(_facts(), _facts(), _facts(**{name: None}))[name, ""]
    assert (found.value, found.text) == (None, None)
    assert "error 999" in found.note


def test_a_double_bit_error_and_a_reset_of_its_counter_are_both_found() -> None:
    found = _found(_facts(), _facts(ecc_uncorrected=2.0), _facts(ecc_uncorrected=0.0))
    assert found["ecc_uncorrected_delta", ""].value == 2.0
    assert found["counters_reset", ""].value == 1.0
    assert "ecc_uncorrected" in found["counters_reset", ""].note


def test_replays_within_one_minute_are_no_rate_of_hours() -> None:
    readings: list[Reading] = []
    for place in range(1441):
        add(readings, Reading(10.0 * place, _facts(pcie_replay=4.0 if place < 700 else 1904.0)))
    rates = [each.value for each in under_load(readings, [GPU], {}) if each.metric == "pcie_replay_rate"]
    assert rates == [1900.0]


@pytest.mark.parametrize(("apart_s", "rate"), [(10.0, 12.0), (120.0, 1.0)])
def test_the_rate_of_replays_is_of_the_worst_minute(apart_s: float, rate: float) -> None:
    counts = [0, 2, 4, 6, 8, 10, 12, 13, 14, None, 14]
    readings = [Reading(apart_s * place, _facts(pcie_replay=count)) for place, count in enumerate(counts)]
    assert [f.value for f in under_load(readings, [GPU], {}) if f.metric == "pcie_replay_rate"] == [rate]


@pytest.mark.parametrize("apart_s", [10.0, 10.2, 10.6, 12.1, 19.0, 40.0])
def test_a_steady_rate_of_replays_is_not_less_for_the_time_between_readings(apart_s: float) -> None:
    times = [apart_s * place for place in range(int(600 / apart_s))]
    readings = [Reading(at, _facts(pcie_replay=float(int(9.0 * at / 60.0)))) for at in times]
    (rate,) = [f.value for f in under_load(readings, [GPU], {}) if f.metric == "pcie_replay_rate"]
    assert rate is not None
    assert 8.5 < rate < 10.0


@pytest.mark.parametrize("apart_s", [10.2, 25.0, 40.0])
def test_a_burst_of_replays_within_a_minute_counts_whole(apart_s: float) -> None:
    readings = [Reading(apart_s * place, _facts(pcie_replay=9.0 if place > 4 else 0.0)) for place in range(9)]
    assert [f.value for f in under_load(readings, [GPU], {}) if f.metric == "pcie_replay_rate"] == [9.0]


def test_replays_before_a_reset_are_no_negative_rate() -> None:
    found = _found(_facts(pcie_replay=40.0), _facts(pcie_replay=0.0))
    assert found["pcie_replay_delta", ""].value is found["pcie_replay_rate", ""].value is None


def _nvlink(*counts: float | None) -> list[Fact]:
    facts = []
    for link, count in enumerate(counts):
        labels, note = {"kind": "recovery", "link": str(link)}, "" if count is not None else "refused"
        facts.append(Fact("nvlink_errors", GPU, "count", count, labels=labels, note=note))
    return facts


def test_a_link_that_drops_or_becomes_unreadable_adds_no_zero() -> None:
    for gone in (_nvlink(0.0), _nvlink(0.0, None)):
        found = _found([*_facts(), *_nvlink(0.0, 0.0)], [*_facts(), *gone])["nvlink_errors_delta", "recovery"]
        assert found.value is None
        assert "link 1" in found.note
    found = _found([*_facts(), *_nvlink(0.0, 0.0)], [*_facts(), *_nvlink(0.0, 2.0)])["nvlink_errors_delta", "recovery"]
    assert found.value == 2.0


@pytest.mark.parametrize(
    ("reasons", "share"),
    [
        (["none"] * 5, 53.0),
        (["sw_power_cap"] * 2 + ["none"] * 3, 53.0),
        (["sw_power_cap"] * 3 + ["none"] * 2, None),
        (["hw_thermal"] * 5, None),
        ([None] * 5, None),
    ],
)
def test_a_clock_counts_where_the_driver_names_nothing_that_holds_it(
    reasons: list[str | None], share: float | None
) -> None:
    """As ``nvidia-smi -lgc`` leaves it; of readings at rest, and while a limit holds it, a low clock shows nothing."""
    rest = [*_facts(utilisation=0.0, throttle_reason="none"), _clock(17.0)]
    work = [[*_facts(throttle_reason=reason), _clock(50.0 + place % 2 * 3.0)] for place, reason in enumerate(reasons)]
    found = _found(rest, *work, rest)["clock_share", "sm"]
    assert (found.value, bool(found.note)) == (share, share is None)


def test_the_clock_of_a_gpu_that_never_worked_is_not_known() -> None:
    rest = [*_facts(utilisation=0.0, throttle_reason="none"), _clock(17.0)]
    assert _found(*[rest] * 5)["clock_share", "sm"].note == AT_REST


def test_the_highest_clock_of_a_run_is_kept() -> None:
    """Of a load of days, few readings are."""
    taken: list[Reading] = []
    for at, share in enumerate([60.0] * 4 + [100.0] * 20 + [60.0] * 2):
        add(taken, Reading(float(at), [*_facts(throttle_reason="none"), _clock(share)]))
    assert len(taken) < 10
    found = {each.metric: each for each in under_load(taken, [GPU], {})}
    assert found["clock_share"].value == 100.0


def test_of_a_gpu_that_no_reading_came_of_nothing_is_known() -> None:
    """As of a driver that hangs from the beginning: what ended the watch is said, and not that it failed itself."""
    assert {each.value for each in under_load([], [GPU], {}) if each.metric != "counters_reset"} == {None}


def _clock(share: float) -> Fact:
    return Fact("clock_share", GPU, "%", share, labels={"domain": "sm"})


def test_a_power_limit_that_was_lowered_for_a_while_is_a_changed_setting() -> None:
    found = _found(_facts(), _facts(power_limit=400.0), _facts())["settings_changed", ""]
    assert found.value == 1.0
    assert _found(_facts(), _facts(power_limit=None), _facts())["settings_changed", ""].value == 0.0


def test_a_pcie_link_that_rests_is_not_slow_and_one_that_works_slowly_is() -> None:
    idle, busy = {"utilisation": 0.0, "pcie_generation": 1.0}, {"utilisation": 100.0}
    rested = _found(_facts(**idle), _facts(**busy), _facts(**busy), _facts(**busy), _facts(**idle))
    assert rested["pcie_generation_loaded", ""].value == 5.0
    slow = {**busy, "pcie_generation": 1.0}
    found = _found(_facts(**idle), _facts(**busy), _facts(**slow), _facts(**busy), _facts(**idle))
    assert found["pcie_generation_loaded", ""].value == 1.0
    never = _found(_facts(**idle), _facts(**idle))["pcie_generation_loaded", ""]
    assert never.value is None
    assert never.note


def _by_reason(counters: dict[str, Growth], sampled: dict[str, float], seconds: float) -> dict[str, Found]:
    return {each.labels["reason"]: each for each in throttled(GPU, counters, sampled, seconds)}


@pytest.mark.parametrize(("said", "worst"), [
    (["none", "recovery of the IMEX domain", "reset of the GPU"], "reset of the GPU"),
    (["drain of peer traffic", "none", "recovery of the IMEX domain"], "drain of peer traffic"),
    (["reset of the GPU", "reboot of the node", "none"], "reboot of the node"),
    (["recovery of the IMEX domain", "action 9", "none"], "action 9"),
])  # fmt: skip
def test_of_all_that_a_driver_asks_for_the_gravest_counts(said: list[str], worst: str) -> None:
    assert _found(*(_facts(recovery_action=each) for each in said))["recovery_action", ""].text == worst


def test_throttle_reasons_that_are_refused_are_no_zero() -> None:
    found = _by_reason({}, {}, 600.0)
    assert {each.value for each in found.values()} == {None}
    assert all(each.note for each in found.values())


def test_reasons_that_are_read_for_most_of_the_time_are_known_without_counters() -> None:
    found = _by_reason({}, {"none": 580.0, "hw_thermal+hw_power_brake": 10.0}, 600.0)
    assert {reason: each.value for reason, each in found.items()} == {
        "sw_power_cap": 0.0, "hw_slowdown": 0.0, "hw_thermal": 10.0, "sw_thermal": 0.0, "hw_power_brake": 10.0,
    }  # fmt: skip


def test_readings_of_a_small_part_of_the_time_show_throttling_and_never_its_absence() -> None:
    """Each reading takes long: what lies between them is unknown."""
    found = _by_reason({}, {"none": 6.0, "hw_thermal": 3.0}, 90.0)
    assert found["hw_thermal"].value == 3.0
    assert found["sw_thermal"].value is None


def test_a_violation_counter_of_zero_shows_that_there_was_no_heat_of_either_kind() -> None:
    found = _by_reason({"thermal": Growth(0.0)}, {}, 90.0)
    assert found["hw_thermal"].value == found["sw_thermal"].value == 0.0
    assert found["hw_power_brake"].value is None
    assert _by_reason({"thermal": Growth(12.0)}, {}, 90.0)["thermal"].value == 12.0
    assert _by_reason({"thermal": Growth(12.0)}, {}, 90.0)["hw_thermal"].value is None


def test_a_reading_stands_against_a_counter_that_shows_nothing() -> None:
    found = _by_reason({"hw_thermal": Growth(0.0)}, {"hw_thermal": 30.0, "none": 30.0}, 60.0)["hw_thermal"]
    assert found.value == 30.0
    assert found.note


@pytest.mark.parametrize(("counter", "seen", "value"), [
    (Growth(0.04), 1.0, 0.04),  # a reading that caught it stands for a whole interval
    (Growth(2.0), 1.0, 2.0),
    (Growth(0.04), 30.0, 30.0),
    (Growth(0.0), 1.0, 1.0),  # it was seen, so the counter does not count it
    (Growth(0.04, "at least, since it was reset"), 5.0, 5.0),
    (Growth(9.0, "at least, since it was reset"), 5.0, 9.0),
])  # fmt: skip
@pytest.mark.parametrize("reason", ["hw_thermal", "sw_thermal", "hw_power_brake"])
def test_a_counter_counts_where_the_coarser_readings_do_not_contradict_it(
    reason: str, counter: Growth, seen: float, value: float
) -> None:
    found = _by_reason({reason: counter}, {"none": 600.0 - seen, reason: seen}, 600.0)[reason]
    assert found.value == value


def test_a_state_that_nothing_reports_is_not_supported() -> None:
    reading = [fact for fact in _facts() if fact.name != "fabric_healthy"]
    assert _found(reading, reading)["fabric_healthy", ""].note == NOT_SUPPORTED


def test_days_of_the_same_need_little_and_lose_nothing() -> None:
    readings: list[Reading] = []
    for hour in range(500):
        moving = Fact("throttle_time", GPU, "s", float(hour), labels={"reason": "sw_power_cap"})
        down = {"nvlink_active": 17.0} if hour == 333 else {}
        add(readings, Reading(3600.0 * hour, [*_facts(**down), moving]))
    assert len(readings) < 10
    found = {(f.metric, next(iter(f.labels.values()), "")): f for f in under_load(readings, [GPU], {})}
    assert found["nvlink_active", ""].value == 17.0
    assert found["throttle_time", "sw_power_cap"].value == 499.0
    assert found["pcie_generation_loaded", ""].value == 5.0
    assert set(COUNTED) <= {reason for metric, reason in found if metric == "throttle_time"}


@pytest.mark.parametrize(
    "name", ["row_remap_pending", "sram_threshold_exceeded", "recovery_action", "fabric_healthy", "foreign_processes",
             "gpu_lost", "pcie_width", "ecc_uncorrected"],
)  # fmt: skip
def test_what_was_read_once_is_supported(name: str) -> None:
    """A GPU in a bad state answers "not supported" too, which the judge would excuse."""
    readings = [_facts() for _ in range(4)]
    for facts in readings[2:]:
        at = next(place for place, fact in enumerate(facts) if fact.name == name)
        facts[at] = Fact(name, GPU, "count", note=NOT_SUPPORTED)
    found = _found(*readings)[name + "_delta" if name == "ecc_uncorrected" else name, ""]
    assert (found.value, found.text) == (None, None)
    assert found.note not in ("", NOT_SUPPORTED)


def test_a_pcie_link_that_cannot_be_read_any_more_is_not_known_to_be_fast() -> None:
    blind = _facts(pcie_generation=None, pcie_width=None)
    found = _found(_facts(), _facts(), _facts(), blind, blind, blind)
    assert found["pcie_generation_loaded", ""].value is found["pcie_width", ""].value is None
    assert "error 999" in found["pcie_width", ""].note
    narrow = _facts(pcie_width=8.0)
    assert _found(_facts(), narrow, blind)["pcie_width", ""].value == 8.0


def test_a_gpu_whose_work_cannot_be_seen_is_not_known_to_rest() -> None:
    found = _found(*[_facts(utilisation=None)] * 4)["pcie_generation_loaded", ""]
    assert found.value is None
    assert "error 999" in found.note


COMES_AND_GOES = ("nvlink_active", "fabric_state", "fabric_healthy", "pcie_width", "foreign_processes")


@pytest.mark.parametrize("name", COMES_AND_GOES)
def test_what_may_come_and_go_is_not_known_where_most_of_the_load_was_not_read(name: str) -> None:
    found = _found(_facts(), *[_facts(**{name: None}) for _ in range(4)], _facts())[name, ""]
    assert (found.value, found.text) == (None, None)
    assert "error 999" in found.note


@pytest.mark.parametrize("name", COMES_AND_GOES)
def test_one_reading_that_fails_between_two_others_is_no_gap(name: str) -> None:
    found = _found(_facts(), _facts(), _facts(**{name: None}), _facts(), _facts())[name, ""]
    assert (found.text or found.value) == (HEALTHY[name] or 0.0)


@pytest.mark.parametrize(("name", "bad"), [("nvlink_active", 17.0), ("pcie_width", 1.0), ("foreign_processes", 2.0)])
def test_what_was_seen_stands_however_little_was_read(name: str, bad: float) -> None:
    unread = [_facts(**{name: None}) for _ in range(4)]
    assert _found(_facts(), _facts(**{name: bad}), *unread, _facts())[name, ""].value == bad


def test_a_pcie_link_that_was_not_read_for_most_of_its_work_is_not_known_to_be_fast() -> None:
    unread = [_facts(pcie_generation=None) for _ in range(5)]
    found = _found(_facts(), _facts(), *unread, _facts(), _facts())["pcie_generation_loaded", ""]
    assert (found.value, "error 999" in found.note) == (None, True)
