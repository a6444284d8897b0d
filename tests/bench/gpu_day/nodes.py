"""Two nodes with GPUs, or a rack: their rails by NCCL and by ib_write_bw, FSDP at 8 B, the NVLink domain.

Here: ``python -m tests.bench.gpu_day.nodes pack --to FOLDER --sku SKU --node 'NAME ADDRESS RAIL …' --node …`` writes
the zipapp and a plan for each node and job; RAIL as in the label ``rails``. On each node of a job at the same time:
``python3 muster.pyz run NAME/JOB/plan.json``, one job after the other: rails-nccl, rails-ib_write_bw, training,
training-compiled, domain.
Here: ``python -m tests.bench.gpu_day.nodes report --to FOLDER`` prints what came back. It has not run on two nodes with
GPUs yet.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from muster.remote.job.zipapp import build_agent
from muster_criteria.cluster.fabric.observed import pair_params
from muster_criteria.cluster.fabric.places import RAILS_LABEL, Member, places_of
from muster_criteria.cluster.fabric.rounds import Kind, Round
from muster_criteria.cluster.fabric.topology import unknown
from muster_criteria.cluster.judge import judge_block
from muster_criteria.cluster.model import COLLECTIVES, STAGE, TRAINING, MemberResult
from muster_criteria.cluster.plan import PAIRS, CallSpec, cluster_calls, pair_call
from muster_criteria.labels import labelled
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.sku_files.skus import load_sku
from muster_node.contract import Plan, ProbeCall

BACKENDS = ("nccl", "ib_write_bw")
TRAINED = {"model": "8b", "layout": "fsdp"}
Jobs = dict[str, tuple[str, dict[str, Any]]]
"""By name: the probe, and what it is asked for over the block's programme."""
JOBS: Jobs = {
    "training": (TRAINING, {**TRAINED, "fault_steps": 60}),
    "training-compiled": (TRAINING, {**TRAINED, "compile": True, "shared_path": None}),
    "domain": (COLLECTIVES, {"grow": True}),
}
"""The jobs of the whole block."""
PORT, SEED = 21_000, 1
SHOWN = (
    "pair_bandwidth", "pair_wrong_bytes", "pair_backend", "domain_busbw", "collective_mismatches", "tokens_per_s",
    "flop_per_token", "scaling", "step_p95_to_p50", "step_compute", "step_wait", "checkpoint_save", "checkpoint_load",
    "training_recipe", "resume_equal", "fault_detect", "fault_restart", "fault_lost_work", "fault_run",
)  # fmt: skip


def pack(
    to: Path, sku_name: str, nodes: Sequence[str], level: str, shared_path: str = "", jobs: Jobs = JOBS,
    backends: Sequence[str] = BACKENDS,
) -> list[Path]:  # fmt: skip
    """Write zipapp and plans into a new folder; returns the plans. ``nodes``: name, address and rails of each.

    The first and second node are a pair, the third and fourth, and so on. Raises BadTopology, SkuError, ValueError.
    """
    sku = load_sku(sku_name)
    members = [
        Member(name, address, {RAILS_LABEL: " ".join(rails)} if rails else {})
        for name, address, *rails in (text.split() for text in nodes)
    ]
    rails, places = places_of(members)
    names, session = [each.name for each in members], secrets.token_hex(16)
    to.mkdir(parents=True)
    shutil.copy(build_agent(to / "agent").path, to / "muster.pyz")
    shutil.rmtree(to / "agent")
    written, pairs = [], tuple((at, at + 1) for at in range(0, len(names) - 1, 2))
    for number, backend in enumerate(backends, start=1):
        settings = {**sku.block.probes[PAIRS].params_at(level), "backend": backend, "crossed": backend == "nccl"}
        params = pair_params(
            unknown(names, rails), Round(number, Kind.OTHER_LEAF, pairs), places, ports=[PORT + number],
            session=session, settings=settings,
        )  # fmt: skip
        for name, each in params.items():
            written.append(_write(to, name, f"rails-{backend}", level, pair_call(sku.block, level, each, SEED)))
    calls = cluster_calls(
        sku.block, names, master_addr=places[names[0]].address, master_ports=[PORT], session=session, level=level,
        seed=SEED, shared_path=shared_path,
    )  # fmt: skip
    for job, (probe, asked) in jobs.items():
        for name, of_node in calls.items():
            (call,) = (each for each in of_node if each.probe == probe)
            written.append(_write(to, name, job, level, dataclasses.replace(call, params={**call.params, **asked})))
    (to / "day.json").write_text(json.dumps({"sku": sku_name, "nodes": names}))
    return written


def _write(to: Path, node: str, job: str, level: str, call: CallSpec) -> Path:
    probe = ProbeCall(call.probe, call.timeout_s, call.seed, dict(call.params))
    plan = Plan(f"{job}-{node}", node, STAGE, level, 1, call.timeout_s + 120.0, (probe,), 5.0, "measured for a day")
    path = to / node / job / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_text(plan.to_json())
    return path


def report(to: Path) -> dict[str, object]:
    """Print the figures of every result that is there; returns them, and what is missing."""
    day = json.loads((to / "day.json").read_text())
    figures: dict[str, float | str] = {}
    missing, trained = [], list[MemberResult]()
    for plan in sorted(to.glob("*/*/plan.json")):
        name, job = plan.parts[-3:-1]
        result = _result(plan.with_name("result.json"))
        if result is None:
            missing.append(f"{name}/{job}")
            continue
        figures |= {f"{name} {job} {what}": value for what, value in _figures(result)}
        trained += [MemberResult(name, result)] if job == "training" else []
    for what, value in figures.items():
        print(f"{what:<90} {value if isinstance(value, str) else format(value, '.5g')}")
    if len(trained) > 1:
        judged = judge_block(trained, load_sku(day["sku"]).block)
        for name, judgement in judged.members.items():
            print(f"{name}: {[each.summary for each in judgement.findings] or 'nothing was found'}")
    return {"figures": figures, "missing": missing}


def _result(path: Path) -> StageResult | None:
    return parse_result(path.read_bytes()) if path.exists() else None


def _figures(result: StageResult) -> Iterator[tuple[str, float | str]]:
    for row in result.measurements:
        value = row.value if row.value is not None else row.text
        if row.metric in SHOWN and value is not None:
            yield f"{row.device} {labelled(row.metric, row.labels)} {row.unit}", value


def main() -> int:
    """Run what the command line names; 1 where a result is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "report"])
    parser.add_argument("--to", type=Path, default=Path("gpu-nodes"))
    parser.add_argument("--sku", default="h100-sxm-8")
    parser.add_argument("--level", default="standard")
    parser.add_argument("--shared-path", default="", help="a folder that all nodes share, for checkpoints")
    parser.add_argument("--node", action="append", default=[], help="'NAME ADDRESS RAIL …', at least twice")
    chosen = parser.parse_args()
    if chosen.what == "pack":
        if len(chosen.node) < 2 or any(len(text.split()) < 2 for text in chosen.node):
            parser.error("name two nodes at least, each as --node 'NAME ADDRESS RAIL …'")
        for plan in pack(chosen.to, chosen.sku, chosen.node, chosen.level, chosen.shared_path):
            print(plan)
        return 0
    answer = report(chosen.to)
    print(json.dumps(answer))
    return int(bool(answer["missing"]))


if __name__ == "__main__":
    sys.exit(main())
