"""The commands that the node side runs as root through ``sudo -n``, each with all its arguments.

No other command is: ``docs/examples/muster.sudoers`` allows these and no more. Without them readings are missing, which
is never a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

SERIAL_FILES = ("/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/board_serial")
DMESG = ("dmesg",)
IPMITOOL = ("ipmitool", "sdr", "elist", "all")
COMMANDS: tuple[tuple[str, ...], ...] = (*(("cat", file) for file in SERIAL_FILES), DMESG, IPMITOOL)

ASK_LIMIT_S = 10.0


def as_root(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the command line that runs ``command`` as root without asking for a password."""
    return ("sudo", "-n", *command)


def granted(command: Sequence[str]) -> bool:
    """Whether this user may run ``command`` as root, or is root."""
    if os.geteuid() == 0:
        return True
    if shutil.which("sudo") is None:
        return False
    try:
        done = subprocess.run(
            ["sudo", "-n", "-l", *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
