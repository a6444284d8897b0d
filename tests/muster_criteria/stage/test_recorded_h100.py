"""A real H100 that is well, as the agent reported it: one of a board of eight, lent by a virtual machine.

Recorded on 2026-11-27 with driver 580.159.04 and PyTorch 2.11.0 (docs/gpu-day.md); its UUID, its serial number and the
lines of its kernel log are left out. The machine sees no NVSwitch, synchronises no clock and has no second GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.measured import parse_result
from muster_criteria.model import Judgement
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stages import STAGES
from tests.bench.gpu_day.report import of_this_machine

DATA = Path(__file__).parent / "data" / "h100"
RATED = 3
"""Timed copies from which the probe reports a rate; the recording of integrity has one."""
_LINKS = {"nvlink_active", "nvlink_errors_delta"}
NOT_THERE = {
    "intake": {"nvlink_active", "nvlink_speed", "fabric_state"},
    "burn_in": _LINKS,
    "integrity": {*_LINKS, "transfer_mismatches"},
    "performance": {*_LINKS, "transfer_mismatches", "peer_bandwidth"},
    "thermal": _LINKS,
}
"""What such a machine cannot show, by stage."""
LATER = {
    "channel_repair_pending", "tpc_repair_pending", "unrepairable_memory", "host_product_mismatches",
    "memory_burn_tested", "gemm_accumulator", "round_trip_cores", "host_cores", "application_clock_default",
}  # fmt: skip
"""What the node side does not read yet in the recordings."""


def recorded(stage: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((DATA / f"{stage}.json").read_text())
    return read


def judged(raw: dict[str, Any]) -> Judgement:
    result = parse_result(json.dumps(raw).encode())
    sku = of_this_machine(result, load_sku("h100-sxm-8"))
    return judge(Case(sku, result.stage, result.level, result))


def is_single_copy(row: dict[str, Any]) -> bool:
    return row["metric"].startswith("pcie_bandwidth") and row["samples"] < RATED


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_found_but_what_the_machine_lacks(stage: str) -> None:
    raw = recorded(stage)
    raw["measurements"] = [row for row in raw["measurements"] if not is_single_copy(row)]
    judgement = judged(raw)
    assert [finding.metric for finding in judgement.findings] == (["clock_synchronised"] if stage == "intake" else [])
    missing = {gap.what.partition("[")[0] for gap in judgement.coverage.missing}
    assert missing - LATER == NOT_THERE[stage], "what a GPU of such a machine can show was measured"


def test_the_only_gpu_of_a_machine_is_not_missing_whatever_its_place_on_the_board() -> None:
    """Slot 3 of a board, or a card of its own (H100 NVL): both report the module id 4."""
    raw = recorded("intake")
    for row in raw["measurements"]:
        row["device"] = {"gpu0": "gpu3"}.get(row["device"], row["device"])
        if row["metric"] == "module_id":
            row["value"] = 4.0
    judgement = judged(raw)
    assert "expected_devices" not in {finding.rule for finding in judgement.findings}
    missing = {gap.what.partition("[")[0] for gap in judgement.coverage.missing}
    assert missing - LATER == NOT_THERE["intake"]


def test_the_rate_of_a_single_copy_would_have_failed_it() -> None:
    """Which is why the probe takes three."""
    assert [finding.metric for finding in judged(recorded("integrity")).findings] == ["pcie_bandwidth"]


@pytest.mark.parametrize(
    ("stage", "metric", "value"),
    [
        ("burn_in", "pulse_mismatches", 1.0),
        ("integrity", "memory_mismatches", 1.0),
        ("performance", "gemm_rate", 300.0),
        ("thermal", "thermal_margin", -1.0),
        ("thermal", "load_share", 40.0),
    ],
)
def test_it_is_not_found_well_where_one_figure_is_not(stage: str, metric: str, value: float) -> None:
    raw = recorded(stage)
    row = next(row for row in raw["measurements"] if row["metric"] == metric)
    row["value"] = value
    assert metric in {finding.metric for finding in judged(raw).findings}
