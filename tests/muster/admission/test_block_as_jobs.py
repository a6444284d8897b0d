"""Two nodes that are test jobs of a real Slurm: the ranks of a block are started as steps of these jobs, by srun."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil
import pytest

from muster.admission.clusters import backend_of
from tests.muster.admission.idle_schedulers import OnSlurm
from tests.muster_node.cluster import blocks
from tests.support.servers.slurm import Slurm

JOBS = {"n0": "muster-test-block-n0", "n1": "muster-test-block-n1"}


@pytest.fixture
def block(tmp_path: Path) -> blocks.Block:
    calls = [("cluster_training", {
        "ranks": 2, "same_steps": 1, "alone_steps": 1, "warm_steps": 1, "steps": 2, "tokens": 512, "path_mib": 1,
    })]  # fmt: skip
    return blocks.Block(tmp_path, list(JOBS), calls, simulated=False, limits={"join_timeout_s": 120.0}, probe_s=240.0)


def _processes(block: blocks.Block, name: str) -> list[psutil.Process]:
    """All that works in a node's folder, without the client of srun that stands for it here."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            works = process.environ().get("MUSTER_WORK") == str(block.folder / name / "work")
            if works and Path(process.exe()).name != "srun":
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.needs_slurm
@pytest.mark.needs_torch
class TestBlock:
    def test_ranks_of_two_nodes_are_steps_of_their_jobs_and_train(
        self, alpha: Slurm, block: blocks.Block, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        OnSlurm(alpha, monkeypatch)
        jobs = backend_of("alpha").tests
        assert jobs is not None
        numbers = {}
        try:
            for node, job in JOBS.items():
                jobs.begin(node, job, 60)
                words = jobs.step(job)
                assert words is not None
                (numbers[node],) = [word.partition("=")[2] for word in words if word.startswith("--jobid=")]
                monkeypatch.setattr(blocks, "AGENT", [*words, sys.executable, "-m", "muster_node"])
                block.start(node)
            for node, number in numbers.items():
                block.await_progress(node, "phase training")
                of = [process.environ().get("SLURM_JOB_ID") for process in _processes(block, node)]
                # Agent, watchdog, probe and two ranks.
                assert len(of) >= 5
                assert set(of) == {number}
            ends = block.end(limit_s=900.0)
        finally:
            block.close()
            for job in JOBS.values():
                jobs.end(job)
        assert len(set(numbers.values())) == len(JOBS)
        for end in ends.values():
            outcome = end.outcome("cluster_training")
            assert outcome.status == "completed", outcome.reason
            assert {row.value for row in end.measured("cluster_training") if row.metric == "training_devices"} == {2.0}
