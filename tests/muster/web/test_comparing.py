"""Figures of several nodes or runs side by side: the page of a block, two runs compared, telemetry. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import math

import pytest

from muster.model.figures import Point
from muster.web import block, compare, fleet, plots
from muster_criteria.model import Coverage, Finding, Judgement, Observation, Verdict
from muster_reports.model import RunReport, Series, StageReport
from tests.muster.fleet import FINDING

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def observed(metric: str, device: str, value: float | None, text: str | None = None, **more: object) -> Observation:
    plain = Observation("probe", metric, device, "GB/s", value, text, (), 1, None, None, None, "", True, "")
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


def report(
    node: str,
    *rows: Observation,
    findings: tuple[Finding, ...] = (),
    telemetry: tuple[Series, ...] = (),
    environment: tuple[tuple[str, str], ...] = (),
) -> RunReport:
    verdict = Verdict.FAIL if findings else Verdict.PASS
    judgement = Judgement(
        "performance", "short", verdict, "", Coverage(1, 1, 1), findings, rows, False, "h100-sxm-8", "1", ("a note",)
    )
    return RunReport(
        node, "h100-sxm-8", f"{node}__x", "cluster_qualification", "x", False, verdict, "", "qualified", "qualified",
        NOW, NOW, (), environment, (StageReport(judgement, NOW, 1.0, (), telemetry),),
    )  # fmt: skip


def test_a_block_shows_the_failed_first_each_members_figures_and_what_they_proved() -> None:
    ranks = observed("ranks", "node", 8.0)
    found = block.of_reports([
        report("a", observed("busbw", "node", 400.0), observed("transport", "node", None, "IB"), ranks),
        report("b", observed("busbw", "node", 90.0), observed("transport", "node", None, "TCP"), findings=(FINDING,)),
        report("c", observed("busbw", "node", 401.0), observed("transport", "node", None, "IB")),
    ])  # fmt: skip
    assert [each.node for each in found.members] == ["b", "a", "c"]
    (strip,) = found.strips
    assert (strip.least, strip.most) == ("b", "c")
    assert [dot.title for dot in strip.dots] == ["a: 400 GB/s", "b: 90 GB/s", "c: 401 GB/s"]
    assert found.proofs == [block.Proof("transport", (("IB", ("a", "c")), ("TCP", ("b",))))]
    assert found.alike == ["ranks in performance: 8 GB/s"]
    assert found.notes == ("a note",)


def test_two_runs_differ_most_where_the_change_is_greatest_and_a_limit_shows_whether_it_is_for_the_worse() -> None:
    left = report(
        "a", observed("rate", "gpu0", 100.0, floor=90.0), observed("rate", "gpu1", 102.0, floor=90.0),
        observed("heat", "gpu0", 60.0, ceiling=80.0, unit="°C"),
        observed("alone", "gpu0", 1.0), observed("same", "gpu0", 0.0),
        environment=(("driver", "570"), ("kernel", "6.1"), ("boot_id", "x"), ("serials gpu0", "S1")),
    )  # fmt: skip
    right = report(
        "a", observed("rate", "gpu0", 50.0, floor=90.0), observed("rate", "gpu1", 51.0, floor=90.0),
        observed("heat", "gpu0", 54.0, ceiling=80.0, unit="°C"), observed("same", "gpu0", 0.0),
        findings=(FINDING,),
        environment=(("driver", "575"), ("kernel", "6.1"), ("boot_id", "y"), ("serials gpu0", "S2")),
    )  # fmt: skip
    found = compare.compare(left, right)
    assert [(row.metric, row.change, row.better) for row in found.rows] == [
        ("rate (gpu)", -0.5, False), ("heat (gpu)", -0.1, True), ("same (gpu)", 0.0, None), ("alone (gpu)", None, None),
    ]  # fmt: skip
    assert (found.only_left, found.only_right) == ((), (FINDING.summary,))
    assert found.versions == (("driver", "570", "575"), ("serials gpu0", "S1", "S2"))
    other = dataclasses.replace(right, node="b")
    assert compare.compare(left, other).versions == (("driver", "570", "575"),), "two nodes always have other serials"


def test_what_rises_from_0_changes_most_and_noise_is_neither_better_nor_worse() -> None:
    def run(wrong: float, rate: float) -> RunReport:
        return report("a", observed("heat", "gpu0", 100.0 - 50.0 * wrong, ceiling=100.0, unit="°C"),
                      observed("rate", "gpu0", rate, floor=90.0),
                      observed("wrong", "gpu0", wrong, ceiling=1.0, unit="count"))  # fmt: skip

    left, right = run(0.0, 100.0), run(1.0, 99.96)
    found = compare.compare(left, right).rows
    assert [(row.metric, row.change, row.better) for row in found] == [
        ("wrong (gpu)", math.inf, False), ("heat (gpu)", -0.5, True), ("rate (gpu)", pytest.approx(-4e-4), None),
    ]  # fmt: skip
    assert len({compare.words(row) for row in (*found, compare.compare(left, left).rows[1])}) == 3


def test_a_fault_that_both_runs_show_is_found_in_neither_alone_whatever_was_measured() -> None:
    def found(device: str, rate: float) -> RunReport:
        summary = f"{device} is slow: {rate} TFLOPS."
        return report("a", findings=(dataclasses.replace(FINDING, device=device, summary=summary),))

    again = compare.compare(found("gpu3", 598.2), found("gpu3", 598.1))
    assert (again.only_left, again.only_right) == ((), ())
    other = compare.compare(found("gpu3", 598.2), found("gpu4", 598.1))
    assert (other.only_left, other.only_right) == (("gpu3 is slow: 598.2 TFLOPS.",), ("gpu4 is slow: 598.1 TFLOPS.",))


def test_one_slow_device_of_eight_stands_first_by_name() -> None:
    def run(slow: float, heat: float) -> RunReport:
        rates = [observed("rate", f"gpu{n}", slow if n == 3 else 100.0, floor=90.0) for n in range(8)]
        hot = {"ceiling": 80.0, "unit": "°C"}
        return report("a", *rates, observed("heat", "gpu0", 60.0, **hot), observed("heat", "gpu1", heat, **hot),
                      observed("free", "gpu0", 1.0, unit="GiB"), observed("free", "gpu1", 2.0, unit="GiB"))  # fmt: skip

    first, second, free = compare.compare(run(100.0, 59.0), run(40.0, 66.0)).rows
    assert (first.metric, first.change, first.worst) == (
        "rate (gpu)", 0.0, compare.Worst("gpu0", 100.0, "gpu3", 40.0, -0.6, False),
    )  # fmt: skip
    assert (second.metric, second.worst) == ("heat (gpu)", compare.Worst("gpu0", 60.0, "gpu1", 66.0, 0.1, False))
    assert (free.metric, free.worst) == ("free (gpu)", None)


@pytest.mark.parametrize(
    ("limits", "better"),
    [
        ({"floor": 80.0, "ceiling": 200.0}, False), ({"floor": 80.0}, False), ({"ceiling": 200.0}, True), ({}, None),
        ({"floor": 80.0, "ceiling": 80.0}, None), ({"ceiling": 200.0, "unit": "TFLOPS/GHz"}, False),
        ({"unit": "GB/s"}, False),
    ],
)  # fmt: skip
def test_a_rate_or_a_floor_says_that_more_is_better_whatever_else_limits_it(
    limits: dict[str, object], better: bool | None
) -> None:
    left, right = (report("a", observed("of", "gpu0", value, **{"unit": "°C", **limits})) for value in (100.0, 90.0))
    (row,) = compare.compare(left, right).rows
    assert row.better is better


def test_the_memory_of_the_host_and_of_the_gpus_are_two_figures_and_so_are_two_stages() -> None:
    both = report("a", observed("rate", "gpu0", 2900.0, floor=90.0), observed("rate", "memory", 300.0, floor=90.0))
    one, other = (dataclasses.replace(both.stages[0].judgement, stage=stage) for stage in ("burn_in", "performance"))
    twice = dataclasses.replace(both, stages=tuple(StageReport(each, NOW, 1.0, ()) for each in (one, other)))
    drawn = plots.strips(plots.seen(twice))
    names = ["rate (gpu) in burn_in", "rate (gpu) in performance", "rate (memory) in burn_in",
             "rate (memory) in performance"]  # fmt: skip
    assert [(each.metric, len(each.dots)) for each in drawn] == [(name, 1) for name in names]
    rows = [(row.stage, row.metric) for row in compare.compare(twice, twice).rows]
    assert sorted(rows) == [
        (stage, f"rate ({kind})") for stage in ("burn_in", "performance") for kind in ("gpu", "memory")
    ]


def test_a_value_that_breaks_its_limit_is_not_drawn_as_the_limit() -> None:
    (strip,) = plots.strips(plots.seen(report("a", observed("rate", "gpu0", 2609.7, floor=2609.9, ok=False))))
    assert ([dot.title for dot in strip.dots], strip.limits[0][1]) == (["gpu0: 2,609.7 GB/s"], "at least 2,609.9 GB/s")
    point = Point(NOW, "r", "long", "gpu0", (), 2609.7, "GB/s", 2609.9, None)
    drawn = plots.life([point])
    assert drawn is not None
    assert (drawn.lines[0].last.split()[1], drawn.limits[0][1]) == ("2,609.7", "at least 2,609.9 GB/s")


def test_telemetry_is_one_line_a_device() -> None:
    lines = tuple(Series("temperature", f"gpu{n}", "°C", (0.0, 1.0, 2.0), (40.0, 60.0 + n, 50.0)) for n in range(2))
    named = fleet.curves_of(report("a", telemetry=lines))
    (curves,) = named.values()
    drawn = plots.curves(curves)
    assert drawn is not None
    assert [line.last for line in drawn.lines] == ["gpu0: 40 to 60 °C", "gpu1: 40 to 61 °C"]
    assert (drawn.low, drawn.high, drawn.end) == ("40", "61", "2 s")
    assert plots.curves([Series("power", "gpu0", "W", (0.0,), (1.0,))]) is None


def test_a_line_stands_against_no_limit_of_another() -> None:
    def point(device: str, value: float, floor: float) -> Point:
        return Point(NOW, "r", "long", device, (), value, "TFLOPS", floor, None)

    one = point("gpu0", 718.0, 650.0)
    both = plots.life([one, point("gpu1", 1340.0, 1200.0)])
    assert both is not None
    assert both.limits == ()
    assert [line.last.rpartition(", ")[2] for line in both.lines] == ["at least 650 TFLOPS", "at least 1,200 TFLOPS"]
    alike = plots.life([point("gpu0", 700.0, 600.0), one, point("gpu1", 719.0, 650.0)])
    assert alike is not None
    assert [words for _, words in alike.limits] == ["at least 650 TFLOPS"]
    assert not any("at least" in line.last for line in alike.lines)
