"""Entries of SKU files and programmes that nothing meets are refused, since they would judge nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.sku_files.skus import SHIPPED, lint_sku
from tests.muster_criteria.sku_files.spoiling import rewrite

EVIDENCE = {"source": "for a test", "date": "2026-06-01", "stack": "not stated"}
BF16 = {"metric": "gemm_rate", "device": "gpu", "unit": "TFLOPS", "labels": {"dtype": "bf16"}, "floor": 200, **EVIDENCE}
HOT = {"metric": "temperature_max", "device": "gpu", "unit": "°C", "ceiling": 150, "breach": "invalid", **EVIDENCE}
TESTED = {"metric": "round_trip_cores", "device": "node", "unit": "count", "stages": ["integrity"], **EVIDENCE}
SLOW = {"metric": "step_excess", "device": "node", "unit": "%", "ceiling": 1, "labels": {"devices": "one"}, **EVIDENCE}


@pytest.mark.parametrize(
    ("section", "entry", "code"),
    [
        ("limits", BF16, None),
        ("limits", BF16 | {"floor": 0.3}, "floor-too-low"),  # PFLOPS
        ("limits", BF16 | {"stages": ["performance", "thermal"]}, None),
        ("limits", BF16 | {"stages": ["thermal"]}, "not-measured"),
        ("limits", HOT | {"invalidates": ["gemm_rate"]}, None),
        ("limits", HOT | {"invalidates": ["gemm_ratte"]}, "unknown-metric"),
        ("limits", HOT | {"explains": ["gemm_ratte"]}, "unknown-metric"),
        ("limits", TESTED | {"floor": {"times": 0.5, "metric": "cpu_threads"}}, None),
        ("limits", TESTED | {"floor": {"times": 0.5, "metric": "cpu_cores"}}, "not-required"),
        ("limits", TESTED | {"floor": {"times": 0.5, "metric": "cpu_cores"}, "breach": "warn"}, None),
        ("block_limits", SLOW, None),
        ("block_limits", SLOW | {"labels": {"device": "one"}}, "bad-value"),
        ("block_limits", SLOW | {"metric": "step_exces"}, "unknown-metric"),
    ],
)
def test_an_entry_that_nothing_meets_is_refused(
    folder: Path, section: str, entry: dict[str, Any], code: str | None
) -> None:
    path = rewrite(folder, lambda raw: raw.setdefault(section, []).append(entry), "l40s-8")
    assert [each.code for each in lint_sku(path)] == [code] * bool(code)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"metric": "gemm_ratee"}, "unknown-metric"), ({"unit": "PFLOPS"}, "wrong-unit"),
        ({"given": "temprature_max"}, "unknown-metric"),
    ],
)  # fmt: skip
def test_a_comparison_that_nothing_meets_is_refused(folder: Path, change: dict[str, Any], code: str) -> None:
    rewrite(folder, lambda raw: raw["compare"][0].update(change), "programmes/gpu-node")
    (problem,) = lint_sku("l40s-8", [folder])
    assert (problem.file, problem.code) == ("programmes/gpu-node.yaml", code)


def test_a_file_is_linted_with_the_programmes_next_to_it(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(SHIPPED, other)
    rewrite(folder, lambda raw: raw["compare"][0].update(metric="gemm_ratee"), "programmes/gpu-node")
    assert lint_sku(folder / "l40s-8.yaml", [other]) != []
    assert lint_sku(other / "l40s-8.yaml", [folder]) == []
