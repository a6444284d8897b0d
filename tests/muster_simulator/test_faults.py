"""A few simulated nodes drawn from a seed: what is planted is found, and a healthy node of each model passes.

Another seed: FAULTS_SEED=7. All kinds of fault on all models, drawn again each time: ``python -m tests.bench.faults``.
"""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import pytest

from muster_criteria.model import Severity, Verdict
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge
from muster_simulator import create_machine
from muster_simulator.defects import DEFECTS
from muster_simulator.machine import load_machine, save_machine
from muster_simulator.models import MODELS
from tests.bench.faults import FAULTS, KERNEL_EDGE, SPEED, Case, draw_fault, draw_pair, examine
from tests.support.in_process import machine_room, run_stage

pytestmark = [pytest.mark.needs_torch, pytest.mark.early(17)]
SEED = int(os.environ.get("FAULTS_SEED", "1"))


@pytest.mark.slow
def test_a_drawn_fault_is_found_on_its_device() -> None:
    """One fault alone and one pair, each on a model of its own."""
    dice = random.Random(SEED)
    single, double = dice.sample(list(MODELS), 2)
    kind = dice.choice([kind for kind in FAULTS if DEFECTS[kind].possible(MODELS[single])])
    for model, faults in ((single, (draw_fault(kind, single, dice),)), (double, draw_pair(double, dice))):
        outcome = examine(Case(model, dice.randrange(10**6), faults))
        assert all(outcome.found), (SEED, outcome)
        assert outcome.wrongly_named == (), (SEED, outcome)


@pytest.mark.slow
def test_a_drawn_healthy_node_passes_all_checks_that_need_no_peers() -> None:
    dice = random.Random(SEED)
    outcome = examine(Case(dice.choice(list(MODELS)), dice.randrange(10**6)))
    assert outcome.verdict is Verdict.PROVISIONAL, (SEED, outcome)
    assert outcome.wrongly_named == ()


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_healthy_node_of_each_model_passes_its_own_skus_intake(model: str, tmp_path: Path) -> None:
    """Model and SKU file are written independently of each other."""
    create_machine(tmp_path / "node", model, SEED)
    sku = load_sku(model)
    judgement = judge(JudgeCase(sku, "intake", "demo", run_stage(tmp_path / "node", sku, "intake", "demo", SEED)))
    assert judgement.verdict is Verdict.PASS, (SEED, judgement.reason)
    assert judgement.simulated


def test_a_tray_that_has_lost_one_of_four_gpus_still_names_what_is_wrong_with_the_others() -> None:
    """The mildest faults that the bench draws and that only a comparison with siblings finds; three GPUs remain."""
    faults = [
        {"kind": "missing_gpu", "gpu": 2},
        {"kind": "slow_gemm", "gpu": 0, "share": 0.85},
        {"kind": "hbm_slow", "gpu": 3, "share": 0.88},
    ]
    sku = load_sku("gb200-nvl72")
    with machine_room() as room:
        create_machine(room / "node", "gb200-nvl72", SEED, faults, speed=SPEED, kernel_edge=KERNEL_EDGE)
        judgement = judge(
            JudgeCase(sku, "performance", "demo", run_stage(room / "node", sku, "performance", "demo", SEED))
        )
    named = {(each.device, each.metric, each.severity) for each in judgement.findings}
    assert named >= {
        ("gpu2", "device_present", Severity.CRITICAL),
        ("gpu0", "gemm_rate_per_clock", Severity.CRITICAL),
        ("gpu3", "memory_bandwidth", Severity.WARNING),
    }, (SEED, named)
    assert {device for device, _, severity in named if severity is Severity.CRITICAL} == {"gpu0", "gpu2"}, SEED
    assert "gpu1" not in {device for device, _, _ in named}, SEED


def test_memory_close_to_its_limit_is_named_though_its_core_is_cool() -> None:
    sku = load_sku("h100-sxm-8")
    with machine_room() as room:
        create_machine(room / "node", "h100-sxm-8", SEED, speed=SPEED, kernel_edge=KERNEL_EDGE)
        machine = load_machine(room / "node")
        machine.gpus[2] = dataclasses.replace(machine.gpus[2], hbm_offset_c=32.0)
        save_machine(room / "node", machine)
        judgement = judge(JudgeCase(sku, "thermal", "demo", run_stage(room / "node", sku, "thermal", "demo", SEED)))
    assert {(each.device, each.metric) for each in judgement.findings} == {("gpu2", "hbm_margin")}, SEED


def test_a_metric_without_published_figure_is_provisional_though_siblings_agree() -> None:
    """No memory rate of a B200 is published: a comparison with siblings finds one slow GPU, but not eight."""
    sku = load_sku("b200-sxm-8")
    with machine_room() as room:
        create_machine(room / "node", "b200-sxm-8", SEED, speed=SPEED, kernel_edge=KERNEL_EDGE)
        result = run_stage(room / "node", sku, "performance", "demo", SEED)
    alone = judge(JudgeCase(sku, "performance", "demo", result))
    assert alone.verdict is Verdict.PROVISIONAL
    assert not alone.findings
    unjudged = {gap.what for gap in alone.coverage.unjudged}
    assert any(what.startswith("memory_bandwidth") for what in unjudged)
    assert "gemm_rate[dtype=bf16]" not in unjudged
