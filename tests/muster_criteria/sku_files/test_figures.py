"""Floors that figures give: a share of the best, rounded down, with the figure's labels and evidence."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from muster_criteria.model import Action, FaultClass
from muster_criteria.sku_files.figures import Figure, Share
from muster_criteria.sku_files.model import Sku
from tests.muster_criteria.nodes import shipped

NCCL = {"op": "all_reduce", "nvls": "on"}


def share(of: float) -> Share:
    return Share(share=of, fault=FaultClass.GPU, action=Action.RETEST, meaning="is slow")


@pytest.mark.parametrize(
    ("of", "best", "floor"),
    [
        (0.75, 794.5, 595),
        (0.9, 478.87, 430),
        (0.9, 2900, 2610),
        (0.9, 52, 46.8),
        (0.9, 26.28, 23.6),
        (0.9, 0.05, 0.045),
    ],
)
def test_a_floor_is_rounded_down_to_what_a_person_would_write(of: float, best: float, floor: float) -> None:
    assert share(of).of(best) == floor


@given(st.floats(0.01, 1.0), st.floats(1e-300, 1e300))
def test_no_floor_is_above_its_share_and_none_vanishes(of: float, best: float) -> None:
    assert 0.98 * of * best <= share(of).of(best) <= 1.000001 * of * best


def test_a_figures_floor_is_a_limit_of_the_sku() -> None:
    sku = shipped("h100-sxm-8")
    (figure,) = (each for each in sku.figures if each.metric == "nccl_busbw")
    (floor,) = (each for each in sku.limits if each.metric == "nccl_busbw" and each.key == "floor")
    assert (floor.number, floor.unit, floor.labels) == (430, "GB/s", NCCL)
    assert (floor.fault, floor.action, floor.breach) == (FaultClass.NVLINK, Action.RETEST, "fail")
    assert (floor.date, floor.stack) == (figure.date, figure.stack)
    assert figure.source in floor.source


def test_a_revision_that_is_kept_has_each_floor_once() -> None:
    sku = shipped("h100-sxm-8")
    assert Sku.model_validate_json(sku.model_dump_json()).all_limits == sku.all_limits


def test_a_floor_needs_a_best() -> None:
    source, date = "a data sheet", datetime.date(2026, 11, 21)
    with pytest.raises(ValidationError):
        Figure(metric="gemm_rate", device="gpu", unit="TFLOPS", peak=9, source=source, date=date, floor=share(0.9))


SUSTAINED = [
    ("a100-sxm-80gb-8", "bf16", 253.7),
    # Without fast accumulation, as here, a product on Hopper may take 1.2 times as long.
    ("h100-sxm-8", "fp8", 1290.1 / 1.2),
    ("h200-sxm-8", "fp8", 1300.6 / 1.2),
    ("gb200-nvl72", "fp8", 2744.0),
    # What GB200 sustains of its best in fp8, of the bests of what has no sustained figure.
    ("gb200-nvl72", "bf16", 1822.0 * 2744.0 / 3615.6),
    ("b200-sxm-8", "bf16", 1745.0 * 2744.0 / 3615.6),
    ("b200-sxm-8", "fp8", 3432.5 * 2744.0 / 3615.6),
]
"""TFLOPS of one shape after a long warm-up (Azure's guide and blog; 16-bit of A100: fp16)."""


@pytest.mark.parametrize(("sku", "dtype", "sustained"), SUSTAINED)
def test_a_floor_of_products_leaves_room_below_what_is_sustained(sku: str, dtype: str, sustained: float) -> None:
    """A best of a search over shapes is no base for it: of GB200, 0.75 of that was 0.99 of what is sustained."""
    floors = [
        limit.number
        for limit in shipped(sku).all_limits
        if limit.key == "floor" and limit.applies_to("gemm_rate", "gpu", {"dtype": dtype})
    ]
    assert floors
    assert all(0.7 * sustained < floor <= 0.81 * sustained for floor in floors if floor is not None)
