"""The parts of this machine, as facts for intake; an unreadable value is a fact with a note, never a zero."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

from muster_node import privilege
from muster_node.hardware.host import parse
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

GIB = 1024.0**3
MIB = 1024.0**2
GB = 1e9

_SECTOR_BYTES = 512  # the unit of /sys/block/*/size, whatever the disk's own sector
_VIRTUAL_DISKS = ("loop", "ram", "zram", "sr", "fd", "dm-", "md", "nbd")
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised

_CPU = "/sys/devices/system/cpu"


def fact(name: str, device: str, unit: str, value: float | None, note: str = "") -> Fact:
    """A numeric fact; None becomes a fact with a note."""
    return Fact(name, device, unit, value=value, note=note if value is not None else note or NOT_SUPPORTED)


def text_fact(name: str, device: str, text: str | None, note: str = "") -> Fact:
    """A text fact; None becomes a fact with a note."""
    return Fact(name, device, "text", text=text, note=note if text is not None else note or NOT_SUPPORTED)


def inventory(files: Files) -> Iterator[Fact]:
    """Every fact of the machine itself; GPUs have a backend of their own."""
    yield from _cpu_facts(files)
    yield from _memory_facts(files)
    yield from _disk_facts(files)
    yield from _nic_facts(files)
    yield from _platform_facts(files)


def online_topology(files: Files) -> dict[int, dict[str, Any]]:
    """Logical CPU → {"package", "core"} of those online; entries are None where the kernel does not report them."""
    topology = {}
    online = files.text(_CPU + "/online")
    cpus = parse.parse_cpu_list(online) if online else list(range(os.cpu_count() or 1))
    for cpu in cpus:
        base = f"{_CPU}/cpu{cpu}/topology/"
        topology[cpu] = {
            "package": files.number(base + "physical_package_id"),
            "core": files.number(base + "core_id"),
        }
    return topology


def _cpu_facts(files: Files) -> Iterator[Fact]:
    info = parse.parse_cpuinfo(files.text("/proc/cpuinfo"))
    topology = online_topology(files)
    known = [entry for entry in topology.values() if entry["core"] is not None]
    sockets = len({entry["package"] for entry in known}) or info["sockets"]
    cores = len({(entry["package"], entry["core"]) for entry in known}) or info["cores"]
    clock, clock_note = max_clock(files)
    yield text_fact("cpu_model", "node", info["model"])
    yield fact("cpu_sockets", "node", "count", sockets)
    yield fact("cpu_cores", "node", "count", cores)
    yield fact("cpu_threads", "node", "count", len(topology))
    yield _offline(files)
    yield text_fact("cpu_microcode", "node", info["microcode"])
    yield fact("cpu_max_clock", "node", "MHz", clock, clock_note)
    yield fact("cpu_vector_width", "node", "bit", parse.parse_vector_width(info["flags"]))
    llc = last_level_cache_bytes(files)
    yield fact("cpu_llc", "node", "MiB", llc / MIB if llc else None)


def _offline(files: Files) -> Fact:
    """CPUs that the kernel does not use; no value where SMT is off, since its threads are offline too."""
    if files.text(_CPU + "/smt/control") in ("off", "forceoff"):
        return fact("cpu_offline", "node", "count", None, "SMT is switched off")
    present, offline = (files.read(f"{_CPU}/{name}").text for name in ("present", "offline"))
    if present is None or offline is None:
        return fact("cpu_offline", "node", "count", None)
    return fact(
        "cpu_offline", "node", "count", len({*parse.parse_cpu_list(present)} & {*parse.parse_cpu_list(offline)})
    )


def max_clock(files: Files) -> tuple[float | None, str]:
    """The CPU's highest clock in MHz, and a note on where it comes from."""
    info = parse.parse_cpuinfo(files.text("/proc/cpuinfo"))
    paths = [f"{_CPU}/{name}/cpufreq/cpuinfo_max_freq" for name in files.names(_CPU, "cpu[0-9]*")]
    readings = [files.number(path) for path in paths]
    return parse.parse_clock([khz for khz in readings if khz], info)


def last_level_cache_bytes(files: Files) -> int | None:
    """Bytes of last-level cache over all sockets; None where the kernel does not report them."""
    caches: dict[str, int] = {}
    for cpu in files.names(_CPU, "cpu[0-9]*"):
        indexes = files.names(f"{_CPU}/{cpu}/cache", "index*")
        if not indexes:
            continue
        deepest = max(
            (f"{_CPU}/{cpu}/cache/{index}/" for index in indexes), key=lambda p: files.number(p + "level") or 0
        )
        size = parse.parse_size(files.text(deepest + "size"))
        if size:
            caches[files.text(deepest + "shared_cpu_list") or cpu] = size
    return sum(caches.values()) or None


def _memory_facts(files: Files) -> Iterator[Fact]:
    total = parse.parse_meminfo(files.text("/proc/meminfo")).get("MemTotal")
    yield fact("memory_total", "node", "GiB", total / GIB if total else None)
    yield fact("numa_nodes", "node", "count", len(files.names("/sys/devices/system/node", "node[0-9]*")) or None)


def _disk_facts(files: Files) -> Iterator[Fact]:
    for name in files.names("/sys/block"):
        if name.startswith(_VIRTUAL_DISKS):
            continue
        sectors = files.number(f"/sys/block/{name}/size")
        yield fact("disk_size", "disk:" + name, "GB", sectors * _SECTOR_BYTES / GB if sectors else None)


def _nic_facts(files: Files) -> Iterator[Fact]:
    for name in files.names("/sys/class/net"):
        base = f"/sys/class/net/{name}/"
        if not files.exists(base + "device"):
            continue  # loopback, bridges and other interfaces without hardware behind them
        megabits = files.number(base + "speed")
        known = megabits is not None and megabits > 0  # −1: the link is down, or the driver does not know
        yield fact("nic_speed", "nic:" + name, "Gb/s", megabits / 1000.0 if known and megabits else None)
    for name in files.names("/sys/class/infiniband"):
        for port in files.names(f"/sys/class/infiniband/{name}/ports"):
            rate = parse.parse_infiniband_rate(files.text(f"/sys/class/infiniband/{name}/ports/{port}/rate"))
            device = "nic:" + name if port == "1" else f"nic:{name}/{port}"
            yield fact("nic_speed", device, "Gb/s", rate)


def _platform_facts(files: Files) -> Iterator[Fact]:
    yield fact("pcie_devices", "node", "count", len(files.names("/sys/bus/pci/devices")) or None)
    yield text_fact("kernel", "node", files.read("/proc/sys/kernel/osrelease").text)
    release = files.text("/etc/os-release") or files.text("/usr/lib/os-release")
    yield text_fact("os", "node", parse.parse_os_release(release))
    yield text_fact("boot_id", "node", files.read("/proc/sys/kernel/random/boot_id").text)
    yield clock_fact()
    yield from serials(files)


def serials(files: Files) -> list[Fact]:
    """Serial numbers of system and board from DMI, which only root may read (``sudo -n`` is tried)."""
    facts = []
    for name, file in zip(("serial_system", "serial_board"), privilege.SERIAL_FILES):
        reading = files.read(file, sudo=True)
        serial = parse.parse_serial(reading.text)
        facts.append(text_fact(name, "node", serial, reading.note or ("" if serial else "not set by the maker")))
    return facts


def clock_fact() -> Fact:
    """Whether the kernel knows that its clock is disciplined (NTP, PTP), by adjtimex(2); no value without that call.

    chrony reports this to the kernel only with ``rtcsync`` (its sys_timex.c), so False does not prove that a clock
    drifts.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(ctypes.create_string_buffer(512))  # struct timex of zeros: read, change nothing
    except (OSError, AttributeError):
        state = -1
    return fact("clock_synchronised", "node", "bool", None if state < 0 else float(state != _TIME_ERROR))
