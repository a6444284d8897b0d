"""The parts of the machine, which intake compares with the SKU file, item by item. Puts no load on the machine."""

from __future__ import annotations

from muster_node.hardware.events import last_time
from muster_node.hardware.seam import Fact, Hardware
from muster_node.hardware.vendors import vendors
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.under_load import STATES

JOINING = "in progress"
"""The fabric state of a GPU that has not joined yet, as after a boot."""
_LOOK_S = 5.0


class Inventory(Probe):
    """Every fact of the machine and its GPUs."""

    name = "inventory"
    stage = "intake"
    doc = "CPU, memory, disks, network, platform and GPUs as the machine reports them"
    loads = False
    params = {
        "fabric_wait_s": Param(0.0, "how long to wait for GPUs that have yet to join their NVSwitch fabric, in seconds")
    }
    metrics = {
        **STATES,
        "cpu_model": Metric("text", "model name"),
        "cpu_sockets": Metric("count", "processor packages"),
        "cpu_cores": Metric("count", "physical cores"),
        "cpu_threads": Metric("count", "logical CPUs online"),
        "cpu_microcode": Metric("text", "microcode revision"),
        "cpu_max_clock": Metric("MHz", "highest clock, or the best known stand-in (see the note)"),
        "cpu_vector_width": Metric("bit", "widest vector registers"),
        "cpu_llc": Metric("MiB", "last-level cache over all sockets"),
        "memory_total": Metric("GiB", "memory that the kernel manages"),
        "numa_nodes": Metric("count", "NUMA nodes"),
        "disk_size": Metric("GB", "size of a disk"),
        "nic_speed": Metric("Gb/s", "speed that a network port has negotiated"),
        "pcie_devices": Metric("count", "PCI functions"),
        "kernel": Metric("text", "kernel release"),
        "os": Metric("text", "operating system"),
        "boot_id": Metric("text", "changes at every boot"),
        "clock_synchronised": Metric("bool", "whether the kernel's clock is disciplined"),
        "serial_system": Metric("text", "serial number of the system"),
        "serial_board": Metric("text", "serial number of the main board"),
        "gpu_model": Metric("text", "model name"),
        "gpu_serial": Metric("text", "serial number of the board"),
        "gpu_uuid": Metric("text", "UUID of the GPU"),
        "vbios": Metric("text", "VBIOS version"),
        "identity_shared": Metric("count", "other GPUs of the node that report the same UUID or serial number"),
        "slot_known": Metric("bool", "whether the board tells in which slot the GPU sits"),
        "unlike_siblings": Metric("count", "facts of model, firmware and memory that differ from most of its siblings"),
        "gpu_lost": Metric("bool", "whether the driver reports the GPU as lost (off the bus)"),
        "hbm_total": Metric("GiB", "GPU memory"),
        "ecc_uncorrected": Metric("count", "uncorrected ECC errors, by scope"),
        "ecc_corrected": Metric("count", "corrected ECC errors, by scope"),
        "pcie_generation": Metric("count", "PCIe generation in use"),
        "pcie_generation_max": Metric("count", "PCIe generation of GPU and slot"),
        "pcie_width": Metric("count", "PCIe lanes in use"),
        "pcie_width_max": Metric("count", "PCIe lanes of GPU and slot"),
        "pcie_replay": Metric("count", "PCIe replays since the driver was loaded"),
        "system_vendor": Metric("text", "who made the machine, by its firmware"),
        "bios_version": Metric("text", "version of the BIOS"),
        "bmc_firmware": Metric("text", "firmware of the BMC, by the kernel's IPMI driver"),
        "nic_firmware": Metric("text", "firmware of a network interface, by its driver"),
        "throttle_reason": Metric("text", "what holds the clock down now, the most harmful reason first"),
        "application_clock": Metric("MHz", "clock that jobs are given, by domain"),
        "max_clock": Metric("MHz", "highest clock, by domain"),
        "gpu_numa_node": Metric("count", "NUMA node closest to the GPU"),
        "nearest_nic": Metric("text", "fabric ports nearest to the GPU on PCIe, and how near"),
        "power_limit": Metric("W", "power limit in force"),
        "power_limit_default": Metric("W", "power limit after a reset"),
        "power_limit_min": Metric("W", "lowest power limit that may be set"),
        "power_limit_max": Metric("W", "highest power limit that may be set"),
        "gpu_count": Metric("count", "GPUs that answer"),
        "driver_version": Metric("text", "GPU driver"),
        "xid_count": Metric("count", "XID messages in the kernel log since boot"),
        "kernel_log_time": Metric("s", "time since boot of the newest line of the kernel log when this stage began"),
        "pci_address": Metric("text", "PCI address of the GPU"),
        "ib_port_active": Metric("bool", "whether the InfiniBand or RoCE port is up"),
        "ib_port_rate": Metric("Gb/s", "rate that a port which is up has trained at, by model of adapter"),
        "ib_port_state": Metric("text", "state of the port by its driver"),
        "ib_link_layer": Metric("text", "InfiniBand or Ethernet"),
        "ib_firmware": Metric("text", "firmware of the adapter"),
        "ib_errors": Metric("count", "errors of the port since its counters were reset, by counter"),
        **{name: metric for vendor in vendors() for name, metric in vendor.metrics.items()},
    }

    def run(self, context: Context) -> None:
        """Report every fact; one without a metric here is named in the progress lines.

        The time of the newest line of the kernel log separates earlier errors from those of the stage.
        """
        newest = last_time(context.hardware.kernel_log() or ())
        context.emit(
            "kernel_log_time", "node", value=newest, note="" if newest is not None else "no line of the log has a time"
        )
        for fact in _facts(context):
            if fact.name not in self.metrics:
                context.progress(f"no metric for the fact {fact.name} of {fact.device}")
                continue
            context.emit(
                fact.name, fact.device, value=fact.value, text=fact.text, labels=dict(fact.labels), note=fact.note
            )


def _facts(context: Context) -> list[Fact]:
    """The inventory; read again, within the time for it, while GPUs are still joining their fabric."""
    hardware: Hardware = context.hardware
    end = hardware.clock.now() + context.params["fabric_wait_s"]
    while True:
        facts = list(hardware.inventory())
        joining = sorted(fact.device for fact in facts if (fact.name, fact.text) == ("fabric_state", JOINING))
        if not joining or hardware.clock.now() >= end:
            return facts
        context.progress("waiting for {} to join the NVSwitch fabric".format(", ".join(joining)))
        hardware.clock.sleep(_LOOK_S)
