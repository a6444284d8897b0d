"""The node side's command line: a command, or one probe in a process of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Callable, NoReturn

from muster_node import processes
from muster_node.agent import child, registry
from muster_node.hardware.seam import Hardware


def host_hardware() -> Hardware:
    """The machine this runs on, or the simulated machine that the environment names."""
    from muster_node.hardware import open_hardware

    return open_hardware()


_ROOTS_PROGRAMS = "/usr/sbin:/sbin"
"""A login's PATH may lack them, as that of Debian's sshd does, and tools such as nvme and ipmitool are there."""


def main(
    argv: Sequence[str],
    relaunch: Sequence[str],
    open_hardware: Callable[[], Hardware] = host_hardware,
    packages: Sequence[str] = registry.PROBE_PACKAGES,
) -> NoReturn:
    """Runs a command line and ends the process. ``relaunch`` is the command that starts this program again."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:{_ROOTS_PROGRAMS}"
    if argv[:1] == ["_probe"]:
        child.main(json.loads(argv[1]), open_hardware)
    report = processes.go_on_in_child()
    # Half of a probe's start would go into what only commands need; in a zipapp it is compiled each time.
    from muster_node import commands

    processes.leave(commands.carry_out(argv, relaunch, open_hardware, packages), report)
