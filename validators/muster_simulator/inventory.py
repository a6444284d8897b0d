"""Inventory and error counters of a simulated machine, all from the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_simulator import fabric
from muster_simulator.kernel_log import xid_count
from muster_simulator.machine import SPARE_ROWS, Gpu, Machine
from muster_simulator.physics import THROTTLE_REASONS
from muster_simulator.state import GpuState, State

_MEMORY_CLOCK_MHZ = 2619.0
_SM = {"domain": "sm"}
_LOWEST_LIMIT_SHARE = 0.3
_BIOS, _BMC, _INFOROM = "1.4.2", "24.9", "G520.0200.00.05"
IS_LOST = "NVML: GPU is lost (error 15)"
_IMEX = Fact("imex", "node", "text", note=NOT_SUPPORTED)


def inventory(machine: Machine, state: State, known: Collection[int]) -> list[Fact]:
    """All facts of node and GPUs. ``known``: slots of the GPUs that answered when the calling process began."""
    facts = _node_facts(machine) + fabric.port_facts(machine, state)
    for slot in known:
        own = _gpu_facts(machine, machine.gpus[slot], state.gpus[slot])
        own += [fact for fact in fabric.domain_facts(f"gpu{slot}") if fact.name == "nvlink_domain"]
        facts += _or_lost(state.gpus[slot], own)
    facts.append(_IMEX)
    facts.append(Fact("gpu_count", "node", "count", float(len(known))))
    facts.append(Fact("fabric_cliques", "node", "count", 1.0))
    facts.append(Fact("xid_count", "node", "count", xid_count(state)))
    return facts


def domain(state: State, known: Collection[int]) -> list[Fact]:
    """What the GPUs say of their NVLink domain, of a machine whose NVLinks end at its own switches."""
    facts = [_IMEX]
    for slot in known:
        facts += _or_lost(state.gpus[slot], fabric.domain_facts(f"gpu{slot}"))
    return facts


def counters(machine: Machine, state: State, known: Collection[int]) -> list[Fact]:
    """Cumulative counters: ECC, row remaps, replays, NVLink errors and throttle time of GPUs, those of ports and host.

    No defect is one of the host's CPUs or memory, so theirs never change.
    """
    host = ("machine_checks", "machine_checks_corrected", "edac_corrected", "edac_uncorrected")
    facts = [Fact(name, "node", "count", 0.0) for name in host]
    facts += [Fact("cpu_throttle_events", f"cpu{cpu}", "count", 0.0) for cpu in range(machine.model.cpu_threads)]
    facts.append(Fact("xid_count", "node", "count", xid_count(state)))
    facts += fabric.port_errors(state)
    for slot in known:
        built, gpu, device = machine.gpus[slot], state.gpus[slot], f"gpu{slot}"
        own = [*_ecc_facts(built, gpu), *_remapped(built, gpu), _replays(machine, device, gpu)]
        own += fabric.nvlink_errors(machine, built, gpu)
        own += [
            Fact("throttle_time", device, "s", gpu.throttled_s[reason], labels={"reason": reason})
            for reason in THROTTLE_REASONS
        ]
        own.append(Fact("throttle_time", device, "s", 0.0, labels={"reason": "hw_power_brake"}))
        facts += _or_lost(gpu, own)
    return facts


def states(machine: Machine, state: State, known: Collection[int]) -> list[Fact]:
    """States and counters of GPUs, as a driver reports them at any time."""
    facts = []
    for slot in known:
        gpu, device = state.gpus[slot], f"gpu{slot}"
        own = [
            *_gpu_facts(machine, machine.gpus[slot], gpu),
            Fact("utilisation", device, "%", 100.0 if gpu.busy else 0.0),
            Fact("clock_share", device, "%", 100.0 * gpu.clock_mhz / machine.model.boost_clock_mhz, labels=_SM),
            Fact("foreign_processes", device, "count", 0.0),
        ]
        facts += _or_lost(gpu, [fact for fact in own if fact.name not in _COUNTED])
        facts.append(Fact("gpu_lost", device, "bool", float(gpu.lost)))
    return facts + [fact for fact in counters(machine, state, known) if fact.device.startswith("gpu")]


_COUNTED = (
    "ecc_uncorrected", "ecc_corrected", "row_remap_corrected", "row_remap_uncorrected", "pcie_replay", "nvlink_errors",
)  # fmt: skip
"""Of the inventory, what the counters have too."""


def _or_lost(gpu: GpuState, facts: list[Fact]) -> list[Fact]:
    """A GPU that has since fallen off the bus has no facts but that one."""
    if not gpu.lost:
        return facts
    return [dataclasses.replace(fact, value=None, text=None, note=IS_LOST) for fact in facts]


def _node_facts(machine: Machine) -> list[Fact]:
    model = machine.model
    numbers = {
        ("cpu_sockets", "count"): model.cpu_sockets,
        ("cpu_cores", "count"): model.cpu_cores,
        ("cpu_threads", "count"): model.cpu_threads,
        ("cpu_max_clock", "MHz"): model.cpu_max_clock_mhz,
        ("cpu_vector_width", "bit"): model.cpu_vector_bits,
        ("cpu_llc", "MiB"): model.cpu_llc_mib,
        ("memory_total", "GiB"): model.memory_gib,
        ("numa_nodes", "count"): model.cpu_sockets,
        ("pcie_devices", "count"): model.pcie_devices - sum(not gpu.enumerates for gpu in machine.gpus),
        ("clock_synchronised", "bool"): 1,
        ("confidential_computing", "bool"): 0,
    }
    texts = {
        "hostname": machine.hostname,
        "machine_id": machine.machine_id,
        "cpu_model": model.cpu_model,
        "cpu_microcode": model.cpu_microcode,
        "kernel": model.kernel,
        "os": model.os,
        "boot_id": machine.boot_id,
        "serial_system": machine.serial_system,
        "serial_board": machine.serial_board,
        "driver_version": model.driver_version,
        "cuda_version": model.cuda_version,
        "fabric_manager": "active",
        "fabric_manager_version": model.driver_version,
        "bios_version": _BIOS,
        "bmc_firmware": _BMC,
    }
    facts = [Fact(name, "node", unit, float(value)) for (name, unit), value in numbers.items()]
    facts += [_text(name, "node", text) for name, text in texts.items()]
    return facts + [Fact("disk_size", f"disk:{name}", "GB", size) for name, size in model.disks]


def _ecc_facts(built: Gpu, gpu: GpuState) -> list[Fact]:
    device = f"gpu{built.slot}"
    counts = {
        ("ecc_uncorrected", "volatile"): int(gpu.uncorrectable),
        ("ecc_uncorrected", "aggregate"): int(gpu.uncorrectable),
        ("ecc_corrected", "volatile"): int(gpu.corrected),
        ("ecc_corrected", "aggregate"): built.corrected + int(gpu.corrected),
    }
    facts = []
    for (name, scope), count in counts.items():
        reported = float(count) if built.ecc_on else None
        facts.append(Fact(name, device, "count", reported, labels={"scope": scope}, note=_unless(built.ecc_on)))
    return facts


def _replays(machine: Machine, device: str, gpu: GpuState) -> Fact:
    there = machine.model.pcie_width > 0
    return Fact("pcie_replay", device, "count", float(int(gpu.pcie_replays)) if there else None, note=_unless(there))


def _gpu_facts(machine: Machine, built: Gpu, gpu: GpuState) -> list[Fact]:
    model, device = machine.model, f"gpu{built.slot}"
    texts = {
        "gpu_model": model.gpu_model,
        "gpu_serial": built.serial,
        "pci_address": built.pci,
        "gpu_uuid": built.uuid,
        "vbios": model.vbios,
        "inforom_version": _INFOROM,
        "compute_mode": "default",
        "throttle_reason": gpu.throttle,
        "recovery_action": "none",
    }
    numbers: dict[tuple[str, str], float | None] = {
        ("module_id", "count"): built.slot + 1,
        ("hbm_total", "GiB"): model.hbm_bytes / 2**30,
        ("pcie_generation", "count"): built.pcie_generation or None,
        ("pcie_generation_max", "count"): model.pcie_generation or None,
        ("pcie_width", "count"): built.pcie_width or None,
        ("pcie_width_max", "count"): model.pcie_width or None,
        ("power_limit", "W"): built.power_limit_w,
        ("power_limit_default", "W"): model.power_limit_w,
        ("power_limit_min", "W"): _LOWEST_LIMIT_SHARE * model.power_limit_w,
        ("power_limit_max", "W"): model.power_limit_w,
        ("inforom_valid", "bool"): 1,
        ("ecc_mode", "bool"): int(built.ecc_on),
        ("persistence_mode", "bool"): 1,
        ("mig_mode", "bool"): int(built.mig_on),
        ("mode_change_pending", "bool"): 0,
        ("sram_threshold_exceeded", "bool"): 0,
        ("identity_shared", "count"): 0,
        ("slot_known", "bool"): 1,
        ("unlike_siblings", "count"): 0,
        ("gpu_numa_node", "count"): built.slot * model.cpu_sockets // model.gpu_count,
    }
    facts = [_text(name, device, text) for name, text in texts.items()]
    for (name, unit), value in numbers.items():
        reported = None if value is None else round(float(value), 3)
        facts.append(Fact(name, device, unit, reported, note=_unless(value is not None)))
    facts += _clock_facts(machine, device)
    facts += [*_ecc_facts(built, gpu), *_repair_facts(machine, built, gpu), _replays(machine, device, gpu)]
    return facts + fabric.nvlink_facts(machine, built, gpu)


def _clock_facts(machine: Machine, device: str) -> list[Fact]:
    """Without a locked clock: NVML's application clocks are another setting."""
    clocks = {"sm": machine.model.boost_clock_mhz, "memory": _MEMORY_CLOCK_MHZ}
    return [
        Fact(name, device, "MHz", clock, labels={"domain": domain})
        for name in ("application_clock", "application_clock_default", "max_clock")
        for domain, clock in clocks.items()
    ]


def _repair_facts(machine: Machine, built: Gpu, gpu: GpuState) -> list[Fact]:
    """Row remaps: a row that lost data waits for the next reset, if its bank has a spare row left; else it failed.

    No defect is one of a whole channel or processor.
    """
    device, waiting, spare_rows = f"gpu{built.slot}", gpu.waiting(built), built.spare_rows - gpu.remapped
    failed = waiting > 0 and spare_rows < 1
    numbers = {
        ("row_remap_pending", "bool"): waiting > 0 and not failed,
        ("row_remap_failed", "bool"): failed,
    }
    facts = [Fact(name, device, unit, float(value)) for (name, unit), value in numbers.items()] + _remapped(built, gpu)
    worst = "none" if spare_rows < 1 else "max" if spare_rows == SPARE_ROWS else "high"
    facts.append(Fact("retired_pages_pending", device, "bool", note=NOT_SUPPORTED))  # rows are remapped since Ampere
    facts += [Fact(name, device, "bool", 0.0) for name in ("channel_repair_pending", "tpc_repair_pending")]
    blackwell = machine.model.nvlink_generation >= 5
    facts.append(Fact("unrepairable_memory", device, "bool", 0.0 if blackwell else None, note=_unless(blackwell)))
    return facts + [
        Fact("row_remap_banks", device, "count", float(spare == worst), labels={"spare": spare})
        for spare in ("high", "partial", "low", "none")
    ]


def _remapped(built: Gpu, gpu: GpuState) -> list[Fact]:
    counts = {"row_remap_corrected": built.waiting_rows, "row_remap_uncorrected": int(gpu.uncorrectable)}
    return [Fact(name, f"gpu{built.slot}", "count", float(count)) for name, count in counts.items()]


def _text(name: str, device: str, text: str) -> Fact:
    return Fact(name, device, "text", text=text or None, note=_unless(bool(text)))


def _unless(there: bool) -> str:
    return "" if there else NOT_SUPPORTED
