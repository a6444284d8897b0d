"""The command line of a campaign."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


@pytest.mark.slow
@pytest.mark.needs_postgresql
@pytest.mark.needs_redis
@pytest.mark.needs_slurm
@pytest.mark.timeout(600)
def test_an_interrupted_campaign_leaves_no_process_and_no_finished_leg(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--faults", "5", "--minutes", "5", "--nodes", "2"]
    with subprocess.Popen([*command, "--resume", str(tmp_path)], stdout=subprocess.PIPE, text=True) as campaign:
        below = psutil.Process(campaign.pid)
        # Slurm's daemons and Airflow's components are up by then, or on their way.
        while len(everyone := below.children(recursive=True)) < 8:
            assert campaign.poll() is None
            time.sleep(0.2)
        campaign.terminate()
        assert campaign.wait(120) != 0
    assert [process for process in everyone if process.is_running() and process.status() != "zombie"] == []
    assert not list(tmp_path.glob("leg-*.json"))
