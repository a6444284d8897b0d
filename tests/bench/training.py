"""The training acceptance on this machine: real agents, real ranks over gloo, a real shared folder, a rank killed.

`python -m tests.bench.training --nodes 2 --ranks 4 --seed 1` (ranks in all); the last line is one JSON object. MFU is
against the best matrix product measured on the same core, since a CPU has no published peak. `overhead_to_bare` is the
median step of the block over that of the same model in a bare torchrun script, alternating, the median of the rounds.
`cpu_to_bare` is the same of CPU time: all that the block's agents, nodes and ranks spend while it trains, over what the
bare ranks spend, each per rank and step. Where other work keeps the cores busy the two differ: Linux shares a core by
session (sched_autogroup), and agents have sessions that the bare script lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from muster_criteria.cluster.goodput import Input, Inputs, forecast
from muster_demo import watchdog
from muster_node.workloads.models import llama
from tests.bench import bars
from tests.bench.processes import cpu_seconds
from tests.muster_node.cluster import blocks

ROOT = Path(__file__).resolve().parents[2]
TRAINING = "cluster_training"
LIMIT_S = 900.0
WARM = 3
RSC_1 = 6.50e-3
"""Failures a node and day of Meta's cluster RSC-1 (arXiv:2410.21680)."""


def main() -> int:
    """The figures, and one JSON object on the last line; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="in all, the same number on each node")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro", type=int, default=2, help="micro-batches of 1,024 tokens a step and rank")
    parser.add_argument("--rounds", type=int, default=3, help="of the block and the bare script, alternating")
    parser.add_argument("--fault-steps", type=int, default=30, help="0: no rank is killed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.nodes < 2 or args.ranks < args.nodes or args.ranks % args.nodes:
        parser.error(f"{args.ranks} ranks cannot be shared evenly between {args.nodes} nodes; there are at least two")
    rounds = [_round(args, number) for number in range(args.rounds)]
    first = rounds[0]
    figures = {
        "tokens_per_s": first["tokens_per_s"],
        "mfu": first["mfu"],
        "scaling": statistics.median(each["scaling"] for each in rounds),
        "step_p95_to_p50": statistics.median(each["step_p95_to_p50"] for each in rounds),
        "checkpoint_save_s": first["checkpoint_save_s"],
        "resume_equal": all(each["resume_equal"] for each in rounds),
        "restart_s": first["restart_s"],
        "overhead_to_bare": statistics.median(each["step_s"] / each["bare_s"] for each in rounds),
        "cpu_to_bare": statistics.median(each["cpu_s"] / each["bare_cpu_s"] for each in rounds),
    }
    for name, value in {**first, **figures}.items():
        print(f"{name:24} {value}")
    if first["restart_s"] is not None and first["checkpoint_save_s"]:
        print("\nforecast from these seconds and Meta's RSC-1 rate of failures (no measurement of a GPU job)")
        save, restart = (Input(first[name], True, "this bench") for name in ("checkpoint_save_s", "restart_s"))
        for each in forecast(Inputs(save, restart, Input(RSC_1, False, "Meta RSC-1 (arXiv:2410.21680)"), 8)):
            interval, hours = each.interval_s / 60, each.mttf_s / 3600
            print(f"{each.gpus:6} GPUs  MTTF {hours:8.1f} h  save every {interval:6.1f} min  ETTR {each.ettr:.4f}")
    print(json.dumps(figures))
    return bars.status(figures, bars.TRAINING)


def _round(args: argparse.Namespace, number: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-training-") as folder:
        found = _block(args, Path(folder), faults=number == 0)
    found["bare_s"], found["bare_cpu_s"] = _bare(args)
    print(f"round {number}: step {found['step_s']:.4f} s, bare {found['bare_s']:.4f} s; CPU a rank and step "
          f"{found['cpu_s']:.4f} s, bare {found['bare_cpu_s']:.4f} s", flush=True)  # fmt: skip
    return found


def _block(args: argparse.Namespace, folder: Path, faults: bool) -> dict[str, Any]:
    shared = folder / "shared"
    shared.mkdir()
    size = llama.SIZES[llama.CPU_SIZE]
    params = {
        "ranks": args.ranks // args.nodes, "same_steps": 2, "warm_steps": WARM, "alone_steps": args.steps,
        "steps": args.steps, "tokens": args.micro * size.tokens, "shared_path": str(shared), "checkpoints": 5,
        "fault_steps": args.fault_steps if faults else 0,
    }  # fmt: skip
    blocks.SEED = args.seed
    names = [f"n{number}" for number in range(args.nodes)]
    limits = {"stall_timeout_s": 60.0, "progress_timeout_s": 300.0}
    block = blocks.Block(folder, names, [(TRAINING, params)], limits=limits, simulated=False, probe_s=LIMIT_S)
    try:
        block.start()
        before = _cpu_when(block, "phase training")
        spent = _cpu_when(block, "phase paths") - before
        ends = block.end(limit_s=LIMIT_S)
    finally:
        block.close()
    rows = [row for end in ends.values() for row in end.result.measurements]
    for end in ends.values():
        outcome = end.outcome(TRAINING)
        if outcome.status != "completed":
            raise SystemExit(f"the training {outcome.status}: {outcome.reason}")

    def values(metric: str, **labels: str) -> list[float]:
        return [
            row.value
            for row in rows
            if row.metric == metric and row.value is not None and labels.items() <= row.labels.items()
        ]

    for row in rows:
        if row.metric == "fault_run" and row.note:
            print(f"run with faults: {row.note}")
    # The steps of the phase, warm-up included; the digest of the weights at its end is the block's, too.
    cpu_s = spent / (args.ranks * (WARM + args.steps))
    restarts = values("fault_restart")
    return {
        "tokens_per_s": round(statistics.median(values("tokens_per_s", scope="block")), 1),
        "mfu": round(statistics.median(values("share_of_gemm", scope="block")) / 100.0, 4),
        "scaling": round(values("scaling")[0], 4),
        "step_p95_to_p50": round(max(values("step_p95_to_p50")), 4),
        "step_s": statistics.median(values("step_time", scope="block", stat="p50")),
        "cpu_s": cpu_s,
        "step_compute_s": max(values("step_compute")),
        "step_wait_s": statistics.median(values("step_wait")),
        "checkpoint_save_s": round(values("checkpoint_save", stat="p50")[0], 4),
        "checkpoint_load_s": round(values("checkpoint_load", stat="p50")[0], 4),
        "resume_equal": min(values("resume_equal")) == 1.0,
        "detect_s": round(statistics.median(values("fault_detect")), 3) if values("fault_detect") else None,
        "restart_s": round(statistics.median(restarts), 3) if restarts else None,
        "lost_work_s": round(statistics.median(values("fault_lost_work")), 3) if values("fault_lost_work") else None,
    }


def _cpu_when(block: blocks.Block, words: str) -> float:
    """CPU seconds of all processes of the block, when its first node writes these words into its progress."""
    path = block.running[block.names[0]].job / "progress.jsonl"
    until = time.monotonic() + LIMIT_S
    while not (path.exists() and words in path.read_text()):
        if time.monotonic() > until:
            raise SystemExit(f"the block did not come to its {words} within {LIMIT_S:g} s")
        time.sleep(0.05)
    return cpu_seconds(running.process.pid for running in block.running.values())


def _bare(args: argparse.Namespace) -> tuple[float, float]:
    """(median step, CPU time of a rank and step), in seconds."""
    task = {"warm": WARM, "steps": args.steps, "micro": args.micro, "per_node": args.ranks // args.nodes}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks),
        "-m", "tests.bench.training_bare", json.dumps(task),
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT), str(ROOT / "validators")])
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"the bare script failed: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(lines[-1])
    return float(found["p50"]), float(found["cpu"])


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
