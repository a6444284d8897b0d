"""Runs one part on the machine with the GPU, with its Python and PyTorch alone: no package of this project's pins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.bench.gpu_day.parts import SHARED, Part

TOOLS = {
    "nvidia-smi.txt": ["nvidia-smi"],
    "nvidia-smi-q.txt": ["nvidia-smi", "-q"],
    "nvidia-smi-topo.txt": ["nvidia-smi", "topo", "-m"],
    "nvidia-smi-nvlink.txt": ["nvidia-smi", "nvlink", "-s"],
    "kernel-log.txt": ["dmesg"],
    "driver.txt": ["cat", "/proc/driver/nvidia/version"],
}
"""What the tools print there, by the file that keeps it."""
NCCL = """
import os, sys, torch
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
kind = "nccl" if torch.cuda.is_available() else "gloo"
dist.init_process_group(kind, rank=0, world_size=1)
data = torch.ones(1 << 20, device="cuda" if kind == "nccl" else "cpu")
for _ in range(3):
    dist.all_reduce(data)
    dist.all_gather_into_tensor(torch.empty_like(data), data) if kind == "nccl" else None
torch.cuda.synchronize() if kind == "nccl" else None
print(kind, torch.__version__, float(data.sum()) == data.numel())
dist.destroy_process_group()
"""
TRAIN = """
import json, statistics, sys, time, torch
from muster_node.workloads.models import llama
cuda = torch.cuda.is_available()
where = torch.device("cuda" if cuda else "cpu")
name = "1b" if cuda else "1m"
size, steps = llama.SIZES[name], 8 if cuda else 3
settle = torch.cuda.synchronize if cuda else lambda: None
side = 8192 if cuda else 512
a, b = (torch.randn(side, side, device=where, dtype=torch.bfloat16) for _ in range(2))
best = 0.0
for _ in range(20):
    settle(); begun = time.monotonic(); torch.mm(a, b); settle()
    best = max(best, 2.0 * side**3 / (time.monotonic() - begun))
model = llama.build(torch, size, 1, device=where)
for compiled in (False, True) if cuda else (False,):
    if compiled:
        for layer in model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **({"fused": True} if cuda else {}))
    times = []
    for step in range(3 + steps):
        batch = llama.tokens_of(torch, size, step).to(where)
        settle(); begun = time.monotonic()
        with torch.autocast(where.type, torch.bfloat16):
            loss = model(batch)
        loss.backward(); optimizer.step(); optimizer.zero_grad(); settle()
        times.append(time.monotonic() - begun)
    first, p50 = sum(times[:3]), statistics.median(times[3:])
    rate = size.tokens / p50
    print(json.dumps({"model": name, "compiled": compiled, "first_3_steps_s": first, "step_p50_s": p50,
        "tokens_per_s": rate, "flop_per_s": rate * size.flop_per_token, "gemm_best": best,
        "loss": float(loss.detach())}), flush=True)
    del optimizer, loss
"""
"""Trains the model of a block by itself, in the number format in which DDP trains it."""


def run_part(part: Part, packed: Path, out: Path) -> dict[str, Any]:
    """Run a part; what it leaves lies in ``out``. Returns its summary, which is also ``out/NAME.json``."""
    name, began = part.name, time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        run = {"integrity": _integrity, "record": _record, "block": _block, "train": _train}.get(name, _jobs)
        figures, trouble = run(part, packed, folder, began)
        with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(folder, arcname=name)
    took = round(time.monotonic() - began, 1)
    summary = {"part": name, "seconds": took, "figures": figures, "trouble": trouble}
    (out / f"{name}.json").write_text(json.dumps(summary))
    return summary


def _left(part: Part, began: float) -> float:
    return max(1.0, part.limit_s - (time.monotonic() - began))


def _call(command: list[str], log: Path, limit_s: float, **environment: str) -> str:
    """Run a command with its output in ``log``; returns why it is of no use, "" if it is."""
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=limit_s, check=False,
                env={**os.environ, **environment},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{log.stem}: ended at its limit of {limit_s:.0f} s"
        except OSError as error:
            return f"{log.stem}: {error}"
    last_line = log.read_text(errors="replace").strip().splitlines()[-1:]
    return f"{log.stem}: exit status {done.returncode}: {''.join(last_line)[:300]}" if done.returncode else ""


def _path(packed: Path) -> str:
    return os.pathsep.join(["validators", str(packed / "muster.pyz")])


def _agent(packed: Path, job: Path) -> list[str]:
    """The command that runs the job in this folder."""
    return [sys.executable, str(packed / "muster.pyz"), "run", str(job / "plan.json"), "--job-dir", str(job)]


def _integrity(part: Part, packed: Path, folder: Path, began: float) -> tuple[list[Any], list[str]]:
    log = folder / "integrity.txt"
    command = [sys.executable, "-u", "-m", "tests.bench.integrity", "--trials", "1"]
    trouble = _call(command, log, _left(part, began), PYTHONPATH=_path(packed))
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-40:]))
    figures = []
    if lines and lines[-1].startswith("{"):
        answer = json.loads(lines[-1])
        for kind in ("verified_to_raw", "memory", "detection"):
            figures += [[f"{kind} {name}", value, ""] for name, value in answer[kind].items()]
    return figures, [trouble] if trouble else []


def _jobs(part: Part, packed: Path, folder: Path, began: float) -> tuple[list[Any], list[str]]:
    figures, trouble = [], []
    for plan in sorted((packed / "plans").glob(f"{part.name}-*.json")):
        job = folder / plan.stem
        job.mkdir()
        shutil.copy(plan, job / "plan.json")
        work = folder / "work"
        why = _call(_agent(packed, job), folder / f"{plan.stem}.log", _left(part, began), MUSTER_WORK=str(work))
        shutil.rmtree(work, ignore_errors=True)
        if why:
            trouble.append(why)
        found, wrong = _result(job, plan.stem)
        trouble += wrong
        figures += found if part.name != "stages" else []
    return figures, trouble


def _result(job: Path, name: str) -> tuple[list[Any], list[str]]:
    """A job's figures, and a sentence for each probe that did not complete."""
    result = job / "result.json"
    if not result.exists():
        return [], [f"{name}: no result"]
    read = json.loads(result.read_text())
    return _figures(read["measurements"]), [
        f"{name}: {each['probe']} {each['status']}: {each['reason']}"
        for each in read["probes"]
        if each["status"] not in ("completed", "skipped")
    ]


def _block(part: Part, packed: Path, folder: Path, began: float) -> tuple[list[Any], list[str]]:
    """Each job's members at once. NCCL takes one GPU for two where two hosts say so (NCCL_HOSTID)."""
    figures, trouble = [], []
    jobs = sorted({plan.parent.name for plan in (packed / "block").glob("*/*/plan.json")})
    with tempfile.TemporaryDirectory(prefix="gpu-day-shared-") as shared, ThreadPoolExecutor() as together:
        for name in jobs:
            plans = sorted((packed / "block").glob(f"*/{name}/plan.json"))
            for plan in plans:
                job = folder / plan.parts[-3] / name
                job.mkdir(parents=True)
                (job / "plan.json").write_text(plan.read_text().replace(SHARED, shared))

            def member(plan: Path, name: str = name) -> str:
                job = folder / plan.parts[-3] / name
                apart = {"MUSTER_WORK": str(Path(shared) / plan.parts[-3]), "NCCL_HOSTID": plan.parts[-3]}
                return _call(_agent(packed, job), job / "member.log", _left(part, began), NCCL_DEBUG="WARN", **apart)

            trouble += [why for why in together.map(member, plans) if why]
            for plan in plans:
                found, wrong = _result(folder / plan.parts[-3] / name, f"{plan.parts[-3]} {name}")
                figures += [[f"{name} {plan.parts[-3]} {what}", *rest] for what, *rest in found]
                trouble += wrong
    return figures, trouble


def _train(part: Part, packed: Path, folder: Path, began: float) -> tuple[list[Any], list[str]]:
    log = folder / "train.txt"
    why = _call([sys.executable, "-c", TRAIN], log, _left(part, began), PYTHONPATH=_path(packed))
    figures = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            read = json.loads(line)
            kind = f"{read['model']}{' compiled' if read['compiled'] else ''}"
            figures += [[f"{kind} {name}", value, ""] for name, value in read.items() if isinstance(value, float)]
            figures.append([f"{kind} share of the best product", 100.0 * read["flop_per_s"] / read["gemm_best"], "%"])
    return figures, [why] if why else []


def _figures(measurements: list[dict[str, Any]]) -> list[Any]:
    """[name, value, note] of each numeric measurement of a GPU, or of any device where there is none."""
    found = []
    for each in measurements:
        labels = "".join(f" {key}={value}" for key, value in sorted(each["labels"].items()))
        name = f"{each['metric']}{labels} {each['device']} {each['unit']}"
        if each["value"] is not None:
            found.append([name, each["value"], each["note"]])
        elif each["text"] is None:
            found.append([name, None, each["note"]])
    return found


def _record(part: Part, packed: Path, folder: Path, began: float) -> tuple[list[Any], list[str]]:
    log = folder / "nccl-debug.txt"
    settings = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL,TUNING,NVLS,P2P", "NCCL_DEBUG_FILE": str(log)}
    trouble = [_call([sys.executable, "-c", NCCL], folder / "nccl.txt", _left(part, began), **settings)]
    for name, command in TOOLS.items():
        why = _call(command, folder / name, min(10.0, _left(part, began)))
        (folder / name).write_bytes((folder / name).read_bytes()[:2_000_000])
        if why:
            print(f"not recorded: {why}")
    for name in ("info", "check"):
        command = [sys.executable, str(packed / "muster.pyz"), name, "--json"]
        _call(command, folder / f"{name}.json", min(30.0, _left(part, began)))
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [["NCCL's log, lines", len(lines), ""]], [each for each in trouble if each]
