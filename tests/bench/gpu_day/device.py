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
from pathlib import Path
from typing import Any

from tests.bench.gpu_day.parts import PART, Part

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


def run_part(name: str, packed: Path, out: Path) -> dict[str, Any]:
    """Run a part; what it leaves lies in ``out``. Returns its summary, which is also ``out/NAME.json``."""
    part, began = PART[name], time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        run = {"integrity": _integrity, "record": _record}.get(name, _jobs)
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
        command = [sys.executable, str(packed / "muster.pyz"), "run", str(job / "plan.json"), "--job-dir", str(job)]
        work = folder / "work"
        why = _call(command, folder / f"{plan.stem}.log", _left(part, began), MUSTER_WORK=str(work))
        shutil.rmtree(work, ignore_errors=True)
        if why:
            trouble.append(why)
        result = job / "result.json"
        if not result.exists():
            trouble.append(f"{plan.stem}: no result")
            continue
        read = json.loads(result.read_text())
        trouble += [
            f"{plan.stem}: {each['probe']} {each['status']}: {each['reason']}"
            for each in read["probes"]
            if each["status"] not in ("completed", "skipped")
        ]
        figures += _figures(read["measurements"]) if part.name != "stages" else []
    return figures, trouble


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
    trouble = [_call([sys.executable, "-c", NCCL], folder / "nccl.txt", min(60.0, _left(part, began)), **settings)]
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
