"""A pytest plugin: no process outlives a test run, however the run ends; the summary gives its wall and CPU time.

Every process of a run inherits ``MARK``. A watchdog in a session of its own waits until the run's process is gone, even
by SIGKILL, and then ends every process that carries this mark, with its descendants.
Run as ``python -m tests.support.plugins.run_end VALUE``; the watchdog waits for the end of its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from muster_demo import watchdog

MARK = "TEST_RUN_OF_MUSTER"
PATIENCE_S = 2.0
"""How long processes have to end by themselves after SIGTERM."""

ROUNDS = 10
"""A process that is ended may have started others meanwhile."""

ROOT = Path(__file__).resolve().parents[3]
LONG_S, FILES = 60.0, 40
"""Runs of more seconds than this list so many of their slowest files."""

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
    if process := config.stash.get(WATCHDOG, None):
        assert process.stdin
        process.stdin.close()
        process.wait()


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
        for file, seconds in costs.wall.most_common(FILES):
            terminalreporter.write_line(f"{seconds:6.0f} s wall {costs.cpu[file]:6.0f} s CPU  {file}")
    terminalreporter.write_line(f"wall {wall / 60:.1f} min, CPU {_cpu_s() / 60:.1f} min with child processes")


def end_marked(value: str) -> None:
    """End the processes with this mark and their descendants, until there are none: one may have started others."""
    patience_s = PATIENCE_S
    for _ in range(ROUNDS):
        if not (left := watchdog.marked(value, MARK)):
            break
        watchdog.end_all(left, patience_s=patience_s)
        patience_s = 0.0


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])
