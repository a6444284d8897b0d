"""Every rule, just inside and just outside; and what rules do where they have nothing to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from muster_criteria.kinds.kind import Times
from muster_criteria.rows import PRESENCE, Row, rows_of
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import list_skus
from muster_criteria.stage.frame import Frame, build_frame
from muster_criteria.stage.rules import RULES, Rule
from tests.muster_criteria.nodes import MakeCase, shipped
from tests.muster_criteria.violations import violations

MakeLimit = Callable[..., Limit]
KINDS = {
    (limit.key, limit.breach, limit.device, type(limit.value)): (name, index)
    for name in list_skus()
    for index, limit in enumerate(shipped(name).all_limits)
}
LIMITS = [
    pytest.param(name, index, id=f"{key}-{breach}-{device}-{kind.__name__}")
    for (key, breach, device, kind), (name, index) in KINDS.items()
]
"""One shipped limit of each key, breach, kind of device and type of value."""
UP, DOWN = math.inf, -math.inf
LOWER = ("floor", "at_least", "siblings_at_least")


def row(
    limit: Limit, device: str, value: float | str | None, spread: float | None = None, unit: str | None = None
) -> Row:
    text = value if isinstance(value, str) else None
    number = None if isinstance(value, str) else value
    labels = tuple(sorted(limit.labels.items()))
    unit = unit or ("GB/s" if limit.key == "spread_at_most" else limit.unit)
    return Row("probe", limit.metric, device, labels, unit, number, text, 5, spread, "")


def judged(sku: Sku, limits: Sequence[Limit], rows: Sequence[Row], stage: str = "intake") -> Frame:
    return build_frame(rows, sku.model_copy(update={"limits": tuple(limits), "inventory": ()}), stage)


def broken(frame: Frame) -> dict[str, list[int]]:
    return {
        column: rows
        for column, rows in violations(frame.margins(frame.applicable()), frame.applicable()).items()
        if rows
    }


def just(value: float, towards: float) -> float:
    return float(np.nextafter(value, towards))


def edge(limit: Limit) -> tuple[list[Row], list[Row]]:
    """Rows just inside and just outside of a limit; where there are several, the first is the one on the edge."""
    device = limit.device if limit.device in ("node", "memory") else f"{limit.device}0"
    inside, outside = (DOWN, UP) if limit.key in ("ceiling", "at_most", "siblings_at_most") else (UP, DOWN)
    value: Any = limit.value
    if limit.key == "spread_at_most":
        return [row(limit, device, 1.0, value / 100)], [row(limit, device, 1.0, just(value / 100, UP))]
    if isinstance(value, Times):
        other = Row("probe", value.metric, device, tuple(value.labels.items()), limit.unit, 3.0, None, 1, None, "")
        return [row(limit, device, value.times * 3.0), other], [
            row(limit, device, just(value.times * 3.0, outside)),
            other,
        ]
    if limit.key.startswith("siblings_"):
        others = [row(limit, f"{limit.device}{n}", 100.0) for n in range(1, max(7, limit.siblings))]
        at = value * 100.0
        return [row(limit, device, just(at, inside)), *others], [row(limit, device, just(at, outside)), *others]
    if limit.key == "matches":
        good = {r"\S": "x", "^(ok|warning)$": "warning"}.get(value, value.strip("^$"))
        good = "none" if good.startswith("(none|") else good
        return [row(limit, device, good)], [row(limit, device, " ")]
    if limit.key == "one_of":
        return [row(limit, device, value[0])], [row(limit, device, f"{value[0]}d")]
    if isinstance(value, str):
        return [row(limit, device, value)], [row(limit, device, f"{value}d")]
    if limit.key in ("exactly", "equals"):
        return [row(limit, device, value)], [row(limit, device, just(value, UP))]
    return [row(limit, device, value)], [row(limit, device, just(value, outside))]


@pytest.mark.parametrize(("name", "index"), LIMITS)
def test_every_shipped_limit_breaks_just_outside_and_not_just_inside(name: str, index: int) -> None:
    sku = shipped(name)
    limit = sku.all_limits[index]
    kind = limit.kind.rule
    inside, outside = edge(limit)
    stage = limit.stages[0] if limit.stages else "thermal"

    assert broken(judged(sku, [limit], inside, stage)) == {}
    assert broken(judged(sku, [limit], outside, stage)) == {Rule(kind, limit.breach).column: [0]}


@pytest.mark.parametrize(("name", "index"), LIMITS)
def test_a_limit_keeps_to_its_metric_device_labels_and_stage(name: str, index: int) -> None:
    sku = shipped(name)
    limit = sku.all_limits[index]
    _, outside = edge(limit)
    bad = outside[0]
    others = [
        Row(bad.probe, "other", bad.device, bad.labels, bad.unit, bad.value, bad.text, 1, bad.spread, ""),
        Row(bad.probe, bad.metric, "pump0", bad.labels, bad.unit, bad.value, bad.text, 1, bad.spread, ""),
    ]
    if bad.labels:
        others.append(Row(bad.probe, bad.metric, bad.device, (), bad.unit, bad.value, bad.text, 1, bad.spread, ""))

    for other in others:
        assert not judged(sku, [limit], [other, *outside[1:]], "thermal").applicable() or outside[1:]
        assert 0 not in {at for rows in broken(judged(sku, [limit], [other, *outside[1:]])).values() for at in rows}
    if limit.stages:
        elsewhere = next(stage for stage in ("thermal", "intake") if stage not in limit.stages)
        assert broken(judged(sku, [limit], outside, elsewhere)) == {}


def test_siblings_need_enough_of_them(h100: Sku, make_limit: MakeLimit) -> None:
    limit = make_limit(metric="m", device="gpu", siblings_at_least=0.9, siblings=4)
    slow = [row(limit, "gpu0", 10.0)]

    assert broken(judged(h100, [limit], [*slow, *(row(limit, f"gpu{n}", 100.0) for n in (1, 2, 3))])) != {}
    assert broken(judged(h100, [limit], [*slow, *(row(limit, f"gpu{n}", 100.0) for n in (1, 2))])) == {}
    unmeasured = row(limit, "gpu3", None)
    assert broken(judged(h100, [limit], [*slow, row(limit, "gpu1", 1e2), row(limit, "gpu2", 1e2), unmeasured])) == {}


def test_siblings_are_of_one_kind_and_one_variant(h100: Sku, make_limit: MakeLimit) -> None:
    limit = make_limit(metric="m", device="gpu", siblings_at_least=0.9, siblings=2)
    fast = [Row("probe", "m", f"gpu{n}", (("dtype", "fp8"),), "count", 100.0, None, 1, None, "") for n in range(4)]
    slow = [Row("probe", "m", f"gpu{n}", (("dtype", "bf16"),), "count", 50.0, None, 1, None, "") for n in range(4)]
    node = [Row("probe", "m", "node", (("dtype", "bf16"),), "count", 400.0, None, 1, None, "")]

    frame = judged(h100, [limit], [*fast, *slow, *node])

    assert broken(frame) == {}
    assert frame["siblings_median"].tolist() == [100.0] * 4 + [50.0] * 4 + [400.0]


@pytest.mark.parametrize(("healthy", "bad"), [(5, 3), (4, 4), (2, 2), (2, 1)])
@pytest.mark.parametrize("low", [89.0, 45.0])
def test_half_of_a_node_that_is_slow_alike_is_named(
    h100: Sku, make_limit: MakeLimit, low: float, healthy: int, bad: int
) -> None:
    limit = make_limit(metric="m", device="gpu", siblings_at_least=0.9)
    values = [100.0] * healthy + [low] * bad

    frame = judged(h100, [limit], [row(limit, f"gpu{n}", value) for n, value in enumerate(values)])

    assert broken(frame) == {"siblings_at_least_fail": list(range(healthy, healthy + bad))}


@pytest.mark.parametrize(("others", "beyond"), [(5, 3), (2, 1)])
def test_devices_far_above_most_are_named(h100: Sku, make_limit: MakeLimit, others: int, beyond: int) -> None:
    limit = make_limit(metric="m", device="gpu", siblings_at_most=1.3)
    values = [100.0] * others + [131.0] * beyond

    frame = judged(h100, [limit], [row(limit, f"gpu{n}", value) for n, value in enumerate(values)])

    assert broken(frame) == {"siblings_at_most_fail": list(range(others, others + beyond))}


@pytest.mark.parametrize("row_difference", [0.016, 0.020])
def test_the_rear_row_of_an_air_path_is_hotter_and_not_bad(case: MakeCase, row_difference: float) -> None:
    """°C/W of four GPUs behind four others, which breathe what those have warmed by 11 to 14 °C at 700 W."""
    altered = case("thermal")
    for slot in range(8):
        altered.set("thermal_resistance", f"gpu{slot}", value=0.05 + row_difference * (slot >= 4))
    assert altered.judge().findings == ()


@pytest.mark.parametrize(("healthy", "better"), [(2, 1), (3, 1), (4, 3), (5, 3)])
@pytest.mark.parametrize(("key", "share", "far"), [("siblings_at_least", 0.9, 130.0), ("siblings_at_most", 1.3, 50.0)])
def test_a_minority_that_is_better_makes_none_bad(
    h100: Sku, make_limit: MakeLimit, key: str, share: float, far: float, healthy: int, better: int
) -> None:
    limit = make_limit(**{"metric": "m", "device": "gpu", key: share})
    values = [100.0] * healthy + [far] * better

    assert broken(judged(h100, [limit], [row(limit, f"gpu{n}", value) for n, value in enumerate(values)])) == {}


def test_the_tighter_of_two_limits_counts(h100: Sku, make_limit: MakeLimit) -> None:
    low, high = (make_limit(metric="m", device="gpu", floor=floor) for floor in (5.0, 9.0))
    for limits in ((low, high), (high, low)):
        frame = judged(h100, limits, [row(low, "gpu0", 7.0)])
        assert broken(frame) == {"floor_fail": [0]}
        assert frame["floor_fail_at"].tolist() == [9.0]


def test_a_limit_relative_to_nothing_says_nothing(h100: Sku, make_limit: MakeLimit) -> None:
    limit = make_limit(metric="m", device="node", floor={"times": 2, "metric": "other"})
    other = Row("p", "other", "node", (), "count", 5.0, None, 1, None, "")
    twice = [other, Row("q", "other", "node", (), "count", 6.0, None, 1, None, "")]

    assert not judged(h100, [limit], [row(limit, "node", 1.0)]).applicable()
    assert not judged(h100, [limit], [row(limit, "node", 1.0), *twice]).applicable()
    assert broken(judged(h100, [limit], [row(limit, "node", 1.0), other])) == {"floor_fail": [0]}


def test_a_limit_relative_to_the_node(h100: Sku, make_limit: MakeLimit) -> None:
    limit = make_limit(metric="m", device="gpu", ceiling={"times": 0.5, "metric": "all", "device": "node"})
    node = Row("p", "all", "node", (), "count", 10.0, None, 1, None, "")

    frame = judged(h100, [limit], [row(limit, "gpu0", 5.0), row(limit, "gpu1", 5.1), node])

    assert broken(frame) == {"ceiling_fail": [1]}


def test_another_unit_is_not_compared(h100: Sku, make_limit: MakeLimit) -> None:
    limit = make_limit(metric="m", device="gpu", floor=1000.0, unit="GB/s")

    frame = judged(h100, [limit], [row(limit, "gpu0", 3_000_000.0, unit="MB/s")])

    assert not frame.applicable()
    assert not frame["usable"].any()
    assert "GB/s" in frame["note"][0]


def test_no_rule_says_anything_of_what_was_not_measured(h100: Sku, make_limit: MakeLimit) -> None:
    limits = [
        make_limit(metric="m", device="gpu", **keys)
        for keys in ({"floor": 1}, {"ceiling": 1}, {"exactly": 1}, {"spread_at_most": 1}, {"siblings_at_least": 0.5})
    ]

    assert not judged(h100, limits, [row(limits[0], f"gpu{n}", None, 0.5) for n in range(8)]).applicable()


@pytest.mark.parametrize("rows", [[], [None]])
def test_an_empty_frame_breaks_nothing_and_nothing_breaks(h100: Sku, make_limit: MakeLimit, rows: list[Any]) -> None:
    limit = make_limit(metric="m", device="gpu", floor=1)

    assert not judged(h100, [limit], [row(limit, "gpu0", value) for value in rows]).applicable()


def test_texts_are_compared_as_texts(h100: Sku, make_limit: MakeLimit) -> None:
    one_of = make_limit(metric="m", device="gpu", one_of=["a", "b"], unit="text")
    equals = make_limit(metric="n", device="gpu", equals="a", unit="text")
    rows = [row(one_of, "gpu0", "b"), row(one_of, "gpu1", "c"), row(equals, "gpu0", "a"), row(equals, "gpu1", "A")]

    assert broken(judged(h100, [one_of, equals], rows)) == {"expected_fail": [1, 3]}


@pytest.mark.parametrize("extra", [False, True])
def test_a_device_that_is_missing_or_one_too_many(case: MakeCase, extra: bool) -> None:
    changed = case("intake")
    if extra:
        changed.add("inventory", "gpu_uuid", "gpu8", "GPU-8", "text")
    else:
        changed.raw["measurements"] = [m for m in changed.raw["measurements"] if m["device"] != "gpu3"]

    frame = build_frame(rows_of(changed.result(), changed.sku), changed.sku, "intake")

    rows = [frame.row(at) for at in np.flatnonzero(frame["expected_devices_fail"] < 0)]
    wrong = [(row["metric"], row["device"], row["value"]) for row in rows]
    assert wrong == [(PRESENCE, "gpu8", 1.0) if extra else (PRESENCE, "gpu3", 0.0)]


def test_each_rule_has_a_column_of_its_own() -> None:
    assert len({rule.column for rule in RULES}) == len(RULES)
