"""A pytest plugin: no process outlives a test run, however the run ends; the summary gives its wall and CPU time.

Every process of a run inherits ``MARK``. A watchdog in a session of its own waits until the run's process is gone, even
by SIGKILL, and then ends every process that carries this mark, with its descendants.
Run as ``python -m tests.support.plugins.run_end VALUE``; the watchdog waits for the end of its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

MARK = "TEST_RUN_OF_MUSTER"
PATIENCE_S = 2.0
"""How long processes have to end by themselves after SIGTERM."""

ROUNDS = 10
"""A process that is ended may have started others meanwhile."""

PR_SET_PDEATHSIG = 1

ROOT = Path(__file__).resolve().parents[3]
LONG_S = 60.0
"""Runs longer than this list their slowest files."""

BEGAN = pytest.StashKey[float]()
CPU_BEFORE = pytest.StashKey[float]()
COSTS = pytest.StashKey["Costs"]()
WATCHDOG = pytest.StashKey["subprocess.Popen[bytes]"]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark this run and start its watchdog. The processes of pytest-xdist inherit the mark of their controller."""
    if hasattr(config, "workerinput"):
        return
    os.environ[MARK] = uuid.uuid4().hex
    config.stash[BEGAN] = time.monotonic()
    config.stash[COSTS] = Costs()
    config.pluginmanager.register(config.stash[COSTS])
    config.stash[WATCHDOG] = subprocess.Popen(
        [sys.executable, "-m", "tests.support.plugins.run_end", os.environ[MARK]],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait until the watchdog has ended what this run left."""
    if watchdog := config.stash.get(WATCHDOG, None):
        assert watchdog.stdin
        watchdog.stdin.close()
        watchdog.wait()


def _cpu_s() -> float:
    """CPU seconds of this process and of all children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the CPU time at which a test begins, its fixtures included."""
    item.stash[CPU_BEFORE] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the last report of a test its CPU time."""
    report = yield
    if report.when == "teardown":
        report.user_properties.append(("cpu_s", _cpu_s() - item.stash[CPU_BEFORE]))
    return report


class Costs:
    """Wall and CPU seconds by file."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test; pytest-xdist calls this in the controller."""
        file = report.nodeid.partition("::")[0]
        self.wall[file] += report.duration
        if report.when == "teardown":
            self.cpu[file] += dict(report.user_properties).get("cpu_s", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The run's wall and CPU minutes; of a long run, its slowest files too."""
    wall = time.monotonic() - config.stash[BEGAN]
    if wall > LONG_S:
        costs = config.stash[COSTS]
        for file, seconds in costs.wall.most_common(10):
            terminalreporter.write_line(f"{seconds:6.0f} s wall {costs.cpu[file]:6.0f} s CPU  {file}")
    terminalreporter.write_line(f"wall {wall / 60:.1f} min, CPU {_cpu_s() / 60:.1f} min with child processes")


def die_with_parent() -> None:
    """For ``preexec_fn`` of a server that changes its title, as sshd does: that overwrites the mark."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def marked(value: str) -> list[psutil.Process]:
    """The processes that carry the mark ``value``, without this one and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in own and process.environ().get(MARK) == value:
                found.append(process)
    return found


def end_marked(value: str) -> None:
    """End the processes with this mark and their descendants: SIGTERM, then SIGKILL until there are none."""
    patience_s = PATIENCE_S
    for _ in range(ROUNDS):
        left = _with_descendants(marked(value))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate() if patience_s else process.kill()
        psutil.wait_procs(left, timeout=patience_s or 1.0)
        patience_s = 0.0


def _with_descendants(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Descendants are included because a process that changes its title overwrites its environment and so its mark."""
    found = {process.pid: process for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= {each.pid: each for each in process.children(recursive=True)}
    return list(found.values())


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])
