"""The command line of a campaign."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.observers import OBSERVERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.early(5),
    pytest.mark.needs_postgresql,
    pytest.mark.needs_redis,
    pytest.mark.needs_slurm,
    pytest.mark.needs_faketime,
    pytest.mark.needs_torch,
]
CAMPAIGN = [sys.executable, "-m", "tests.chaos"]
SAFE = ("false_admissions", "false_quarantines", "double_tests", "foreign_drains_undone")
"""What no load of the machine excuses. The other counters also rise where it is too slow to settle in time."""


def test_an_interrupted_campaign_leaves_no_process_and_no_finished_leg(tmp_path: Path) -> None:
    command = [*CAMPAIGN, "--faults", "5", "--minutes", "5", "--nodes", "2", "--resume", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as campaign:
        below = psutil.Process(campaign.pid)
        # Slurm's daemons and Airflow's components are up by then, or on their way.
        while len(everyone := below.children(recursive=True)) < 8:
            assert campaign.poll() is None
            time.sleep(0.2)
        campaign.terminate()
        assert campaign.wait(600) != 0
    assert [process for process in everyone if process.is_running() and process.status() != "zombie"] == []
    assert not list(tmp_path.glob("leg-*.json"))


def test_a_short_campaign_finds_nothing_that_is_unsafe(tmp_path: Path) -> None:
    options = ["--faults", "18", "--minutes", "3", "--nodes", "3", "--seed", "7", "--resume", str(tmp_path)]
    ran = subprocess.run([*CAMPAIGN, *options], stdout=subprocess.PIPE, text=True, check=False)
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert None not in [figures[name] for name in OBSERVERS], ran.stdout
    assert {name: figures[name] for name in SAFE} == dict.fromkeys(SAFE, 0), ran.stdout
    assert figures["faults"] >= 8
    assert figures["lives"] > 0
    assert min(figures["examined"][name] for name in ("results_lost", "false_admissions", "double_tests")) > 0
