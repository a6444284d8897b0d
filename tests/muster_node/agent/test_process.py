"""A child process under control, where a real probe would need a broken machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster_node import contract
from muster_node.agent import facts, orphans, probe_run, process
from muster_node.agent.process import CappedLog, run_child


def run(code: str, tmp_path: Path, timeout_s: float = 10.0) -> tuple[process.ChildEnd, list[bytes], CappedLog]:
    lines: list[bytes] = []
    log = CappedLog(tmp_path / "log")
    end = run_child(
        lambda fd: [sys.executable, "-c", code, str(fd)],
        env=dict(os.environ),
        cwd=tmp_path,
        timeout_s=timeout_s,
        stop=lambda: None,
        take=lines.append,
        log=log,
    )
    return end, lines, log


def test_the_agent_does_not_wait_for_a_child_that_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test can put a process into uninterruptible sleep; one whose signals get lost looks the same from here."""
    monkeypatch.setattr(process, "_signal_group", lambda group, number: None)
    end, lines, log = run("import os, sys, time; os.write(int(sys.argv[1]), b'{}\\n'); time.sleep(60)", tmp_path, 0.5)
    try:
        assert end.returncode is None
        assert end.cut == process.TIMEOUT
        assert lines == [b"{}"]
        listener = probe_run.Listener(probe_run.Probe, lambda text: None)
        status, reason = probe_run._judge(end, listener, log, 0.5, False)
        assert status == contract.TIMED_OUT
        assert reason.startswith(f"unkillable: process {end.pid} is still there (state S) after SIGKILL")
        assert reason.endswith("it did not end within 0.5 s")
    finally:
        os.kill(end.pid, signal.SIGKILL)
        os.waitpid(end.pid, 0)


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block_the_agent(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); print('done')"
    end, _, log = run(code, tmp_path)
    assert end == process.ChildEnd(0, "", "", end.pid)
    assert log.last_line() == "done"
    for left in orphans.descendants(1):
        if left.name == "sleep" and left.parent in (1, os.getpid()):
            os.kill(left.pid, signal.SIGKILL)


def test_a_child_that_closes_its_lines_and_hangs_is_out_of_time_too(tmp_path: Path) -> None:
    end, _, _ = run("import os, sys, time; os.closerange(1, 100); time.sleep(60)", tmp_path, 0.3)
    assert (end.cut, end.returncode) == (process.TIMEOUT, -signal.SIGTERM)


def test_the_kernels_out_of_memory_kill_is_distinguished(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 12\noom_kill 3\n")
    assert facts.oom_kills((str(vmstat),)) >= 3
    log = CappedLog(tmp_path / "log")
    listener = probe_run.Listener(probe_run.Probe, lambda text: None)
    killed = process.ChildEnd(-9, "", "", 1)
    assert "by the kernel for want of memory" in probe_run._judge(killed, listener, log, 1, True)[1]
    assert "from outside" in probe_run._judge(killed, listener, log, 1, False)[1]


def test_a_descendant_tree_is_seen_whole() -> None:
    code = "import subprocess; subprocess.run(['sh', '-c', 'sleep 60; true'])"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        names: set[str] = set()
        until = time.monotonic() + 5
        while "sleep" not in names and time.monotonic() < until:
            names = {found.name for found in orphans.descendants(os.getpid())}
        assert {"sh", "sleep"} <= names
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
