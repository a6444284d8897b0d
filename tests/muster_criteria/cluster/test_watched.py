"""GPUs' counters over a block's loads: who fails for them, and what is the hall's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from muster_criteria.cluster.model import BlockFindings, Measurements
from muster_criteria.cluster.watched import COMMON_MIN, PROBE, judge_watched, watch_limits
from muster_criteria.measured import NOT_SUPPORTED, Measured
from muster_criteria.model import Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.cluster_results import Sent

LIMITS = watch_limits(load_sku("h100-sxm-8").limits)
HEAT = {"reason": "hw_thermal"}


def row(
    metric: str, value: float | None, device: str = "gpu1", probe: str = PROBE, note: str = "", **labels: str
) -> Measured:
    return Measured(probe=probe, metric=metric, device=device, unit="count", value=value, labels=labels, note=note)


def judged(
    rows: dict[str, tuple[Measured, ...]], racks: dict[str, str] | None = None, limits: Sequence[Limit] = LIMITS
) -> BlockFindings:
    whole = Sent("n1", ["n1", "n2"]).member().result
    assert whole is not None
    found = BlockFindings()
    results = {name: whole.model_copy(update={"measurements": own}) for name, own in rows.items()}
    measured = {name: Measurements(each) for name, each in results.items()}
    judge_watched(dict.fromkeys(rows, limits), racks or dict.fromkeys(rows, ""), measured, found)
    return found


@pytest.mark.parametrize(
    ("read", "severity"),
    [
        (row("throttle_time", 12.0, **HEAT), Severity.CRITICAL),
        (row("throttle_time", 0.01, **HEAT), Severity.WARNING),
        (row("throttle_time", 0.0, **HEAT), None),
        (row("throttle_time", None, note=NOT_SUPPORTED, **HEAT), None),
        (row("throttle_time", 40.0, reason="hw_slowdown"), Severity.WARNING),  # moments, by many days
        (row("throttle_peak", 4.0, reason="hw_slowdown"), Severity.CRITICAL),
        (row("throttle_time", 900.0, reason="sw_power_cap"), None),  # usual under load
        (row("ecc_uncorrected_delta", 1.0), Severity.CRITICAL),
        (row("gpu_lost", 1.0), Severity.CRITICAL),
        (row("settings_changed", 1.0), Severity.WARNING),
        (row("throttle_time", 12.0, probe="thermal_soak", **HEAT), None),  # of another load
    ],
)
def test_what_fails_a_node_under_its_own_load_fails_it_in_a_block(read: Measured, severity: Severity | None) -> None:
    found = judged({"n1": (read,), "n2": ()})
    assert [(each.device, each.severity) for each in found.findings.get("n1", ())] == (
        [("gpu1", severity)] if severity else []
    )
    assert set(found.findings) <= {"n1"}
    assert found.suspected == {}


def test_what_could_fail_a_gpu_and_cannot_be_read_is_no_zero() -> None:
    found = judged({"n1": (row("ecc_uncorrected_delta", None, note="it could not be read any more"),), "n2": ()})
    assert {name: [gap.code for gap in gaps] for name, gaps in found.suspected.items()} == {"n1": [Lack.UNREADABLE]}


def test_a_member_of_which_others_used_a_gpu_does_not_pass() -> None:
    found = judged({"n1": (row("foreign_processes", 1.0),), "n2": (row("foreign_processes", 0.0),)})
    assert {name: [gap.code for gap in gaps] for name, gaps in found.suspected.items()} == {"n1": [Lack.INVALID]}
    assert found.findings == {}


@pytest.mark.parametrize("members", [2, 3, 8])
def test_a_hall_that_is_too_hot_fails_no_node(members: int) -> None:
    names = [f"n{number}" for number in range(members)]
    found = judged({**dict.fromkeys(names, (row("throttle_time", 12.0, **HEAT),)), "other": ()})
    common = members >= COMMON_MIN
    assert sorted(found.findings) == ([] if common else names)
    assert {name: [gap.code for gap in gaps] for name, gaps in found.suspected.items()} == (
        {name: [Lack.UNDECIDED] for name in names} if common else {}
    )


@pytest.mark.parametrize(
    ("hot", "alike"),
    [
        ({0, 4, 8}, set()),  # one of four in each of three racks
        ({0, 1, 2, 8}, {0, 1, 2}),  # three of four in one rack
        ({0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}),
        ({*range(1, 4), *range(6, 32)}, {*range(1, 4), *range(6, 32)}),  # most of the block
    ],
)
def test_heat_is_the_halls_where_most_of_a_rack_has_it(hot: set[int], alike: set[int]) -> None:
    heat, names = (row("throttle_time", 12.0, **HEAT),), [f"n{at:02}" for at in range(32)]
    found = judged(
        {name: heat if at in hot else () for at, name in enumerate(names)},
        {name: f"r{at // 4}" for at, name in enumerate(names)},
    )
    assert set(found.suspected) == {names[at] for at in alike}
    assert set(found.findings) == {names[at] for at in hot - alike}


@pytest.mark.parametrize(("hot", "alike"), [(3, 0), (4, 0), (6, 6)])
def test_of_racks_of_one_node_each_only_most_show_a_hot_hall(hot: int, alike: int) -> None:
    names = [f"n{at}" for at in range(8)]
    rows = {name: (row("throttle_time", 12.0, **HEAT),) if at < hot else () for at, name in enumerate(names)}
    found = judged(rows, {name: f"rack {name}" for name in names})
    assert set(found.suspected) == set(names[:alike])
    assert set(found.findings) == set(names[alike:hot])


def test_a_warning_that_many_share_holds_none_of_them() -> None:
    names = [f"n{number}" for number in range(COMMON_MIN)]
    warns = [each.model_copy(update={"breach": "warn"}) for each in LIMITS]
    found = judged(dict.fromkeys(names, (row("throttle_time", 12.0, **HEAT),)), limits=warns)
    assert (sorted(found.findings), found.suspected) == (names, {})


@pytest.mark.parametrize("hot", range(COMMON_MIN + 2))
@pytest.mark.parametrize("racks", [1, 2])
def test_warnings_of_others_excuse_no_node_that_fails_and_hold_none(hot: int, racks: int) -> None:
    names = [f"n{at}" for at in range(COMMON_MIN + 2)]
    rows = {name: (row("throttle_time", 30.0 if at < hot else 0.01, **HEAT),) for at, name in enumerate(names)}
    rows |= {f"cool{at}": () for at in range(20)}
    found = judged(rows, {name: f"r{at % racks if name in names else 9}" for at, name in enumerate(rows)})
    held = set(found.suspected)
    assert held in (set(), set(names[:hot]))
    assert not held or hot >= COMMON_MIN
    assert {name: [each.severity for each in findings] for name, findings in found.findings.items()} == {
        name: [Severity.CRITICAL if at < hot else Severity.WARNING] for at, name in enumerate(names) if name not in held
    }


def test_errors_that_no_hall_causes_fail_each_of_them() -> None:
    names = [f"n{number}" for number in range(COMMON_MIN)]
    found = judged(dict.fromkeys(names, (row("ecc_uncorrected_delta", 1.0),)))
    assert sorted(found.findings) == names


def test_throttling_under_a_hot_inlet_is_no_measurement() -> None:
    hot = row("inlet_temperature", 41.0, "node")
    found = judged({"n1": (row("throttle_time", 12.0, **HEAT), row("gpu_lost", 1.0, "gpu2"), hot), "n2": ()})
    assert [each.metric for each in found.findings["n1"]] == ["gpu_lost"]
    assert [gap.code for gap in found.suspected["n1"]] == [Lack.INVALID]
