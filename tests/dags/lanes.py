"""A network of its own for this process: rates by address on its loopback, as ports and uplinks would set them.

Needs root. What this thread starts is in it too, and what listened before cannot be reached from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator

RATE_MBIT, SLOW_MBIT = 40, 14
_CLONE_NEWNET = 0x40000000  # linux/sched.h


def address(leaf: int, host: int, rail: int) -> str:
    """Of one port. Linux answers for all of 127.0.0.0/8."""
    return f"127.{10 + rail}.{leaf}.{1 + host}"


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """In the block, this thread and its children have a network without anything but a loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as before:
        if libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network namespace can be made here")
        try:
            _run("ip", "link", "set", "lo", "mtu", "9000", "up")
            _run("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "r2q", "1000")
            yield
        finally:
            if libc.setns(before.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "this process cannot return to its network")


class Lanes:
    """Classes of the loopback; of the rules that match a packet the one that was made first counts."""

    def __init__(self) -> None:
        self._made = 0

    def lane(self, mbit: int, *matches: tuple[str, ...]) -> None:
        """One lane for all that any of ``matches`` fits: ("src", "127.10.0.0/24", "dst", …)."""
        self._made += 1
        lane = f"1:{self._made:x}"
        _run("tc", "class", "add", "dev", "lo", "parent", "1:", "classid", lane, "htb", "rate", f"{mbit}mbit")
        for match in matches:
            words = [w for key, value in zip(match[::2], match[1::2], strict=True) for w in ("match", "ip", key, value)]
            _run("tc", "filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "prio", str(self._made), "u32",
                 *words, "flowid", lane)  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


is_root = os.geteuid() == 0
