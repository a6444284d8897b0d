"""From the submission of a user's job to its first instruction, on a full cluster where one node is being tested.

Run as ``python -m tests.bench.give_back [--trials N] [--seed S]``. Real: Slurm (one slurmctld, four slurmd on this
machine), sshd, the node side and its probes on this machine's CPU. Each trial tests one node as a job, submits a user's
job at a drawn moment of a stage, and looks what the test left behind when that job begins.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from muster.admission.backend import TEST_PREFIX
from muster.admission.backends.slurm.job import SlurmTests
from muster.admission.runner import Runner
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import jobs
from muster.remote.job.zipapp import build_agent
from muster_criteria.sku_files.programme import stage_calls
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import STAGES
from muster_demo import watchdog
from muster_node.contract import Plan, ProbeCall
from tests.bench import bars
from tests.support.servers import slurm, sshd
from tests.support.waiting import until

TRIALS_MIN = 20
NODE = "n0"
LIMIT_S = 60.0
MOMENT_S = (0.1, 1.5)
INTAKE_MOMENT_S = (0.0, 0.1)
"""The user's job is submitted so long after the stage began, while it runs; intake takes half a second."""


def plan_of(stage: str, key: str, fence: int, seed: int) -> Plan:
    """The stage of a machine without GPUs, at the shortest level."""
    calls = stage_calls(load_sku("cpu-generic", ()), stage, "demo", seed)
    probes = tuple(ProbeCall(call.probe, call.timeout_s, call.seed, dict(call.params)) for call in calls)
    return Plan(key, NODE, stage, "demo", fence, 600.0, probes, force_reason="a bench on a busy machine")


def left_behind(key: str) -> list[str]:
    """The command lines of the job's processes that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if key in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words[:120])
        except psutil.Error:
            continue
    return found


def trial(
    cluster: slurm.Slurm, server: sshd.Sshd, folder: Path, number: int, stage: str, draw: random.Random
) -> tuple[float, list[str], bool]:
    """Returns (seconds, what the test left behind, whether the node side ran at the submission)."""
    tests = SlurmTests(Runner(20.0, (("SLURM_CONF", str(cluster.conf)),)), "muster")
    node, key = server.node(NODE), f"{number + 1:024x}"
    tests.begin(NODE, TEST_PREFIX + key, 60)
    agent = build_agent(folder / "agents")
    with ssh.connect(node, Credentials(key_file=str(server.key_file)), timeout=10) as client:
        seen = jobs.look(client, node.work_dir, key, agent.sha256)
        jobs.send_agent(client, seen, agent.path, agent.sha256)
        launch = {"kind": "python", "python": sys.executable}
        text = plan_of(stage, key, number + 1, draw.randrange(2**31)).to_json()
        jobs.start(client, seen, key, text, launch, agent.sha256, tests.step(TEST_PREFIX + key))
        progress = Path(jobs.paths(seen.work, key).folder) / "progress.jsonl"
        _until(progress.exists, f"the stage {stage} did not begin")
        time.sleep(draw.uniform(*(INTAKE_MOMENT_S if stage == "intake" else MOMENT_S)))
        ran = jobs.look(client, node.work_dir, key, "").state is jobs.State.RUNNING
        begun = folder / f"begun-{number}"
        script = f"--wrap=echo $(date +%s.%N) $SLURMD_NODENAME >{begun}.part; mv {begun}.part {begun}; sleep 60"
        submitted = time.time()
        job = cluster.call("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--chdir=/", script).strip()
        _until(begun.exists, "the user's job did not begin")
        left = left_behind(key)
        at, where = begun.read_text().split()
        assert where == NODE, "the cluster was not full"
        seconds = float(at) - submitted
        cluster.call("scancel", job)
        _until(
            lambda: NODE in cluster.call("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"),
            "the node stays busy",
        )
    return seconds, left, ran


def _until(true: Callable[[], object], complaint: str) -> None:
    until(true, what=lambda: complaint, limit_s=LIMIT_S, step_s=0.02)


def main() -> int:
    """Prints a table and one JSON object. Returns 1 if a figure misses its bar, or too few trials or stages count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS_MIN)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    seconds: list[float] = []
    left: list[str] = []
    running: list[str] = []
    with tempfile.TemporaryDirectory() as folder, slurm.running(4) as cluster, sshd.running(Path(folder) / "n") as node:
        for name in cluster.names:
            if name != NODE:
                cluster.call(
                    "sbatch",
                    "--exclusive",
                    f"--nodelist={name}",
                    "--output=/dev/null",
                    "--chdir=/",
                    "--wrap=sleep 9999",
                )
        for number in range(options.trials):
            stage = STAGES[number % len(STAGES)]
            took, found, ran = trial(cluster, node, Path(folder), number, stage, draw)
            seconds.append(took)
            left += found
            running += [stage] if ran else []
            print(f"{stage:12} {took:6.2f} s  {'in a stage' if ran else 'between stages'}  {found or ''}", flush=True)
        cluster.call("scancel", "--state=RUNNING", check=False)
    figures = {
        "trials": len(seconds),
        "stages": sorted(set(running), key=STAGES.index),
        "seconds_p50": round(statistics.median(seconds), 2),
        "seconds_max": round(max(seconds), 2),
        "left_behind": len(left),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))
    enough = len(seconds) >= TRIALS_MIN and set(running) == set(STAGES)
    return 0 if enough and bars.GIVE_BACK.holds(figures["seconds_max"]) and not left else 1


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
