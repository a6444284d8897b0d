"""What a simulated machine says of itself: inventory, error counters and kernel log, wholly from the model."""

from __future__ import annotations

from typing import Dict, List

from muster_node.hardware.seam import Fact
from muster_node.hardware.simulated.machine import Gpu, Machine
from muster_node.hardware.simulated.physics import THROTTLE_REASONS
from muster_node.hardware.simulated.state import GpuState, State


def inventory(machine: Machine, state: State) -> List[Fact]:
    """All facts of node and GPUs; a GPU that does not enumerate has none."""
    facts = _node_facts(machine)
    for slot, gpu in state.gpus.items():
        facts += _gpu_facts(machine, machine.gpus[slot], gpu)
    facts.append(Fact("gpu_count", "node", "count", float(len(state.gpus))))
    facts.append(Fact("xid_count", "node", "count", float(len(_xids(machine, state)))))
    return facts


def counters(machine: Machine, state: State) -> List[Fact]:
    """Cumulative counters: ECC, PCIe replay and throttle time of each GPU; XIDs and machine checks of the node."""
    facts = [
        Fact(name, "node", "count", 0.0)
        for name in ("machine_checks", "edac_corrected", "edac_uncorrected", "kernel_errors")
    ]
    facts.append(Fact("xid_count", "node", "count", float(len(_xids(machine, state)))))
    for slot, gpu in state.gpus.items():
        device = "gpu%d" % slot
        facts += _ecc_facts(machine.gpus[slot], gpu)
        facts.append(Fact("pcie_replay", device, "count", 0.0))
        facts += [
            Fact("throttle_time", device, "s", gpu.throttled_s[reason], labels={"reason": reason})
            for reason in THROTTLE_REASONS
        ]
    return facts


def kernel_log(machine: Machine, state: State) -> List[str]:
    """Boot lines, and what the driver logs of errors that ECC could not mend."""
    model = machine.model
    lines = [
        "[    0.000000] Linux version %s" % model.kernel,
        "[   11.402113] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  %s" % model.driver_version,
    ]
    return lines + ["[ 1024.%06d] %s" % (number, line) for number, line in enumerate(_xids(machine, state))]


def _xids(machine: Machine, state: State) -> List[str]:
    lines = []
    for slot, gpu in state.gpus.items():
        line = "NVRM: Xid (PCI:%s): 48, An uncorrectable double bit error (DBE) has been detected"
        lines += [line % machine.gpus[slot].pci[4:-2].lower()] * int(gpu.uncorrectable)
    return lines


def _node_facts(machine: Machine) -> List[Fact]:
    model = machine.model
    numbers = {
        ("cpu_sockets", "count"): model.cpu_sockets,
        ("cpu_cores", "count"): model.cpu_cores,
        ("cpu_threads", "count"): 2 * model.cpu_cores,
        ("cpu_max_clock", "MHz"): model.cpu_max_clock_mhz,
        ("cpu_vector_width", "bit"): 512,
        ("cpu_llc", "MiB"): model.cpu_llc_mib,
        ("memory_total", "GiB"): model.memory_gib,
        ("numa_nodes", "count"): model.cpu_sockets,
        ("pcie_devices", "count"): model.pcie_devices - sum(not gpu.enumerates for gpu in machine.gpus),
        ("clock_synchronised", "bool"): 1,
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
    }
    facts = [Fact(name, "node", unit, float(value)) for (name, unit), value in numbers.items()]
    facts += [Fact(name, "node", "text", text=text) for name, text in texts.items()]
    facts += [Fact("disk_size", "disk:%s" % name, "GB", size) for name, size in model.disks]
    facts += [Fact("nic_speed", "nic:%s" % name, "Gb/s", speed) for name, speed in model.nics]
    return facts


def _ecc_facts(built: Gpu, gpu: GpuState) -> List[Fact]:
    device = "gpu%d" % built.slot
    counts = {"ecc_uncorrected": float(int(gpu.uncorrectable)), "ecc_corrected": float(built.corrected)}
    return [
        Fact(name, device, "count", count if scope == "aggregate" or name == "ecc_uncorrected" else 0.0, labels=labels)
        for name, count in counts.items()
        for scope in ("volatile", "aggregate")
        for labels in ({"scope": scope},)
    ]


def _gpu_facts(machine: Machine, built: Gpu, gpu: GpuState) -> List[Fact]:
    model, device = machine.model, "gpu%d" % built.slot
    texts: Dict[str, str] = {
        "gpu_model": model.gpu_model,
        "gpu_serial": built.serial,
        "pci_address": built.pci,
        "gpu_uuid": built.uuid,
        "vbios": model.vbios,
    }
    numbers = {
        ("hbm_total", "GiB"): model.hbm_bytes / 2**30,
        ("pcie_generation", "count"): built.pcie_generation,
        ("pcie_generation_max", "count"): model.pcie_generation,
        ("pcie_width", "count"): built.pcie_width,
        ("pcie_width_max", "count"): model.pcie_width,
        ("pcie_replay", "count"): 0,
        ("nvlink_active", "count"): built.nvlinks,
        ("power_limit", "W"): model.power_limit_w,
        ("inforom_valid", "bool"): 1,
        ("ecc_mode", "bool"): 1,
        ("persistence_mode", "bool"): 1,
        ("mig_mode", "bool"): 0,
        ("row_remap_failed", "bool"): 0,
        # A row that lost data is remapped at the next reset; until then the remap is pending.
        ("row_remap_pending", "bool"): int(gpu.uncorrectable >= 1),
    }
    facts = [Fact(name, device, "text", text=text) for name, text in texts.items()]
    facts += [Fact(name, device, unit, round(float(value), 3)) for (name, unit), value in numbers.items()]
    return facts + _ecc_facts(built, gpu)
