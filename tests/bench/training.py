"""The training acceptance on this machine: real agents, real ranks over gloo, a real shared folder, a rank killed.

`python -m tests.bench.training --nodes 2 --ranks 4 --seed 1` (ranks in all); the last line is one JSON object. MFU is
against the best matrix product measured on the same core, since a CPU has no published peak. `overhead_to_bare` is the
time of a step of the block over that of the same training in a bare torchrun script, `cpu_to_bare` the same of the CPU
time of all processes of either. Both train in turns of a few steps, each stopped while the other trains, and a figure
is the median of the pairs of turns. The other figures are of a block that trains alone. Where other work keeps the
cores busy the two ratios differ: Linux shares a core by session (sched_autogroup), and agents have sessions that the
bare script lacks. With `--bare-twice` a second bare script takes the block's place: how far the ratios are from 1 then
is the error of the measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from muster_criteria.cluster.goodput import Input, Inputs, forecast
from muster_criteria.measured import Measured
from muster_demo import watchdog
from muster_node.workloads.models import llama
from tests.bench import bars
from tests.bench.processes import tree
from tests.bench.turns import Cost, Side, in_turns
from tests.muster_node.cluster import blocks

Sided = contextlib.AbstractContextManager[Side]
ROOT = Path(__file__).resolve().parents[2]
TRAINING = "cluster_training"
LIMIT_S = 900.0
WARM = 3
TURN = 2
"""Steps: about a second. The shorter, the more alike are the moments of both; no limit of the block runs out."""

FIGURES = ("tokens_per_s", "mfu", "scaling", "step_p95_to_p50", "checkpoint_save_s", "resume_equal", "restart_s")
RSC_1 = 6.50e-3
"""Failures a node and day of Meta's cluster RSC-1 (arXiv:2410.21680)."""


def main() -> int:
    """The figures, and one JSON object on the last line; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="in all, the same number on each node")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro", type=int, default=2, help="micro-batches of 1,024 tokens a step and rank")
    parser.add_argument("--rounds", type=int, default=3, help="starts of the block and the bare script, in turns")
    parser.add_argument("--fault-steps", type=int, default=30, help="0: no rank is killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bare-twice", action="store_true", help="the bare script against itself, and nothing else")
    args = parser.parse_args()
    if args.nodes < 2 or args.ranks < args.nodes or args.ranks % args.nodes:
        parser.error(f"{args.ranks} ranks cannot be shared evenly between {args.nodes} nodes; there are at least two")
    if args.bare_twice:
        print(json.dumps(_ratios(args, _bare)))
        return 0
    first = _block_alone(args)
    figures = {name: first[name] for name in FIGURES} | _ratios(args, _block)
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


def _ratios(args: argparse.Namespace, other: Callable[[argparse.Namespace], Sided]) -> dict[str, float]:
    """Of each pair of turns of all rounds, by the wall and by CPU time; the medians, and their spread as a line."""
    pairs: list[tuple[Cost, Cost]] = []
    for number in range(args.rounds):
        with _bare(args) as bare, other(args) as side:
            found = in_turns(side, bare, TURN, args.steps // TURN)
        pairs += found
        (wall_s, cpu_s), (bare_s, bare_cpu_s) = (
            [sum(cost[part] for cost in costs) / (TURN * len(costs)) for part in (0, 1)]
            for costs in zip(*found, strict=True)
        )
        print(f"round {number}: step {wall_s:.4f} s, bare {bare_s:.4f} s; "
              f"its CPU time {cpu_s:.4f} s, bare {bare_cpu_s:.4f} s", flush=True)  # fmt: skip
    figures = {}
    for part, name in enumerate(("overhead_to_bare", "cpu_to_bare")):
        low, figures[name], high = statistics.quantiles([one[part] / other[part] for one, other in pairs], n=4)
        print(f"{name}: {figures[name]:.4f}, quartiles {low:.4f} and {high:.4f} of {len(pairs)} pairs of turns")
    return figures


@contextlib.contextmanager
def _block(args: argparse.Namespace) -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="bench-training-") as folder:
        block = _started(args, Path(folder), alone_steps=1, fault_steps=0)
        try:
            block.await_progress(block.names[0], "phase training", LIMIT_S)
            side = _side(args, [running.process.pid for running in block.running.values()])
            yield side
            side.signal(signal.SIGCONT)
            _rows(block)
        finally:
            block.close()


@contextlib.contextmanager
def _bare(args: argparse.Namespace) -> Iterator[Side]:
    task = {"micro": args.micro, "per_node": args.ranks // args.nodes}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks),
        "-m", "tests.bench.training_bare", json.dumps(task),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "validators")]), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the bare script failed")
        yield _side(args, [process.pid])
    finally:
        for each in tree([process.pid]):
            each.kill()
        process.wait()


def _side(args: argparse.Namespace, roots: Iterable[int]) -> Side:
    """After its first steps, and stopped. Gloo sums in a ring: each rank sends all gradients nearly twice."""
    step_bytes = 2 * (args.ranks - 1) * llama.SIZES[llama.CPU_SIZE].parameters * 4
    side = Side(roots, step_bytes, LIMIT_S)
    side.turn(WARM)
    return side


def _block_alone(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-training-") as folder:
        block = _started(args, Path(folder), alone_steps=args.steps, fault_steps=args.fault_steps)
        try:
            return _figures(_rows(block))
        finally:
            block.close()


def _started(args: argparse.Namespace, folder: Path, alone_steps: int, fault_steps: int) -> blocks.Block:
    shared = folder / "shared"
    shared.mkdir()
    size = llama.SIZES[llama.CPU_SIZE]
    params = {
        "ranks": args.ranks // args.nodes, "same_steps": 2, "warm_steps": WARM, "alone_steps": alone_steps,
        "steps": args.steps, "tokens": args.micro * size.tokens, "shared_path": str(shared), "checkpoints": 5,
        "fault_steps": fault_steps,
    }  # fmt: skip
    blocks.SEED = args.seed
    names = [f"n{number}" for number in range(args.nodes)]
    limits = {"stall_timeout_s": 60.0, "progress_timeout_s": 300.0}
    block = blocks.Block(folder, names, [(TRAINING, params)], limits=limits, simulated=False, probe_s=LIMIT_S)
    block.start()
    return block


def _rows(block: blocks.Block) -> list[Measured]:
    """What the block has measured at its end."""
    ends = block.end(limit_s=LIMIT_S)
    for end in ends.values():
        outcome = end.outcome(TRAINING)
        if outcome.status != "completed":
            raise SystemExit(f"the training {outcome.status}: {outcome.reason}")
    return [row for end in ends.values() for row in end.result.measurements]


def _figures(rows: Sequence[Measured]) -> dict[str, Any]:
    def values(metric: str, **labels: str) -> list[float]:
        return [
            row.value
            for row in rows
            if row.metric == metric and row.value is not None and labels.items() <= row.labels.items()
        ]

    for row in rows:
        if row.metric == "fault_run" and row.note:
            print(f"run with faults: {row.note}")
    restarts = values("fault_restart")
    return {
        "tokens_per_s": round(statistics.median(values("tokens_per_s", scope="block")), 1),
        "mfu": round(statistics.median(values("share_of_gemm", scope="block")) / 100.0, 4),
        "scaling": round(values("scaling")[0], 4),
        "step_p95_to_p50": round(max(values("step_p95_to_p50")), 4),
        "step_s": statistics.median(values("step_time", scope="block", stat="p50")),
        "step_compute_s": max(values("step_compute")),
        "step_wait_s": statistics.median(values("step_wait")),
        "checkpoint_save_s": round(values("checkpoint_save", stat="p50")[0], 4),
        "checkpoint_load_s": round(values("checkpoint_load", stat="p50")[0], 4),
        "resume_equal": min(values("resume_equal")) == 1.0,
        "detect_s": round(statistics.median(values("fault_detect")), 3) if values("fault_detect") else None,
        "restart_s": round(statistics.median(restarts), 3) if restarts else None,
        "lost_work_s": round(statistics.median(values("fault_lost_work")), 3) if values("fault_lost_work") else None,
    }


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
