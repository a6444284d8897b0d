"""A real machine: its CPUs, memory, disks and network by /proc and /sys, its GPUs by their own backend."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.hardware.host import cpu_time, disks, fabric, firmware, inventory, kernel_events, kernel_log, parse
from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.hardware.host.cpu_workers import run_pinned
from muster_node.hardware.host.inventory import fact
from muster_node.hardware.host.sensors import HostSensors
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.host.usage import usage
from muster_node.hardware.seam import (
    NO_PRIVILEGE,
    NOT_SUPPORTED,
    SCRATCH_DISK,
    Compute,
    CpuTime,
    Device,
    EventSource,
    Fact,
    GpuUse,
    Hardware,
    Late,
    RealClock,
    Sample,
    Usage,
    Worker,
)
from muster_node.hardware.vendors import Gpus, of_no_vendor, open_gpus
from muster_node.probe import Skip

_EDAC = "/sys/devices/system/edac/mc"


class HostHardware(Hardware):
    """This machine. ``files`` and ``accelerators`` are replaced in tests only."""

    simulated = False

    def __init__(self, files: Files | None = None, accelerators: Gpus | None = None) -> None:
        self.clock = RealClock()
        self._files = files or Files(pathlib.Path("/"))
        self._accelerators = accelerators
        self._allowed = sorted(os.sched_getaffinity(0))
        self._sensors = HostSensors(self._files, self.clock)
        self._cpu_ledger = cpu_time.Ledger()

    def devices(self, kind: str) -> list[Device]:
        """CPUs are those that this process may run on, named by the kernel's numbers."""
        if kind == "cpu":
            return [Device(f"cpu{cpu}", "cpu", cpu) for cpu in self._allowed]
        if kind == "core":
            return self._cores()
        if kind == "disk":
            return [SCRATCH_DISK]
        if kind == "gpu" and self._accelerators is not None:
            return self._accelerators.devices()
        return []

    def _cores(self) -> list[Device]:
        topology = inventory.online_topology(self._files)
        first_thread: dict[Any, Device] = {}
        for device in self.devices("cpu"):
            place = topology.get(device.index, {})
            core = place.get("core")
            first_thread.setdefault(device.id if core is None else (place["package"], core), device)
        return list(first_thread.values())

    def boot_id(self) -> str:
        """The kernel's boot id; empty where it is not available."""
        return self._files.text("/proc/sys/kernel/random/boot_id")

    def inventory(self) -> Iterator[Fact]:
        """Everything of the machine, then everything of its GPUs."""
        yield from inventory.inventory(self._files)
        yield from fabric.port_facts(self._files)
        yield from firmware.firmware(self._files)
        if self._accelerators is not None:
            addresses = {}
            for item in self._accelerators.inventory():
                if item.name == "pci_address" and item.text:
                    addresses[item.device] = item.text
                yield item
            yield from fabric.topology(self._files, addresses)
            yield from self._accelerators.machine(self._files)
            yield self._xids()
        elif others := of_no_vendor(self._files):
            yield fact("gpu_count", "node", "count", None, others)

    def counters(self) -> Iterator[Fact]:
        """Machine checks, EDAC and throttle events of the host, then the GPUs' own counters."""
        files = self._files
        for name, count in parse.parse_interrupts(files.text("/proc/interrupts")).items():
            yield fact(name, "node", "count", count)
        for name, item in (("edac_corrected", "ce_count"), ("edac_uncorrected", "ue_count")):
            counts = [files.number(f"{_EDAC}/{mc}/{item}") for mc in files.names(_EDAC, "mc[0-9]*")]
            known = [count for count in counts if count is not None]
            yield fact(name, "node", "count", sum(known) if known else None, NOT_SUPPORTED if not known else "")
        for device in self.devices("cpu"):
            path = f"/sys/devices/system/cpu/{device.id}/thermal_throttle/core_throttle_count"
            events = files.number(path)
            if events is not None:
                yield fact("cpu_throttle_events", device.id, "count", events)
        yield from fabric.port_errors(files)
        if self._accelerators is not None:
            yield from self._accelerators.counters()
            yield self._xids()

    def _xids(self) -> Fact:
        """How many device events the GPU driver has logged; a log that has wrapped forgets the oldest."""
        log = self.kernel_log()
        if log is None:
            return fact("xid_count", "node", "count", None, f"the kernel log cannot be read: {NO_PRIVILEGE}")
        return fact("xid_count", "node", "count", len(kernel_events.device_events(log)))

    def port_counters(self) -> Iterator[Fact]:
        """By sysfs."""
        return fabric.port_errors(self._files)

    def port_links(self) -> dict[str, bool]:
        """By sysfs."""
        return fabric.port_links(self._files)

    def states(self) -> Iterator[Fact]:
        """By the GPUs' own backend."""
        if self._accelerators is not None:
            yield from self._accelerators.states()

    def domain(self) -> Iterator[Fact]:
        """By the GPUs' own backend."""
        if self._accelerators is not None:
            yield from self._accelerators.domain()

    def telemetry(self) -> Iterator[Sample]:
        """One reading of every sensor that is there."""
        yield from self._sensors.read()
        if self._accelerators is not None:
            yield from self._accelerators.telemetry()

    def usage(self) -> Usage:
        """Logins, load, busy foreign processes, and GPU processes; takes 0.3 to 0.6 seconds."""
        gpus = self._accelerators.processes() if self._accelerators is not None else GpuUse()
        return usage(self._files, self.clock, gpus)

    def kernel_log(self) -> list[str] | None:
        """By /dev/kmsg, else by dmesg or journalctl, with ``sudo -n`` last; without lines about disks over USB."""
        log = kernel_log.read()
        return None if log is None else disks.without_usb(log, self._files)

    def event_source(self) -> EventSource | None:
        """The vendor's own, where the kernel log cannot be read."""
        if self._accelerators is None or self.kernel_log() is not None:
            return None
        return self._accelerators.event_source()

    def compute(self, device: Device) -> Compute:
        """Compute on a device; on a CPU the calling process is pinned to it."""
        if device.kind == "gpu":
            if self._accelerators is None:
                raise Skip("no GPU backend is available on this machine")
            return self._accelerators.compute(device)
        flags = parse.parse_cpuinfo(self._files.text("/proc/cpuinfo"))["flags"]
        return CpuCompute(device, self._files, flags)

    def cpu_time(self) -> CpuTime | None:
        """By the workers' own clocks, /proc/stat and the control groups above this process."""
        return self._cpu_ledger.total()

    def lost(self, device: Device) -> bool:
        """By the GPUs' own backend."""
        return self._accelerators is not None and self._accelerators.lost(device)

    def restore_setting(self, device: str, setting: str, facts: Sequence[Fact]) -> str:
        """By the GPUs' own backend."""
        if self._accelerators is None:
            return super().restore_setting(device, setting, facts)
        return self._accelerators.restore_setting(device, setting, facts)

    def release_gpus(self) -> None:
        """By the GPUs' own backend."""
        if self._accelerators is not None:
            self._accelerators.release()

    def at_once(
        self,
        devices: list[Device],
        work: Callable[[Worker], Any],
        tick: Callable[[], None] | None = None,
        tick_s: float = 1.0,
        late: Late | None = None,
        takes_s: float | None = None,
    ) -> list[Any]:
        """On CPUs in pinned processes, on GPUs in threads."""
        if devices and devices[0].kind == "cpu":
            before = cpu_time.snapshot(self._files, devices)
            done = run_pinned(devices, work, self.clock, tick, tick_s)
            used = [each for _, each in done]
            self._cpu_ledger.add(devices, used, before, cpu_time.snapshot(self._files, devices))
            return [result for result, _ in done]
        return super().at_once(devices, work, tick, tick_s, late, takes_s)


def open_host() -> HostHardware:
    """This machine, with the GPUs of the vendor whose driver library is there. Raises as ``open_gpus``."""
    return HostHardware(accelerators=open_gpus())
