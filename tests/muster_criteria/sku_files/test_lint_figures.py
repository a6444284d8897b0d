"""Floors that vendors and operators really ship, and that cannot be right: the lint objects to each, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from muster_criteria.sku_files.figures import Format, Peaks
from muster_criteria.sku_files.skus import lint_sku, list_skus, load_sku
from muster_node.workloads.common import FORMATS


def linted(folder: Path, sku: str, **keys: Any) -> list[str]:
    """What the lint says of a SKU file whose floor of this metric is given by ``keys``."""
    path = folder / f"{sku}.yaml"
    raw = yaml.safe_load(path.read_text())
    entry = {"device": "gpu", "source": "somebody's floor", "date": "2026-11-21", "stack": "not stated"} | keys
    labels = entry.get("labels", {})
    raw["limits"] = [
        limit
        for limit in raw.get("limits", [])
        if (limit["metric"], limit.get("labels", {}), "floor" in limit) != (entry["metric"], labels, True)
    ]
    raw["limits"].append(entry)
    for figure in raw.get("figures", []):
        if (figure["metric"], figure.get("labels", {})) == (entry["metric"], labels):
            figure.pop("floor", None)
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    return [problem.code for problem in lint_sku(path)]


def test_dcgms_h200_memory_floor_is_refused(folder: Path) -> None:
    """2333 stands among figures in MB/s (diag-skus.yaml.in, device 2335), and is 3110 × 0.75 of something else."""
    problems = linted(folder, "h200-sxm-8", metric="memory_bandwidth", labels={"op": "copy"}, unit="MB/s", floor=2333)
    assert problems == ["wrong-unit", "floor-too-low"]


def test_the_same_floor_moved_to_the_right_unit_is_refused_still(folder: Path) -> None:
    problems = linted(folder, "h200-sxm-8", metric="memory_bandwidth", labels={"op": "copy"}, unit="GB/s", floor=2.333)
    assert problems == ["floor-too-low"]


def test_a_floor_of_800_for_two_h100_nodes_is_refused(folder: Path) -> None:
    """As shipped in an operator's multi-node suite: no two nodes with 400 GB/s of fabric each can reach it."""
    labels = {"op": "all_reduce", "nodes": "2"}
    problems = linted(
        folder, "h100-sxm-8", metric="collective_busbw", device="node", labels=labels, unit="GB/s", floor=800
    )
    assert "floor-above-peak" in problems


ALL_REDUCE: dict[str, Any] = {"metric": "nccl_busbw", "device": "node", "labels": {"op": "all_reduce"}, "unit": "GB/s"}


@pytest.mark.parametrize(
    ("sku", "keys", "code"),
    [
        ("h100-sxm-8", {"metric": "gemm_rate", "labels": {"dtype": "bf16"}, "unit": "TFLOPS", "floor": 800},
         "floor-above-best"),
        ("h100-sxm-8", {"metric": "gemm_rate", "labels": {"dtype": "bf16"}, "unit": "TFLOPS", "floor": 1200},
         "floor-above-peak"),
        ("h100-sxm-8", {**ALL_REDUCE, "floor": 150},
         "floor-too-low"),
        ("l40s-8", {**ALL_REDUCE, "floor": 20},
         "no-figure"),
        ("h200-sxm-8", {"metric": "gemm_rate", "labels": {"dtype": "bf16"}, "unit": "TFLOPS", "floor": 596,
                        "source": "derived: 0.75 × 794.5 TFLOPS, the best of an H100"},
         "borrowed"),
    ],
)  # fmt: skip
def test_each_way_of_being_wrong_is_named(folder: Path, sku: str, keys: dict[str, Any], code: str) -> None:
    assert code in linted(folder, sku, **keys)


@pytest.mark.parametrize("floor", [398, 596, 794])
def test_a_floor_between_half_the_best_and_the_best_is_well(folder: Path, floor: float) -> None:
    problems = linted(folder, "h100-sxm-8", metric="gemm_rate", labels={"dtype": "bf16"}, unit="TFLOPS", floor=floor)
    assert problems == []


@pytest.mark.parametrize(
    ("best", "above"),
    [("best: 794.5", "best: 989.1"), ("best: 2900", "best: 3351"), ("best: 487.87", "best: 751")],
    ids=["a format", "memory", "the figure's own"],
)
def test_a_best_above_the_physical_peak_is_refused(folder: Path, best: str, above: str) -> None:
    path = folder / "h100-sxm-8.yaml"
    path.write_text(path.read_text().replace(best, above))
    assert [problem.code for problem in lint_sku(path)] == ["best-above-peak"]


def test_peaks_of_another_models_data_sheet_are_refused(folder: Path) -> None:
    path = folder / "h100-sxm-8.yaml"
    path.write_text(path.read_text().replace('"NVIDIA H100 datasheet, dense"', '"NVIDIA H200 datasheet, dense"'))
    assert [(problem.key, problem.code) for problem in lint_sku(path)] == [("peaks.0", "borrowed")]


@pytest.mark.parametrize("bounds", [{}, {"gemm_rate": {}}, {"gemm_rate": {"bf61": 989.0}}])
def test_peaks_that_bound_nothing_are_refused(bounds: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Peaks.model_validate({**bounds, "source": "NVIDIA H100 datasheet", "date": "2026-11-21"})


def test_the_formats_of_peaks_are_those_that_probes_measure() -> None:
    assert get_args(Format) == tuple(FORMATS)


BF16 = {"metric": "gemm_rate", "labels": {"dtype": "bf16"}, "unit": "TFLOPS", "floor": 596}
NO_STACK = "no-stack"


@pytest.mark.parametrize(
    ("stack", "problems"), [("driver 570.124, CUDA 12.8", []), ("not stated", []), (" ", [NO_STACK]), ("", [NO_STACK])]
)
def test_a_floor_on_a_rate_names_its_stack(folder: Path, stack: str, problems: list[str]) -> None:
    assert linted(folder, "h100-sxm-8", **BF16, stack=stack) == problems


@pytest.mark.parametrize(
    ("keys", "problems"),
    [
        ({**BF16, "floor": None, "ceiling": 700, "breach": "warn"}, [NO_STACK]),
        ({**BF16, "floor": None, "ceiling": 990, "breach": "invalid", "labels": {"dtype": "int8"}}, []),
        ({**BF16, "floor": {"times": 0.5, "metric": "gemm_rate", "labels": {"dtype": "tf32"}}}, []),
        ({**BF16, "floor": None, "siblings_at_least": 0.5}, []),
        ({**BF16, "metric": "gemm_rate_per_clock", "unit": "TFLOPS/GHz"}, [NO_STACK]),
        ({"metric": "thermal_margin", "unit": "°C", "floor": 3}, []),
        ({"metric": "ecc_corrected_delta", "unit": "count", "ceiling": 100}, []),
    ],
)
def test_only_measured_rates_are_asked_for_it(folder: Path, keys: dict[str, Any], problems: list[str]) -> None:
    assert linted(folder, "b200-sxm-8", **keys, stack="") == problems


def test_a_best_has_a_stack_and_a_peak_alone_has_none(folder: Path) -> None:
    path = folder / "h100-sxm-8.yaml"
    raw = yaml.safe_load(path.read_text())
    first, second = (each for each in raw["figures"] if each["metric"] == "pcie_bandwidth")
    del first["stack"], first["floor"], second["stack"], second["floor"], second["best"]
    path.write_text(yaml.safe_dump(raw, allow_unicode=True))
    (problem,) = lint_sku(path)
    assert (problem.key, problem.code) == ("figures.6 (pcie_bandwidth[direction=h2d])", NO_STACK)


def test_a_family_that_is_not_there_is_named(folder: Path) -> None:
    path = folder / "h100-sxm-8.yaml"
    path.write_text(path.read_text().replace("own-fabric, nvidia-gpu, ", "own-fabric, nvidea-gpu, "))
    assert [(problem.key, problem.code) for problem in lint_sku(path)] == [("includes", "bad-family")]


@pytest.mark.parametrize("name", [name for name in list_skus() if name != "cpu-generic"])
def test_every_gpu_model_says_what_sources_call_it_and_shares_the_families(name: str) -> None:
    sku = load_sku(name)
    assert sku.names
    assert {"gemm_mismatches", "memory_mismatches", "ecc_uncorrected_delta"} <= {limit.metric for limit in sku.limits}
    assert {"gpu_model", "hbm_total", "power_limit"} <= {limit.metric for limit in sku.inventory}
    assert {"gemm_rate", "burn_rate", "memory_bandwidth"} <= {limit.metric for limit in sku.physical_peaks}
