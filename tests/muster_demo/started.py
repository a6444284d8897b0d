"""A demo as a user starts it: a process of its own, with an output and a directory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.waiting import until

STARTED_S = 1200.0
"""Generous: other tests start Airflow at the same time."""


class Demo:
    """A running demo, the file its output goes to, and the directory it works in."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory.with_suffix(".out")
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "muster_demo", "--directory", str(directory), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str) -> None:
        self.wait_until(lambda: words in self.printed())

    def wait_until(self, true: Callable[[], bool]) -> None:
        def true_or_over() -> bool:
            assert self.process.poll() is None, self.printed()
            return true()

        until(true_or_over, what=self.printed, limit_s=STARTED_S, step_s=0.5)

    def family(self) -> list[psutil.Process]:
        watchdog = psutil.Process(self.process.pid)
        return [watchdog, *watchdog.children(recursive=True)]


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
