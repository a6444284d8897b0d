"""Whatever a demo starts, however it detaches itself, ends with it, by whatever end the demo comes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from muster_demo import watchdog

DEMO = """
import os, subprocess, sys, time
from muster_demo import watchdog

def demo():
    # One child that stays, one that detaches itself as a job on a node does, one that ignores SIGTERM.
    subprocess.Popen(["sleep", "300"])
    subprocess.run(["bash", "-c", "setsid nohup sleep 301 >/dev/null 2>&1 &"])
    subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(302)"])
    time.sleep(1)
    try:
        print(os.getpid(), flush=True)
        if sys.argv[1] == "return":
            return 7
        time.sleep(300)
    finally:
        print("cleaned up", flush=True)

sys.exit(watchdog.run(demo))
"""


def start(tmp_path: Path, how: str) -> tuple[subprocess.Popen[str], int, dict[str, str]]:
    environment = {**os.environ, watchdog.MARK: str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", DEMO, how], stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline()), environment


def left(tmp_path: Path, patience_s: float = 10.0) -> list[psutil.Process]:
    deadline = time.monotonic() + patience_s
    while (found := watchdog.marked(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def test_nothing_is_left_when_the_demo_returns(tmp_path) -> None:
    process, _demo, _environment = start(tmp_path, "return")
    assert process.wait(30) == 7
    assert left(tmp_path, 0) == []


@pytest.mark.parametrize(
    ("argument", "status", "said"),
    [("None", 0, ""), ("0", 0, ""), ("2", 2, ""), ("'no such fleet'", 1, "no such fleet\n")],
)
def test_a_demo_that_leaves_by_sys_exit_gives_its_status_without_a_traceback(argument, status, said) -> None:
    code = f"import sys; from muster_demo import watchdog; sys.exit(watchdog.run(lambda: sys.exit({argument})))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stderr) == (status, said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_stop_signal_and_clean_up_ran(tmp_path, number) -> None:
    process, _demo, _environment = start(tmp_path, "wait")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert "cleaned up" in output
    assert process.returncode == 130
    assert left(tmp_path, 0) == []


def test_a_signal_that_comes_just_before_a_call_that_blocks_is_sent_again() -> None:
    # The handler of the first one has no effect, as if Python ran it after the call only.
    code = """
import signal, sys, time
from muster_demo import watchdog

def demo():
    stop = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, stop))
    print("sleeps", flush=True)
    time.sleep(300)

sys.exit(watchdog.run(demo))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sleeps\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


DROPS = """
import logging, os, signal, sys, threading, time
from muster_demo import watchdog

signals = [signal.SIGTERM]

def signal_once():
    if signals:
        os.kill(os.getppid(), signals.pop())
        ends = time.monotonic() + 1
        while time.monotonic() < ends:
            pass

def in_a_hook_of_fork():
    os.register_at_fork(after_in_parent=signal_once)
    os.fork() or os._exit(0)

def in_a_destructor():
    type("Held", (), {"__del__": lambda _: signal_once()})()

def before_logging_releases_its_lock():
    as_logging = type(signal_once)(signal_once.__code__, {**globals(), "__name__": "logging"})
    release = logging._releaseLock
    logging._releaseLock = lambda: (as_logging(), release())
    logging.getLogger("held")

def demo():
    try:
        globals()[sys.argv[1]]()
        time.sleep(300)
    finally:
        other = threading.Thread(target=lambda: logging.getLogger("other"), daemon=True)
        other.start()
        other.join(10)
        print("locked" if other.is_alive() else "free", flush=True)

sys.exit(watchdog.run(demo))
"""


@pytest.mark.parametrize("where", ["in_a_hook_of_fork", "in_a_destructor", "before_logging_releases_its_lock"])
def test_a_signal_where_python_drops_exceptions_or_a_lock_is_held_ends_the_demo_cleanly(where) -> None:
    command = [sys.executable, "-c", DROPS, where]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (process.returncode, process.stdout) == (130, "free\n"), process.stderr


def test_a_terminal_signals_both_and_clean_up_still_runs_once(tmp_path) -> None:
    process, _demo, _environment = start(tmp_path, "wait")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert output.count("cleaned up") == 1
    assert left(tmp_path, 0) == []


def test_nothing_is_left_when_the_demo_proper_is_killed(tmp_path) -> None:
    process, demo, _environment = start(tmp_path, "wait")
    os.kill(demo, signal.SIGKILL)
    assert process.wait(30) == 128 + signal.SIGKILL
    assert left(tmp_path, 0) == []


def test_the_next_demo_finds_what_a_killed_watchdog_left(tmp_path) -> None:
    process, demo, _environment = start(tmp_path, "wait")
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(demo, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    found = watchdog.marked(str(tmp_path))
    assert found, "the detached sleep should have outlived both"
    assert watchdog.end_all(found, patience_s=0.5) == []
    assert left(tmp_path, 0) == []
