"""The main job itself, unattended, as a user runs it; and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from muster import records
from muster.demo import custody
from muster.demo.draw import draw_faults, node_names
from muster.demo.service import ACTOR
from muster.demo.workdir import Busy, Workdir

SEEDS = (1, 5)
MAILS = 7 + 2 + 1
"""One for each qualification, for each member of the block of healthy nodes, and for the revalidation."""

STARTED_S = 180.0

pytestmark = [pytest.mark.demo, pytest.mark.needs_torch]


class Demo:
    """A running demo, the file its output goes to, and the directory it works in."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory.with_suffix(".out")
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "muster.demo", "--directory", str(directory), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + STARTED_S
        while words not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.5)

    def family(self) -> list[psutil.Process]:
        keeper = psutil.Process(self.process.pid)
        return [keeper, *keeper.children(recursive=True)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo; whatever a failing test leaves of it is ended."""
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path / "demo", *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            custody.end_all(demo.family(), patience_s=0)
            demo.process.wait(10)
    custody.end_all(custody.marked(str(tmp_path / "demo")), patience_s=0)


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


@pytest.mark.timeout(1900)
@pytest.mark.parametrize(("seed", "more"), list(zip(SEEDS, [(), ("--ask",)], strict=True)))
def test_unattended_it_finds_every_fault_and_takes_everybody_else_into_service(
    seed: int, more: tuple[str, ...], start: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = start("--exit", "--seed", str(seed), *more)
    status = demo.process.wait()
    said, directory = demo.said(), demo.directory
    assert status == 0, said
    assert "checks hold" in said
    for fault in draw_faults(seed):
        assert fault.node in said
        assert fault.device in said
    assert len(list((directory / "mail").glob("*.eml"))) == MAILS
    healthy = set(node_names()) - {fault.node for fault in draw_faults(seed)}
    for node in healthy:
        assert f"{node} was admitted by {ACTOR}" in said if more else f"{node} entered production by itself" in said
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
    reports = [records.run_report(run.dag_id, run.run_id, node=run.node) for run in records.list_runs()]
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
def test_ctrl_c_in_the_middle_leaves_no_process_behind(start: Callable[..., Demo]) -> None:
    demo = start("--seed", "1")
    demo.wait_for("intake: ")
    everyone = demo.family()
    assert len(everyone) > 12
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(60) == 130, demo.said()
    assert alive(everyone) == []
    assert custody.marked(str(demo.directory)) == []


@pytest.mark.timeout(400)
def test_the_next_demo_ends_what_a_killed_one_left(start: Callable[..., Demo]) -> None:
    demo = start("--seed", "1")
    demo.wait_for("intake: ")
    place = Workdir(demo.directory)
    with pytest.raises(Busy, match="A demo is running"):
        place.claim()
    proper = psutil.Process(int((demo.directory / "lock").read_text()))
    everyone = demo.family()
    assert proper in everyone
    # The keeper is stopped first, so that it cannot clean up after the demo proper.
    demo.process.send_signal(signal.SIGSTOP)
    proper.kill()
    demo.process.kill()
    demo.process.wait(10)
    with place.claim():
        assert alive(everyone) == []
        assert not place.answers.exists()
