"""A machine with a kernel log of the test's own, beside the vendor's GPUs as this node side finds them."""

from __future__ import annotations

import os

from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Usage
from muster_node.hardware.vendors import open_gpus


class Machine(HostHardware):
    """This host, used by nobody."""

    def kernel_log(self) -> list[str]:
        """What the test gave."""
        return os.environ["ACME_LOG"].splitlines()

    def usage(self) -> Usage:
        """Nobody's."""
        return Usage()


def open_machine() -> Machine:
    """The machine, with whatever vendor's GPUs there are."""
    return Machine(accelerators=open_gpus())
