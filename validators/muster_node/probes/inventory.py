"""The parts of the machine, which intake compares with the SKU file, item by item. Puts no load on the machine."""

from __future__ import annotations

from muster_node.hardware.events import last_time
from muster_node.hardware.seam import Fact, Hardware
from muster_node.hardware.vendors import vendors
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.under_load.gpus import STATES

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
        "cpu_model": Metric("text", "model name", on="node"),
        "cpu_sockets": Metric("count", "processor packages", on="node"),
        "cpu_cores": Metric("count", "physical cores", on="node"),
        "cpu_threads": Metric("count", "logical CPUs online", on="node"),
        "cpu_offline": Metric("count", "logical CPUs that are there and switched off", on="node"),
        "cpu_microcode": Metric("text", "microcode revision", on="node"),
        "cpu_max_clock": Metric("MHz", "highest clock, or the best known stand-in (see the note)", on="node"),
        "cpu_vector_width": Metric("bit", "widest vector registers", on="node"),
        "cpu_llc": Metric("MiB", "last-level cache over all sockets", on="node"),
        "memory_total": Metric("GiB", "memory that the kernel manages", on="node"),
        "numa_nodes": Metric("count", "NUMA nodes", on="node"),
        "disk_size": Metric("GB", "size of a disk", on="disk"),
        "nic_speed": Metric("Gb/s", "speed that a network port has negotiated", on="nic"),
        "pcie_devices": Metric("count", "PCI functions", on="node"),
        "kernel": Metric("text", "kernel release", on="node"),
        "os": Metric("text", "operating system", on="node"),
        "boot_id": Metric("text", "changes at every boot", on="node"),
        "clock_synchronised": Metric("bool", "whether the kernel knows its clock to be disciplined", on="node"),
        "serial_system": Metric("text", "serial number of the system", on="node"),
        "serial_board": Metric("text", "serial number of the main board", on="node"),
        "gpu_model": Metric("text", "model name", on="gpu"),
        "gpu_serial": Metric(
            "text", "serial number of the board; where GPUs of the node share one, with the GPU's UUID", on="gpu"
        ),
        "gpu_uuid": Metric("text", "UUID of the GPU", on="gpu"),
        "vbios": Metric("text", "VBIOS version", on="gpu"),
        "identity_shared": Metric("count", "other GPUs of the node that report the same UUID or PCI address", on="gpu"),
        "slot_known": Metric("bool", "whether the board tells in which slot the GPU sits", on="gpu"),
        "unlike_siblings": Metric(
            "count", "facts of model, firmware and memory that differ from most of its siblings", on="gpu"
        ),
        "gpu_lost": Metric("bool", "whether the driver reports the GPU as lost, or in need of a reset", on="gpu"),
        "hbm_total": Metric("GiB", "GPU memory", on="gpu"),
        "ecc_uncorrected": Metric("count", "uncorrected ECC errors, by scope", on="gpu"),
        "ecc_corrected": Metric("count", "corrected ECC errors, by scope", on="gpu"),
        "pcie_generation": Metric("count", "PCIe generation in use", on="gpu"),
        "pcie_generation_max": Metric("count", "PCIe generation of GPU and slot", on="gpu"),
        "pcie_width": Metric("count", "PCIe lanes in use", on="gpu"),
        "pcie_width_max": Metric("count", "PCIe lanes of GPU and slot", on="gpu"),
        "pcie_replay": Metric("count", "PCIe replays since the driver was loaded", on="gpu"),
        "system_vendor": Metric("text", "who made the machine, by its firmware", on="node"),
        "bios_version": Metric("text", "version of the BIOS", on="node"),
        "bmc_firmware": Metric("text", "firmware of the BMC, by the kernel's IPMI driver", on="node"),
        "nic_firmware": Metric("text", "firmware of a network interface, by its driver", on="nic"),
        "throttle_reason": Metric("text", "what holds the clock down now, the most harmful reason first", on="gpu"),
        "application_clock": Metric("MHz", "clock that jobs are given, by domain", on="gpu"),
        "max_clock": Metric("MHz", "highest clock, by domain", on="gpu"),
        "gpu_numa_node": Metric("count", "NUMA node closest to the GPU", on="gpu"),
        "power_limit": Metric("W", "power limit in force", on="gpu"),
        "power_limit_default": Metric("W", "power limit after a reset", on="gpu"),
        "power_limit_min": Metric("W", "lowest power limit that may be set", on="gpu"),
        "power_limit_max": Metric("W", "highest power limit that may be set", on="gpu"),
        "gpu_count": Metric("count", "GPUs that answer", on="node"),
        "driver_version": Metric("text", "GPU driver", on="node"),
        "xid_count": Metric("count", "XID messages in the kernel log", on="node"),
        "kernel_log_time": Metric(
            "s", "time since boot of the newest line of the kernel log when this stage began", on="node"
        ),
        "pci_address": Metric("text", "PCI address of the GPU", on="gpu"),
        "ib_port_active": Metric("bool", "whether the InfiniBand or RoCE port is up", on="nic"),
        "ib_port_rate": Metric(
            "Gb/s", "rate that a port which is up has trained at, by adapter, board and link layer", on="nic"
        ),
        "ib_port_state": Metric("text", "state of the port by its driver", on="nic"),
        "ib_link_layer": Metric("text", "InfiniBand or Ethernet", on="nic"),
        "ib_firmware": Metric("text", "firmware of the adapter", on="nic"),
        "ib_errors": Metric("count", "errors of the port since its counters were reset, by counter", on="nic"),
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
