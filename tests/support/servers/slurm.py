"""The demo's Slurm for tests: nodes ``n0``, ``n1``, …, ended and removed with the block."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from muster_demo.services import Supervisor
from muster_demo.slurm import Slurm as Slurm


@contextlib.contextmanager
def running(nodes: int = 4, further: str = "") -> Iterator[Slurm]:
    """A started cluster, with ``further`` lines in slurm.conf.

    A socket's path is short, so its folder is below /tmp.
    """
    folder = Path(tempfile.mkdtemp(prefix="muster-slurm-"))
    supervisor = Supervisor(folder / "logs")
    cluster = Slurm(supervisor, folder, tuple(f"n{number}" for number in range(nodes)), os.environ, further)
    try:
        cluster.start()
        yield cluster
    finally:
        supervisor.stop()
        end_jobs(cluster.conf)
        shutil.rmtree(folder, ignore_errors=True)


def end_jobs(conf: Path) -> None:
    """End the processes of the cluster's jobs: they outlive slurmd by design; each one's slurmstepd ends with it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(conf):
                process.kill()
