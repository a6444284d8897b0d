"""The main job itself, unattended, as a user runs it; and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from muster import records
from muster.demo import custody
from muster.demo.draw import draw_faults
from muster.demo.workdir import Busy, Workdir

SEEDS = (1, 5)
STARTED_S = 180.0

pytestmark = [pytest.mark.demo, pytest.mark.needs_torch]


def start(directory: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A demo, and the file its output goes to."""
    output = directory.with_suffix(".out")
    with output.open("wb") as stream:
        demo = subprocess.Popen(
            [sys.executable, "-m", "muster.demo", "--directory", str(directory), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return demo, output


def wait_for(output: Path, words: str, demo: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTED_S
    while words not in output.read_text():
        assert demo.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.5)


def alive(processes: list[psutil.Process]) -> list[str]:
    """Who of them still runs; a zombie does not."""
    deadline = time.monotonic() + 15
    while True:
        running = []
        for process in processes:
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    running.append(f"{process.pid} {' '.join(process.cmdline())}")
            except psutil.NoSuchProcess:
                continue
        if not running or time.monotonic() > deadline:
            return running
        time.sleep(0.2)


def test_the_seeds_tested_plant_every_fault_elsewhere() -> None:
    first, second = (draw_faults(seed) for seed in SEEDS)
    for one, other in zip(first, second, strict=True):
        assert one.node != other.node
        assert one.gpu != other.gpu


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", SEEDS)
def test_unattended_it_finds_every_fault_and_fails_nothing_else(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "demo"
    demo, output = start(directory, "--exit", "--seed", str(seed))
    demo.wait()
    said = output.read_text()
    assert demo.returncode == 0, said
    assert "checks hold" in said
    for fault in draw_faults(seed):
        assert fault.node in said
        assert fault.device in said
    assert len(list((directory / "mail").glob("*.eml"))) == 7
    assert custody.marked(str(directory)) == []
    times = busy_times(directory, monkeypatch)
    host = [time for time in times if time[2]]
    assert len(host) == 4
    for begin, end, _real, what in host:
        beside = [other for *when, real, other in times if not real and when[0] < end and when[1] > begin]
        assert not beside, f"{what} was measured beside {', '.join(beside)}"


def busy_times(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, bool, str]]:
    """(begin, end, whether real, what) of every job that loaded a node, by the nodes' own results."""
    monkeypatch.setenv("MUSTER_HOME", str(directory / "muster"))
    records.dispose()
    reports = [records.run_report(run.dag_id, run.run_id) for run in records.list_runs()]
    records.dispose()
    times = []
    for report in reports:
        for stage in report.stages:
            if stage.judgement.stage != "intake" and stage.started_at is not None:
                begin = stage.started_at.timestamp()
                what = f"{report.node} {stage.judgement.stage}"
                times.append((begin, begin + (stage.duration_s or 0.0), not report.simulated, what))
    return times


@pytest.mark.timeout(400)
def test_ctrl_c_in_the_middle_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo, output = start(directory, "--seed", "1")
    wait_for(output, "intake: ", demo)
    everyone = [psutil.Process(demo.pid), *psutil.Process(demo.pid).children(recursive=True)]
    assert len(everyone) > 12
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(60) == 130, output.read_text()
    assert alive(everyone) == []
    assert custody.marked(str(directory)) == []


@pytest.mark.timeout(400)
def test_the_next_demo_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo, output = start(directory, "--seed", "1")
    wait_for(output, "intake: ", demo)
    place = Workdir(directory)
    with pytest.raises(Busy, match="A demo is running"):
        place.claim()
    (proper,) = psutil.Process(demo.pid).children()
    everyone = proper.children(recursive=True)
    # Stopped first, so that it cannot clean up after the demo proper.
    demo.send_signal(signal.SIGSTOP)
    proper.kill()
    demo.kill()
    demo.wait(10)
    with place.claim():
        assert alive(everyone) == []
        assert not place.answers.exists()
