"""However a test run ends, the servers and jobs that its tests started end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.plugins import run_end

pytestmark = [pytest.mark.needs_sshd, pytest.mark.needs_postgresql, pytest.mark.early(16)]

# A daemon of another user, a server, a job that its SSH session detached, and one that ignores SIGTERM.
TEST = """
import subprocess, sys, time
from pathlib import Path
from tests.support.servers import postgresql, sshd

def test_that_waits(tmp_path):
    with postgresql.running() as database, sshd.running(tmp_path / "node") as server:
        job = "setsid nohup sleep 301 >/dev/null 2>&1 </dev/null & echo $!"
        login = ["ssh", "-i", str(server.key_file), "-p", str(server.port), "-o", "StrictHostKeyChecking=no",
                 "-o", "UserKnownHostsFile=/dev/null", "127.0.0.1", job]
        job = subprocess.run(login, capture_output=True, text=True, check=True).stdout.strip()
        stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 302; sleep 303"])
        Path({pids!r}).write_text(f"{database.pid} {server._process.pid} {job} {stubborn.pid}")
        time.sleep(300)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_run(how: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "test_it.py").write_text(TEST.replace("{pids!r}", repr(str(pids))))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outer = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    options = "-p xdist.plugin -p tests.support.plugins.run_end -n 1"
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options.split(), str(tmp_path)],
        # Importing the plugins that it does not need takes most of its time.
        env={**outer, "PYTHONPATH": str(run_end.ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        # A shell starts background processes with SIGINT ignored, and children inherit this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _until(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    if how is signal.SIGINT:
        os.killpg(run.pid, how)  # as a terminal sends it
    else:
        run.send_signal(how)
    run.wait(60)
    _until(lambda: not [process for process in started if _runs(process)], started)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(done: Callable[[], bool], processes: Sequence[psutil.Process] = ()) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, [str(process) for process in processes if _runs(process)]
        time.sleep(0.1)
