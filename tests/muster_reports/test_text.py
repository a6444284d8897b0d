"""Cleaning and wording."""

from __future__ import annotations

import datetime

import pytest

from muster_criteria.words import duration, figure, number
from muster_reports.text import (
    aligned,
    clean,
    device_list,
    merge_devices,
    moment,
    span,
    wrap,
)


@pytest.mark.parametrize(
    ("dirty", "shown"),
    [
        ("a\r\nBcc: x\n\ty", "a Bcc: x y"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        ("\x1b]8;;http://evil.example\x1b\\link", "link"),
        ("\x9b2Jgone", "gone"),
        ("a\x00b\x7fc\u200bd", "abcd"),
        ("invoice\u202egnp.exe", "invoicegnp.exe"),
        ("half \udcff a pair", "half a pair"),
        ("line\u2028break", "line break"),
        ("  temperature ≥ 80 °C  ", "temperature ≥ 80 °C"),
    ],
)
def test_clean_leaves_one_harmless_line(dirty: str, shown: str) -> None:
    assert clean(dirty) == shown


def test_clean_caps_the_length_and_shows_that_it_did() -> None:
    assert clean("x" * 1000, 10) == "x" * 9 + "…"
    assert clean("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0, "count", "0"),
        (1048576.0, "count", "1,048,576"),
        (98.2412, "%", "98.24 %"),
        (2910.4, "GB/s", "2,910 GB/s"),
        (0.00312, "s", "0.00312 s"),
        (1.0, "bool", "yes"),
        (1e300, "W", "1e+300 W"),
        (float("inf"), "W", "inf W"),
    ],
)
def test_figures_read_well(value: float, unit: str, shown: str) -> None:
    assert figure(value, unit) == shown


def test_a_range_whose_ends_read_the_same_is_one_figure() -> None:
    assert span(620.0, 620.00001, "TFLOPS") == "620 TFLOPS"
    assert span(548, 697, "TFLOPS") == "548–697 TFLOPS"
    assert number(697) == "697"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (2.36, "2.4 s"),
        (41.2, "41 s"),
        (59.7, "1 min 00 s"),
        (125, "2 min 05 s"),
        (725, "12 min"),
        (11520, "3 h 12 min"),
        (7170, "2 h 0 min"),
        (289620, "80 h 27 min"),
        (734400, "8.5 days"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_moments_are_shown_in_utc() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert moment(datetime.datetime(2026, 3, 2, 10, 0, 5, tzinfo=east)) == "2026-03-02 08:00:05 UTC"
    assert moment(datetime.datetime(2026, 3, 2, 10, 0, 5)) == "2026-03-02 10:00:05 UTC"


def test_devices_are_listed_in_natural_order_and_joined() -> None:
    assert device_list(f"gpu{n}" for n in (10, 2, 9, 11, 0, 1, 3)) == "gpu0–gpu3 and gpu9–gpu11"
    assert device_list(["gpu3"]) == "gpu3"
    assert device_list(["gpu1", "gpu0"]) == "gpu0 and gpu1"
    assert device_list(["node", "disk:sda", "gpu7"]) == "disk:sda, gpu7 and node"
    assert device_list(f"gpu{n}" for n in range(0, 20, 2)) == "gpu0, gpu2, gpu4, gpu6, gpu8, gpu10 and 4 more"


def test_lines_that_differ_only_in_the_device_become_one() -> None:
    lines = [f"gemm_rate[dtype=fp8] on gpu{n}: timed out" for n in range(8)] + [
        "disk on node: skipped",
        "gpu0 and gpu1",
    ]
    assert merge_devices(lines) == (
        "gemm_rate[dtype=fp8] on gpu0–gpu7: timed out",
        "disk on node: skipped",
        "gpu0 and gpu1",
    )


def test_wrap_keeps_to_the_width_even_with_one_endless_word() -> None:
    assert max(len(line) for line in wrap("y" * 300, 78, "  -> ").splitlines()) <= 78
    path = f"/var/lib/{'reports' * 20}/gpu-0001.html"
    assert path in wrap(f"The full report: {path}.", 78)
    assert wrap("", 78, "  -> ") == "  -> "


def test_the_columns_of_a_table_begin_at_one_place_whatever_is_empty_or_too_wide() -> None:
    lines = aligned([("", "times", "mean"), ("interruptions", "2", "x\x1b[2J"), ("a" * 50, "3", "y")])
    assert [line.index(cell) for line, cell in zip(lines, ("times", "2", "3"), strict=True)] == [42, 42, 52]
    assert [line.index(cell) for line, cell in zip(lines[:2], ("mean", "x"), strict=True)] == [49, 49]
