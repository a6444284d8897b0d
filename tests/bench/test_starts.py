"""Every bench starts: its modules load in an interpreter of their own, in the order in which the command loads them.
Killed, it leaves no process.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import tests.bench
from muster_demo import watchdog

NAMES = sorted(each.name for each in pkgutil.iter_modules(tests.bench.__path__) if not each.name.startswith("test_"))
HERE = Path(__file__).parent
FILES = (*HERE.glob("*.py"), *HERE.glob("*/__main__.py"))
COMMANDS = [path for path in FILES if "\nif __name__ ==" in path.read_text()]
STARTS_PROCESSES = re.compile(
    r"^(from|import) (subprocess|multiprocessing|muster_demo\.services|tests\.support\.servers|tests\.bench\.fleet\b"
    r"|tests\.bench\.fabric\.agents|tests\.muster_node\.cluster)\b|^from tests\.bench import .*\bfleet\b",
    re.MULTILINE,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_bench_loads(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import tests.bench.{name}"], check=True)


def test_every_bench_that_starts_processes_runs_below_the_watchdog() -> None:
    starting = {path.relative_to(HERE) for path in COMMANDS if STARTS_PROCESSES.search(path.read_text())}
    assert len(starting) >= 10
    below = {path.relative_to(HERE) for path in COMMANDS if "sys.exit(watchdog.run(" in path.read_text()}
    assert starting - below == set()


@pytest.mark.slow
@pytest.mark.needs_postgresql
def test_a_bench_that_is_killed_leaves_no_database(tmp_path: Path) -> None:
    """PostgreSQL makes itself a daemon: it is no child of the bench that started it."""
    command = [sys.executable, "-m", "tests.bench.age", "--runs", "100000"]
    running = subprocess.Popen(command, env={**os.environ, watchdog.MARK: str(tmp_path)})
    try:
        while not _server(str(tmp_path)):
            assert running.poll() is None
            time.sleep(0.2)
        running.terminate()
        running.wait()
        assert [each for each in watchdog.marked(str(tmp_path)) if watchdog.alive(each)] == []
    finally:
        running.kill()
        watchdog.end_all(watchdog.marked(str(tmp_path)), patience_s=0)


def _server(mark: str) -> bool:
    """Whether the database server runs on its folder: initdb starts another one for a moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        running = [each.cmdline() for each in watchdog.marked(mark) if each.name() == "postgres"]
        return any("unix_socket_directories" in " ".join(words) for words in running)
    return False
