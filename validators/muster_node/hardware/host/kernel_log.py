"""The kernel log: read without assuming root, and the lines in it that report failing hardware."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from muster_node import privilege
from muster_node.hardware.host.sysfs import output_of

_LOG_COMMANDS = (
    privilege.DMESG,
    # With the kernel's own seconds since boot, as dmesg has them: they separate a stage's messages from earlier ones.
    ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"),
    privilege.as_root(privilege.DMESG),
)

LINE_MAX = 4096
"""Characters of a line that are read. The kernel's own limit is 2,048 (``PRINTK_MESSAGE_MAX``); in a longer line the
patterns below would take time that grows with its square."""

_HARDWARE_ERROR = re.compile(
    r"\[Hardware Error\]|machine check|mce: .*(error|exception)|EDAC .*(\b(CE|UE)\b|HANDLING MCE)|Uncorrected error|"
    r"AER: .*error|PCIe Bus Error|pciehp.*Link Down|I/O error|critical (medium|target) error|"
    r"NVRM: Xid|GPU has fallen off the bus|amdgpu.*\b[1-9]\d* (new )?uncorrectable|"
    r"soft lockup|hard LOCKUP|blocked for more than|\brcu_\w+ (self-)?detected stall|\brcu_\w+ kthread starved|"
    r"Kernel panic|\bBUG: |general protection fault|"
    r"Memory failure|nvme\d+: .*(timeout|controller is down)|thermal.*critical temperature",
    re.IGNORECASE,
)
"""Messages of failing hardware, or of a kernel that gave up on it; other driver messages occur on healthy nodes."""


def read() -> list[str] | None:
    """Lines of the kernel log, oldest first, from /dev/kmsg, dmesg or journalctl; None where none can be read."""
    text = _read_kmsg()
    if text is not None:
        return parse_kmsg(text)
    for command in _LOG_COMMANDS:
        output = output_of(command)
        if output:
            return [line[:LINE_MAX] for line in output.splitlines()]
    return None


def _read_kmsg() -> str | None:
    """All records of the kernel's ring buffer; each read returns one record, EAGAIN ends it."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten while we read: go on with the next record
                continue
            except OSError:
                break
            if not record:
                break
            records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records).decode("utf-8", "replace")


def parse_kmsg(text: str) -> list[str]:
    """Records of /dev/kmsg as "[seconds] message" lines; continuation lines (dictionaries of a record) are dropped."""
    lines = []
    for line in text.splitlines():
        found = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line)
        if found:
            lines.append(f"[{int(found.group(1)) / 1e6:12.6f}] {found.group(2)[:LINE_MAX]}")
    return lines


def hardware_errors(lines: Sequence[str]) -> list[str]:
    """The lines of a kernel log that report failing hardware."""
    return [line for line in lines if _HARDWARE_ERROR.search(line)]
