"""Privileges: root needs nothing, others try ``sudo -n``, and without either a probe is skipped, never a failure."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import List, Optional

from muster_node.probe import Skip

NO_PRIVILEGE = "no privilege"

ASK_LIMIT_S = 10.0


@functools.lru_cache(maxsize=None)
def _sudo_grants(command: Optional[str]) -> bool:
    if shutil.which("sudo") is None:
        return False
    ask = ["sudo", "-n", "true"] if command is None else ["sudo", "-n", "-l", command]
    try:
        return subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_LIMIT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def sudo_prefix(command: Optional[str] = None) -> List[str]:
    """What to put before a command that needs root: [] for root, ["sudo", "-n"] where sudo asks no password.

    ``command`` asks for one program, for sites whose sudoers file allows only a few. Raises Skip("no privilege").
    """
    if os.geteuid() == 0:
        return []
    if _sudo_grants(None) or (command is not None and _sudo_grants(shutil.which(command) or command)):
        return ["sudo", "-n"]
    raise Skip(NO_PRIVILEGE)


def granted(command: Optional[str] = None) -> bool:
    """Whether sudo_prefix(command) would give an answer."""
    try:
        sudo_prefix(command)
    except Skip:
        return False
    return True
