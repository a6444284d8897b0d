"""The commands that the node side runs as root through ``sudo -n``, each with all its arguments.

There are no others: ``docs/examples/muster.sudoers`` allows ``COMMANDS`` and ``smart_log``, and no more. Without them
readings are missing, which is never a failure. The node side's user may not kill a root process, but may end the sudo
that runs it: sudo passes SIGTERM on, while SIGKILL would end sudo alone. A process that ignores SIGTERM is ended by
sudo at the time limit in that file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence

SERIAL_FILES = ("/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/board_serial")
DMESG = ("dmesg", "-r")
IPMITOOL = ("ipmitool", "sdr", "elist", "all")
COMMANDS: tuple[tuple[str, ...], ...] = (*(("cat", file) for file in SERIAL_FILES), DMESG, IPMITOOL)
"""On every node; ``smart_log`` is one more for each of its NVMe disks."""

ASK_LIMIT_S = 10.0
END_WAIT_S = 1.0


def smart_log(disk: str) -> tuple[str, ...]:
    """Returns the command that reads the SMART log of an NVMe controller ("nvme0")."""
    return ("nvme", "smart-log", "/dev/" + disk, "-o", "json")


def as_root(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the command line that runs ``command`` as root without asking for a password."""
    return ("sudo", "-n", *command)


def granted(command: Sequence[str]) -> bool:
    """Whether this user may run ``command`` as root, or is root."""
    if os.geteuid() == 0:
        return True
    if shutil.which("sudo") is None:
        return False
    answer = output_within(("sudo", "-n", "-l", *command), ASK_LIMIT_S)
    return answer is not None and answer[0] == 0


def end(pid: int, number: int = signal.SIGKILL) -> None:
    """The signal for a process of this user; SIGTERM for a sudo that this user started, which passes it on."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        runs_as_root = os.stat(f"/proc/{pid}").st_uid == 0 and os.geteuid() != 0
        os.kill(pid, signal.SIGTERM if runs_as_root else number)


def output_within(command: Sequence[str], limit_s: float) -> tuple[int, bytes] | None:
    """(exit status, standard output) of a command; None if it cannot be started or does not end within ``limit_s``."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # sudo passes on no signal from its own process group
        )
    except OSError:
        return None
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_WAIT_S)
        if process.stdout is not None:
            process.stdout.close()
        return None
    return process.returncode, out
