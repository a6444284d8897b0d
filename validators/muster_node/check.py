"""Checks everything that probes need on this node; each item has one sentence on how to install it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import resource
import shutil
import subprocess
import sys
from typing import Callable

from muster_node import privilege
from muster_node.agent import facts, jobdir
from muster_node.bounded import bounded
from muster_node.hardware.host import disks
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Hardware
from muster_node.hardware.vendors import GPUS, of_no_vendor, on_pci, vendors
from muster_node.probe import Probe

DISK_MIN_BYTES = 2 * 1024**3
"""Room for one job: 64 MiB of telemetry, its result and logs, and a capped scratch file."""

TORCH_LIMIT_S = 120.0
"""The first import of PyTorch reads gigabytes from a cold disk."""

NOT_ALLOWED = "not allowed: log in as root, or copy docs/examples/muster.sudoers; without it these readings are missing"

RDMA_ITEMS = ("locked memory", "RDMA devices")
_CAP_IPC_LOCK = 14  # linux/capability.h

OPTIONAL_TOOLS = {
    "ipmitool": "install ipmitool for fan and inlet readings",
    "ib_write_bw": "install perftest to measure InfiniBand and RoCE ports",
    "fio": "install fio for a second opinion on disks",
    "nvme": "install nvme-cli for the SMART logs of NVMe disks",
}

TORCH_CODE = (
    "import torch; version = torch.version; "
    "print(torch.__version__, version.cuda or version.hip or 'cpu', torch.cuda.device_count())"
)


@dataclasses.dataclass(frozen=True)
class Item:
    """One checked item. ``needed_by`` names the probes that need it; if empty, the item is optional."""

    item: str
    ok: bool
    needed_by: tuple[str, ...]
    message: str


def check(probes: dict[str, type[Probe]], open_hardware: Callable[[], Hardware]) -> list[Item]:
    """Checks everything. Slow where PyTorch is installed: it is imported once, in a process of its own."""
    all_probes = tuple(sorted(probes))
    hardware, trouble = _hardware(open_hardware)
    items = [
        Item("python", True, all_probes, f"Python {platform.python_version()} at {sys.executable}"),
        Item("hardware", hardware is not None, all_probes, trouble or "the hardware answers"),
        _work_dir(all_probes),
        _clock(hardware),
    ]
    gpus = bool(hardware and hardware.devices("gpu"))
    items.extend(_torch(_needing(probes, "torch"), gpus and not (hardware is not None and hardware.simulated)))
    items.append(_gpus(gpus, _needing(probes, "gpu"), Files()))
    items.extend(_rdma(Files()))
    items.extend(_privileges())
    items.extend(_tools(probes, Files()))
    return items


def _needing(probes: dict[str, type[Probe]], need: str) -> tuple[str, ...]:
    return tuple(sorted(name for name, probe in probes.items() if need in probe.needs))


def _hardware(open_hardware: Callable[[], Hardware]) -> tuple[Hardware | None, str]:
    try:
        return bounded("opening the hardware", open_hardware, 120.0), ""
    except Exception as error:
        return None, f"the hardware cannot be opened ({type(error).__name__}: {error}): look at the driver"


def _work_dir(all_probes: tuple[str, ...]) -> Item:
    work = jobdir.work_dir()
    if not jobdir.writable(work):
        message = f"{work} cannot be written or locked: set MUSTER_WORK to a local directory of this user's own"
        return Item("work directory", False, all_probes, message)
    free = facts.disk_free(work)
    message = f"{work} has {free / 1e9:.1f} GB free"
    ok = free >= DISK_MIN_BYTES
    return Item(
        "work directory", ok, all_probes, message if ok else message + ": free at least 2 GB, or set MUSTER_WORK"
    )


def _clock(hardware: Hardware | None) -> Item:
    state: float | None = None
    if hardware is not None:
        with contextlib.suppress(Exception):
            inventory = bounded("the inventory", lambda: list(hardware.inventory()), 60.0)
            state = next((fact.value for fact in inventory if fact.name == "clock_synchronised"), None)
    if state:
        return Item("clock", True, (), "the clock is synchronised")
    unsure = "the kernel does not know its clock to be synchronised"
    message = "whether the clock is synchronised is unknown" if state is None else unsure
    return Item("clock", False, (), message + ": run systemd-timesyncd, or chrony with rtcsync")


def _torch(needed_by: tuple[str, ...], with_gpus: bool) -> list[Item]:
    advice = f"install torch for {sys.executable}, or launch Muster in a container that has it"
    try:
        command = [sys.executable, "-c", TORCH_CODE]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TORCH_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        what = f"PyTorch could not be imported ({type(error).__name__})"
        return [Item("torch", False, needed_by, f"{what}: {advice}")]
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 3:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        return [Item("torch", False, needed_by, f"PyTorch cannot be imported ({last}): {advice}")]
    items = [Item("torch", True, needed_by, f"PyTorch {words[0]}, built for {words[1]}")]
    if with_gpus:
        seen = words[2] != "0"
        message = f"PyTorch sees {words[2]} GPUs"
        items.append(
            Item("cuda", seen, needed_by, message if seen else message + ": install a build for this driver's CUDA")
        )
    return items


def _gpus(there: bool, needed_by: tuple[str, ...], files: Files) -> Item:
    if there:
        return Item("gpu", True, needed_by, "GPUs answer")
    silent = [vendor.name for vendor in vendors() if on_pci(files, vendor)]
    if silent:
        what = f"{' and '.join(silent)} devices are on the PCI bus but none answers"
        advice = "load or repair the driver, and install its library where this runs, if only a container has it"
        return Item("gpu", False, needed_by, f"{what}: {advice}")
    if others := of_no_vendor(files, GPUS):
        return Item("gpu", False, needed_by, others)
    if others := of_no_vendor(files):
        return Item("gpu", False, (), f"{others}: right for a node whose SKU counts no GPUs")
    # Nothing to repair: the SKU file defines whether this node has GPUs.
    return Item("gpu", False, (), "there is no GPU: right for a CPU node")


def _rdma(files: Files) -> list[Item]:
    """What RDMA lacks on a node with ports for it: without it no rail carries anything, just as with dead cables."""
    if not files.names("/sys/class/infiniband"):
        return []
    names = files.names("/dev/infiniband", "uverbs*")
    closed = [name for name in names if not _opens(str(files.root / "dev" / "infiniband" / name))]
    devices = f"{len(names)} open" if names else "there is no /dev/infiniband/uverbs*: load ib_uverbs"
    if closed:
        devices = f"/dev/infiniband/{closed[0]} cannot be opened: let this user read and write it"
    most, ok = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], bool(names) and not closed
    unlimited = most == resource.RLIM_INFINITY or _may_lock(files)
    locked = "not limited" if unlimited else (
        f"limited to {most} bytes: set memlock to unlimited in limits.conf, and LimitMEMLOCK= of sshd and slurmd"
    )  # fmt: skip
    of_container = "; in a container see docs/deploying.md, The node side"
    return [
        Item(RDMA_ITEMS[0], unlimited, (), locked + ("" if unlimited else of_container)),
        Item(RDMA_ITEMS[1], ok, (), devices + ("" if ok else of_container)),
    ]


def _opens(path: str) -> bool:
    try:
        bounded(f"opening {path}", lambda: os.close(os.open(path, os.O_RDWR)), 10.0)
    except Exception:
        return False
    return True


def _may_lock(files: Files) -> bool:
    """Whether this process has the capability that no limit of locked memory holds for."""
    held = [line.split() for line in files.text("/proc/self/status").splitlines() if line.startswith("CapEff:")]
    return bool(held) and bool(int(held[0][1], 16) >> _CAP_IPC_LOCK & 1)


def _privileges() -> list[Item]:
    commands = [*privilege.COMMANDS, *(privilege.smart_log(disk) for disk in disks.live(Files()))]
    return [
        Item("sudo -n {}".format(" ".join(command)), granted, (), "allowed" if granted else NOT_ALLOWED)
        for command, granted in ((command, privilege.granted(command)) for command in commands)
    ]


def _tools(probes: dict[str, type[Probe]], files: Files) -> list[Item]:
    items = []
    needed = {need.partition(":")[2] for probe in probes.values() for need in probe.needs if need.startswith("tool:")}
    advice = {tool: advice for vendor in vendors() for tool, advice in vendor.tools.items()} | OPTIONAL_TOOLS
    useful = {tool for vendor in vendors() if on_pci(files, vendor) for tool in vendor.tools}
    for tool in sorted({*needed, *useful, *OPTIONAL_TOOLS}):
        path = shutil.which(tool)
        message = path or "not installed: {}".format(advice.get(tool, f"install {tool}"))
        items.append(Item(tool, path is not None, _needing(probes, "tool:" + tool), message))
    return items
