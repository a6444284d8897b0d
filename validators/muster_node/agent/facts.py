"""Identity and environment of this machine for a result, and the hash of the agent."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import platform
import socket
import sys
import zipfile
from typing import Any

import muster_node
from muster_node.contract import BETWEEN_VERSIONS, OF_EACH_DEVICE
from muster_node.hardware.host import cgroups
from muster_node.hardware.host.parse import parse_os_release
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Fact, Hardware

_FILES = Files()

FROM_FACTS = {
    "driver_version": "driver",
    "cuda_version": "cuda",
    "cpu_model": "cpu",
    "gpu_model": "gpu",
    "vbios": "vbios",
    "inforom_version": "inforom",
    "system_vendor": "vendor",
    "bios_version": "bios",
    "bmc_firmware": "bmc",
    "nvswitch_firmware": "nvswitch",
    "fabric_manager_version": "fabric_manager",
    "ib_firmware": "nic",
    "nic_firmware": "nic",
}
"""Inventory facts that are also part of every result's environment, with their names there."""

VERSION_MAX = 200
"""Characters of one version."""

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
"""NCCL as a dependency of PyTorch's wheels, by the major version of CUDA."""


def agent_sha256() -> str:
    """The hash of the zipapp that runs, or of the package's source files where it runs from a source tree."""
    root = pathlib.Path(muster_node.__file__).parent
    if root.parent.is_file() and zipfile.is_zipfile(str(root.parent)):
        return hashlib.sha256(root.parent.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def machine_id() -> str:
    """/etc/machine-id, "" where there is none."""
    return _FILES.text("/etc/machine-id") or _FILES.text("/var/lib/dbus/machine-id")


def identity(hardware: Hardware, inventory: list[Fact]) -> dict[str, Any]:
    """boot_id, hostname, machine_id, serials {part: serial} ("system", "board", "gpu0", "disk:sda")."""
    serials: dict[str, str] = {}
    for fact in inventory:
        if fact.text and fact.name.startswith("serial_"):
            serials[fact.name[len("serial_") :]] = fact.text[:200]
        elif fact.text and fact.name.endswith("_serial"):
            serials[fact.device] = fact.text[:200]
    return {
        "boot_id": hardware.boot_id(),
        "hostname": socket.gethostname(),
        "machine_id": machine_id(),
        "serials": serials,
    }


def environment(inventory: list[Fact]) -> dict[str, str]:
    """kernel, os, python, muster; where known torch, nccl, driver, cuda, cpu, gpu, vbios. PyTorch is not imported."""
    found = {
        "kernel": platform.release(),
        "os": parse_os_release(_FILES.text("/etc/os-release")) or sys.platform,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "muster": muster_node.__version__,
    }
    versions = (("torch", installed("torch")), ("nccl", installed(*NCCL_PACKAGES)))
    found.update({name: version for name, version in versions if version})
    for name, texts in _from_facts(inventory).items():
        found[name] = BETWEEN_VERSIONS.join(sorted(set(texts))) if name in OF_EACH_DEVICE else texts[0]
    return found


def _from_facts(inventory: list[Fact]) -> dict[str, list[str]]:
    """Texts in the inventory for each name of ``FROM_FACTS``, in its order, each cut at ``VERSION_MAX`` characters;
    devices without one are left out.
    """
    found_facts: dict[str, list[str]] = {}
    for fact in inventory:
        name = FROM_FACTS.get(fact.name)
        if name and fact.text:
            found_facts.setdefault(name, []).append(fact.text[:VERSION_MAX])
    return found_facts


def installed(*packages: str) -> str:
    """The version of the first of these packages that is installed, from its metadata, "" where none is."""
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def oom_kills(paths: tuple[str, ...] = ("/proc/vmstat",)) -> int:
    """How often the kernel's OOM killer has killed since boot (and in this process's memory cgroups); 0 if unknown."""
    names = ("memory.events", "memory.oom_control")
    groups = [f"{folder}/{name}" for folder in cgroups.above(_FILES, "memory") for name in names]
    total = 0
    for path in (*paths, *groups):
        for line in _FILES.text(path).splitlines():
            fields = line.split()
            if len(fields) == 2 and fields[0] == "oom_kill" and fields[1].isdigit():
                total += int(fields[1])
    return total


def disk_free(path: pathlib.Path) -> int:
    """Bytes free for this user where ``path`` is or would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    stat = os.statvfs(str(path))
    return stat.f_bavail * stat.f_frsize
