"""What travels to the machine: the zipapp, and a plan for each job, made where SKU files can be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from muster.remote.job.zipapp import build_agent
from muster_criteria.cluster.model import COLLECTIVES, TRAINING
from muster_criteria.sku_files.programme import stage_calls
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import STAGES
from muster_node.contract import Plan, ProbeCall
from tests.bench.gpu_day import nodes
from tests.bench.gpu_day.parts import SHARED, Part, part_of

LEVEL = "demo"
SHORTENED: dict[str, dict[str, Any]] = {
    "inventory": {"fabric_wait_s": 5},
    "gpu_burn": {"seconds": 15, "pulse_s": 6},
    "thermal_soak": {"seconds": 30, "interval_s": 1, "cooldown_s": 10},
    "exact_gemm": {"seconds": 0, "soak_s": 0},
}
"""Parameters of a stage's long probes, so that all stages fit into their part."""
REHEARSED: dict[str, dict[str, Any]] = {
    "cpu_burn": {"seconds": 2},
    "thermal_soak": {"seconds": 3, "interval_s": 0.5, "cooldown_s": 1},
    "memory_pattern": {"max_gib": 1 / 64, "walk": 1},
    "exact_gemm": {"rounds": 1, "modes": ["together"], "dtypes": ["fp64"], "shapes": [[64, 64, 256]]},
    "gemm_rate": {"seconds": 0.2, "warmup_s": 0.1},
    "memory_bandwidth": {"seconds": 0.1},
    "disk": {"mib": 8},
}
JOBS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "rates": {
        "gemm": {
            "gemm_rate": {"dtypes": ["bf16"], "seconds": 10, "warmup_s": 5},
            "memory_bandwidth": {"seconds": 5},
            "transfers": {"repeats": 5},
        },
        "formats": {"gemm_rate": {"dtypes": ["fp16", "tf32", "fp8", "int8", "fp64"], "seconds": 3, "warmup_s": 1}},
    },
    "soak": {
        "burn": {"gpu_burn": {"seconds": 30, "pulse_s": 10, "dtype": "bf16"}},
        "soak": {"thermal_soak": {"seconds": 60, "interval_s": 1, "settle": 0.5, "cooldown_s": 10}},
    },
}
"""The jobs of a part, with their probes and parameters."""
SMALL = {"model": "1m", "same_steps": 1, "steps": 5, "step_s": 0.2, "checkpoints": 2}
BLOCK: nodes.Jobs = {
    "collectives": (COLLECTIVES, {}),
    "ddp": (TRAINING, {**SMALL, "layout": "ddp"}),
    "fsdp": (TRAINING, {**SMALL, "layout": "fsdp"}),
}
"""The jobs of two members on one machine: the path of a block over NCCL, no figure of a network."""


def pack(to: Path, sku_name: str, *, rehearse: bool) -> list[Path]:
    """Write zipapp and plans into a new folder; returns the plans. ``rehearse``: tiny work, which a CPU can do."""
    if to.exists():
        shutil.rmtree(to)
    (to / "plans").mkdir(parents=True)
    agent = build_agent(to / "agent")
    shutil.copy(agent.path, to / "muster.pyz")
    shutil.rmtree(to / "agent")
    sku, plans = load_sku(sku_name), []
    for part, jobs in ((part_of(each, rehearse=rehearse), jobs) for each, jobs in JOBS.items()):
        for place, (name, probes) in enumerate(jobs.items()):
            calls = tuple(
                ProbeCall(probe, timeout_s=part.limit_s, params=_params(probe, params, rehearse), seed=1)
                for probe, params in probes.items()
            )
            plans.append(_write(to, part, place, name, calls))
    stages = part_of("stages", rehearse=rehearse)
    for place, stage in enumerate(STAGES):
        calls = tuple(
            ProbeCall(
                each.probe,
                timeout_s=min(each.timeout_s, stages.limit_s),
                params=_params(each.probe, {**each.params, **SHORTENED.get(each.probe, {})}, rehearse),
                seed=each.seed,
            )
            for each in stage_calls(sku, stage, LEVEL, 1)
        )
        plans.append(_write(to, stages, place, stage, calls))
    members = [f"{name} 127.0.0.1" for name in ("one", "two")]
    plans += nodes.pack(to / "block", sku_name, members, LEVEL, SHARED, BLOCK, ["nccl"])
    (to / "day.json").write_text(json.dumps({"sku": sku_name, "rehearse": rehearse}))
    return plans


def _params(probe: str, params: dict[str, Any], rehearse: bool) -> dict[str, Any]:
    return {**params, **REHEARSED.get(probe, {})} if rehearse else params


def _write(to: Path, part: Part, place: int, name: str, calls: tuple[ProbeCall, ...]) -> Path:
    plan = Plan(f"{part.name}-{name}", "gpu-day", name, LEVEL, 1, part.limit_s, calls, 1.0, "measured for a day")
    path = to / "plans" / f"{part.name}-{place}-{name}.json"
    path.write_text(plan.to_json())
    return path
