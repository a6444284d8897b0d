"""Foreign use of this machine: logins, and busy processes that are not ours."""

from __future__ import annotations

import os

from muster_node.hardware.host import parse
from muster_node.hardware.host.sysfs import Files, output_of
from muster_node.hardware.seam import Clock, GpuUse, Usage
from muster_node.processes import Process, parse_stat, table

BUSY_SHARE = 0.5
"""A process counts as busy from half of one core: below that lie the daemons of an idle machine."""

_WINDOW_S = 0.3
_KERNEL_THREADS = 2  # kthreadd, the parent of all kernel threads


def usage(files: Files, clock: Clock, gpus: GpuUse) -> Usage:
    """Look at the machine for about half a second."""
    return Usage(
        gpu_processes=gpus.processes,
        unknown=(*gpus.unknown, *_hidden(files)),
        users=tuple(_users(files)),
        load_1min=os.getloadavg()[0],
        cpu_count=os.cpu_count() or 1,
        busy_processes=tuple(_busy(files, clock)),
    )


def _users(files: Files) -> list[str]:
    ours = _our_terminals(files)
    logins = parse.parse_who(output_of(["who"]) or "")
    return [f"{user} on {terminal}" for user, terminal in logins if terminal not in ours]


def _our_terminals(files: Files) -> set[str]:
    """Terminals of this process and its ancestors: the login that started this process is not a foreign user."""
    terminals = set()
    for pid in _ancestors(table(str(files.root / "proc"))):
        try:
            terminal = os.readlink(f"{str(files.root).rstrip('/')}/proc/{pid}/fd/0")
        except OSError:
            continue
        if terminal.startswith("/dev/"):
            terminals.add(terminal[len("/dev/") :])
    return terminals


def _hidden(files: Files) -> list[str]:
    """Why other users' processes cannot be seen: normally every user may read the state of the first process.

    In a container with its own pid namespace the first process is the container's, so nothing is reported there.
    """
    if parse_stat(files.text("/proc/1/stat")) is not None:
        return []
    return ["other users' processes are hidden: mount /proc without hidepid, or with gid= of a group of this user"]


def _busy(files: Files, clock: Clock) -> list[str]:
    """Foreign processes that are busy in two windows running; one window alone catches every passing cron job."""
    first = _busy_once(files, clock)
    if not first:
        return []
    second = _busy_once(files, clock)
    return [f"{second[p][0]} (process {p}) uses {100 * second[p][1]:.0f} % of a core" for p in first if p in second]


def _busy_once(files: Files, clock: Clock) -> dict[int, tuple[str, float]]:
    before, start = table(str(files.root / "proc")), clock.now()
    clock.sleep(_WINDOW_S)
    after, elapsed = table(str(files.root / "proc")), clock.now() - start
    ours = _our_tree(after)
    ticks_per_s = float(os.sysconf("SC_CLK_TCK"))
    busy = {}
    for pid, process in after.items():
        if pid in ours or pid not in before or _KERNEL_THREADS in (pid, process.parent):
            continue
        share = (process.ticks - before[pid].ticks) / ticks_per_s / elapsed
        if share >= BUSY_SHARE:
            busy[pid] = (process.name, share)
    return busy


def _ancestors(processes: dict[int, Process]) -> set[int]:
    found: set[int] = set()
    current = os.getpid()
    while current in processes and current not in found and current > 1:
        found.add(current)
        current = processes[current].parent
    return found


def _our_tree(processes: dict[int, Process]) -> set[int]:
    """This process, its session, its ancestors (agent, sshd) and every process that it or its session started."""
    mine = processes.get(os.getpid())
    ours = _ancestors(processes)
    roots = {pid for pid, process in processes.items() if mine and process.session == mine.session}
    roots.add(os.getpid())
    grown = True
    while grown:
        children = {pid for pid, process in processes.items() if process.parent in roots} - roots
        roots |= children
        grown = bool(children)
    return ours | roots
