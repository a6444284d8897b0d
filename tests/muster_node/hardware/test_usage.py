"""Which processes and logins count as foreign use of this machine."""

import os
import subprocess
import sys

import pytest

from muster_node.agent import guard
from muster_node.hardware.host import parse
from muster_node.hardware.host import usage as host_usage
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import GpuUse

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass\n"


@pytest.fixture
def spinning():
    """Starts a busy process, with keyword arguments for Popen; it is killed afterwards."""
    started = []

    def start(**options):
        started.append(subprocess.Popen([sys.executable, "-c", SPIN], **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_agents_children_are_not_foreign(spinning):
    child = spinning()
    detached = spinning(start_new_session=True)
    busy = " ".join(HostHardware().usage().busy_processes)
    assert f"process {child.pid})" not in busy
    assert f"process {detached.pid})" not in busy


def test_a_busy_foreign_process_is_named(tree, clock):
    """Another user's job, on paper: processes we start are ours by descent."""

    def stat(pid, name, parent, ticks):
        return f"{pid} ({name}) R {parent} {pid} {pid} 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1 1 1"

    ticks = {"train": 0}
    files = tree({"/proc/2/stat": stat(2, "kthreadd", 0, 0)})

    def burn(seconds):
        ticks["train"] += int(95 * seconds)
        tree(
            {
                "/proc/9001/stat": stat(9001, "train", 1, ticks["train"]),
                "/proc/9002/stat": stat(9002, "idle", 1, 5),
                "/proc/9003/stat": stat(9003, "kworker", 2, ticks["train"]),
            }
        )
        clock.time += seconds

    burn(0)
    clock.sleep = burn
    usage = host_usage.usage(files, clock, GpuUse(("pid 7 uses gpu0",)))
    (busy,) = usage.busy_processes
    assert busy.startswith("train (process 9001) uses 9")
    assert usage.gpu_processes == ("pid 7 uses gpu0",)
    assert usage.cpu_count >= 1


def test_a_brief_load_is_not_busy(tree, clock):
    def stat(ticks):
        return f"9001 (cron) R 1 9001 9001 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1 1 1"

    files = tree({"/proc/9001/stat": stat(0)})
    windows = iter([30, 30])

    def flicker(seconds):
        tree({"/proc/9001/stat": stat(next(windows))})
        clock.time += seconds

    clock.sleep = flicker
    assert host_usage.usage(files, clock, GpuUse()).busy_processes == ()


@pytest.mark.parametrize("first", ["absent", "unreadable", "listed"])
def test_where_the_processes_of_others_are_hidden_it_is_not_known_whether_they_use_it(tree, clock, first):
    """hidepid=2 hides the folders of other users' processes, hidepid=1 what is in them."""

    def stat(pid, name):
        return f"{pid} ({name}) R 1 {pid} {pid} 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 1 1 1"

    files = tree({f"/proc/{os.getpid()}/stat": stat(os.getpid(), "python3")})
    if first == "listed":
        tree({"/proc/1/stat": stat(1, "systemd")})
    if first == "unreadable":
        (files.root / "proc" / "1").mkdir()
    use = guard.assess(host_usage.usage(files, clock, GpuUse()))
    assert (use.busy, use.known) == ((False, True) if first == "listed" else (True, False))


@pytest.mark.parametrize(
    "listed",
    [
        "ada      pts/7        2026-11-30 10:02 (10.0.0.9)\ngrace    tty1         2026-11-30 09:00\n",
        "ada      pts/7        Nov 30 10:02 (10.0.0.9)\ngrace    tty1         Nov 30 09:00\n",
        # Debian 13, by logind: the second line is an ssh session without a terminal, as Muster's own
        "ada      sshd pts/7   2026-11-30 10:02 (10.0.0.9)\nmuster   sshd         2026-11-30 10:03 (10.0.0.1)\n"
        "grace    tty1         2026-11-30 09:00\n",
    ],
)
def test_a_login_is_one_at_a_terminal(listed):
    assert parse.parse_who(listed) == [("ada", "pts/7"), ("grace", "tty1")]
