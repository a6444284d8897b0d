"""The control groups that this process is in: their folders, and how much memory they leave it.

Source: Documentation/admin-guide/cgroup-v2.rst and Documentation/admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import re

from muster_node.hardware.host.sysfs import Files

_CGROUPS = "/sys/fs/cgroup"
_MEMORY = (
    ("memory.max", "memory.current"), ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)  # fmt: skip
"""The files of a group's limit and use, of cgroup 2 and version 1; a group has those of one of them. Beyond "high" no
process is killed, but each sleeps more the more it takes."""


def above(files: Files, controller: str) -> list[str]:
    """The folders from this process's own group up to the root, of cgroup 2 and of version 1's ``controller``.

    Some need not exist: in a container of its own the root is the container's group, whatever the path says.
    """
    found: list[str] = []
    for line in files.text("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found += _upwards(_CGROUPS, path) + _upwards(f"{_CGROUPS}/unified", path)
        elif controller in controllers.split(","):
            # CentOS 7 writes "cpuacct,cpu" here and mounts "cpu,cpuacct"; systemd links "cpu" to either.
            own = f"{_CGROUPS}/{controller}"
            found += _upwards(own if files.exists(own) else f"{_CGROUPS}/{controllers}", path)
    return found


def _upwards(root: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join((root, *parts[:depth])) for depth in range(len(parts), -1, -1)]


def free_memory(files: Files) -> float:
    """Bytes that the groups leave, infinite without a limit: beyond it the kernel kills or slows processes. Cached
    files are counted as free."""
    free = float("inf")
    for folder in above(files, "memory"):
        for limit_file, used_file in _MEMORY:
            limit, used = files.number(f"{folder}/{limit_file}"), files.number(f"{folder}/{used_file}")
            if limit is not None and used is not None:
                # Version 1 writes that of the group alone, and with "total_" that of those below it too.
                cached = re.findall(r"^(?:total_)?inactive_file (\d+)$", files.text(f"{folder}/memory.stat"), re.M)
                free = min(free, max(0.0, limit - used + max(map(int, cached), default=0)))
    return free
