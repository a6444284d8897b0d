"""A short campaign: what strikes is drawn from a fixed seed, and nothing is lost, doubled, leaked or misjudged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.observers import OBSERVERS

FAULTS = 12


@pytest.mark.slow
@pytest.mark.needs_postgresql
@pytest.mark.needs_redis
@pytest.mark.needs_slurm
@pytest.mark.timeout(1500)
@pytest.mark.early(1)
def test_a_share_of_the_campaign_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--faults", str(FAULTS), "--minutes", "1.5", "--nodes", "4"]
    done = subprocess.run(
        [*command, "--seed", "7", "--resume", str(tmp_path)], capture_output=True, text=True, check=False
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert {name: figures[name] for name in OBSERVERS} == dict.fromkeys(OBSERVERS, 0), done.stdout
    assert figures["faults"] == FAULTS
    assert figures["lives"] > 0
    assert done.returncode == 0


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
