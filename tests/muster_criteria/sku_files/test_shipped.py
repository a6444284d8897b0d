"""The SKU files that come with Muster: true to the probes that there are, and every number with its papers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.context.suspicion import CORRUPTING
from muster_criteria.devices import kind_of
from muster_criteria.sku_files.declarations import FILE, condensed, declared_probes
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.programme import needs, stage_calls, stage_deadline_s
from muster_criteria.sku_files.skus import SHIPPED, lint_sku, list_skus
from muster_criteria.stages import LEVELS, STAGES
from muster_node.agent import registry
from tests.muster_criteria.nodes import shipped

NAMES = list_skus()
RECORDED = Path(__file__).parents[1] / "stage" / "data" / "h100"


def test_the_declarations_are_those_of_the_node_side() -> None:
    """If this fails, run ``make declarations``."""
    declared = [registry.declaration(probe) for probe in registry.discover().probes.values()]
    assert json.loads(FILE.read_text()) == condensed(declared)


def test_every_count_of_wrong_data_is_among_what_the_alert_counts() -> None:
    limits = [limit for name in NAMES for limit in (*shipped(name).all_limits, *shipped(name).block.limits)]
    wrong = {
        limit.metric
        for limit in limits
        if limit.metric.endswith(("_mismatches", "_corruptions", "_wrong_bytes")) and limit.breach == "fail"
    }
    assert len(wrong) > 8
    assert wrong <= CORRUPTING


def test_metrics_are_declared_on_the_kind_of_device_that_a_real_node_reported_them_on() -> None:
    probes, seen = declared_probes(), set()
    for file in RECORDED.glob("*.json"):
        for each in json.loads(file.read_text())["measurements"]:
            on = probes[each["probe"]].on.get(each["metric"])
            assert on in (None, kind_of(each["device"])), each
            seen.add(on)
    assert {"node", "gpu", "nic", "disk"} <= seen
    assert not [metric for metric in probes["inventory"].units if metric not in probes["inventory"].on]


@pytest.mark.parametrize("name", NAMES)
def test_lint_finds_nothing(name: str) -> None:
    assert [str(problem) for problem in lint_sku(name)] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_call_can_be_made_and_every_need_be_met(name: str, stage: str, level: str) -> None:
    """Against the node's own declarations: probes, parameters, metrics, and units of what is judged."""
    sku, probes = shipped(name), declared_probes()
    calls = {call.probe: call for call in stage_calls(sku, stage, level, seed=7)}

    for call in calls.values():
        assert set(call.params) <= probes[call.probe].params
        assert call.timeout_s > _seconds(call.params)
    assert stage_deadline_s(sku, stage, level) > sum(call.timeout_s for call in calls.values())
    for need in needs(sku, stage, level):
        assert need.probe in calls
        declared = probes[need.probe]
        for limit in _limits_on(sku.all_limits, need.requirement.metric, need.requirement.devices):
            assert limit.unit == declared.unit(limit.metric, limit.device)


def _seconds(params: dict[str, Any]) -> float:
    return float(params.get("seconds", 0.0)) + float(params.get("warmup_s", 0.0))


def _limits_on(limits: tuple[Limit, ...], metric: str, devices: str) -> list[Limit]:
    kind = re.sub(r"\d+$", "", devices.removeprefix("each ").partition(":")[0]).replace("core", "cpu")
    judging = [limit for limit in limits if (limit.metric, limit.device) == (metric, kind)]
    return [limit for limit in judging if limit.key != "spread_at_most"]


@pytest.mark.parametrize("name", NAMES)
def test_every_judged_need_has_a_limit(name: str) -> None:
    """Otherwise a shipped SKU could never give more than PROVISIONAL."""
    sku = shipped(name)
    for stage in STAGES:
        for need in needs(sku, stage, "long"):
            if need.requirement.judged:
                limits = _limits_on(sku.all_limits, need.requirement.metric, need.requirement.devices)
                assert [limit for limit in limits if limit.breach != "invalid"], (stage, need.requirement.metric)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_floor_was_derived_from_is_stated(name: str) -> None:
    """A published best is a ceiling: a floor made of one states its share, or that it was chosen."""
    for limit in shipped(name).all_limits:
        if limit.key in ("floor", "siblings_at_least") and limit.number not in (None, 0.0):
            assert re.match(r"(derived|by definition|chosen here)", limit.source), limit.name


def test_a_generic_cpu_is_promised_no_sensor_and_no_absolute_rate() -> None:
    sku = shipped("cpu-generic")

    assert not sku.sensors
    assert not [
        limit
        for limit in sku.limits
        if limit.number is not None
        and limit.unit in ("GFLOPS", "GB/s", "MB/s")
        and not limit.key.startswith("siblings")
    ]
    assert not [limit for limit in sku.limits if limit.metric == "temperature_max"]


def test_the_h100_has_its_published_peaks_as_ceilings() -> None:
    sku = shipped("h100-sxm-8")
    peaks = {(limit.metric, *limit.labels.values()): limit.number for limit in sku.physical_peaks}

    assert peaks["gemm_rate", "bf16"] == peaks["burn_rate",] == 989
    assert peaks["memory_bandwidth",] == 3350
    assert peaks["gemm_rate_per_clock", "fp8"] == 541 * 1979 / 989
    assert sku.devices == {"gpu": 8}


def test_every_cited_section_of_the_science_page_exists() -> None:
    root = SHIPPED.parents[1]
    headings = re.findall(r"^#+ (.+)$", (root / "docs" / "science.md").read_text(), flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    found = subprocess.run(
        ["git", "grep", "-ohE", r"science\.md#[a-z0-9-]+"], cwd=root, capture_output=True, text=True, check=True
    )
    cited = {line.partition("#")[2] for line in found.stdout.splitlines()}
    assert len(cited) > 5
    assert cited <= anchors
