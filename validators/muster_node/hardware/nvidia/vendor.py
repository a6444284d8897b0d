"""NVIDIA: GPUs through NVML, XIDs and SXIDs in the kernel log."""

from __future__ import annotations

from muster_node.hardware.nvidia.events import event_of
from muster_node.hardware.nvidia.fabric_manager import SERVICE
from muster_node.hardware.nvidia.gpus import open_nvidia
from muster_node.hardware.vendors import Vendor
from muster_node.probe import Metric

VENDOR = Vendor(
    name="NVIDIA",
    pci_id="0x10de",
    open_gpus=open_nvidia,
    event_of=event_of,
    loads="NVRM: loading NVIDIA UNIX",
    services=(SERVICE, "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm"),
    tools={
        "nvidia-smi": "comes with the NVIDIA driver",
        "dcgmi": "install datacenter-gpu-manager for NVIDIA's own diagnostics",
    },
    metrics={
        "nvlink_domain": Metric(
            "text", "ClusterUUID and clique of the GPU; zero where NVLink ends at the machine", on="gpu"
        ),
        "imex": Metric("text", "state of IMEX by its control tool, else of its service", on="node"),
        "fabric_cliques": Metric("count", "NVLink cliques that the node's GPUs are in", on="node"),
        "module_id": Metric("count", "place of the GPU on its board, counted from 1, which names its slot", on="gpu"),
        "inforom_version": Metric("text", "version of the InfoROM's image", on="gpu"),
        "inforom_valid": Metric("bool", "whether the InfoROM's checksum holds", on="gpu"),
        "row_remap_corrected": Metric("count", "rows remapped for corrected errors", on="gpu"),
        "row_remap_uncorrected": Metric("count", "rows remapped for uncorrected errors", on="gpu"),
        "row_remap_banks": Metric("count", "memory banks, by how many spare rows they have left", on="gpu"),
        "retired_pages": Metric("count", "memory pages retired, by cause (before Ampere)", on="gpu"),
        "nvlink_state": Metric("bool", "whether a link is up, by link", on="gpu"),
        "nvlink_speed": Metric("GB/s", "speed of a link that is up, in each direction, by link", on="gpu"),
        "nvlink_errors": Metric("count", "errors since the driver was loaded, by link and kind", on="gpu"),
        "c2c_state": Metric("bool", "whether an NVLink-C2C to the CPU is active, by link", on="gpu"),
        "c2c_errors": Metric("count", "errors of an NVLink-C2C to the CPU, by link and kind", on="gpu"),
        "fabric_manager": Metric("text", "state of the fabric manager's service", on="node"),
        "fabric_manager_version": Metric("text", "version of the fabric manager", on="node"),
        "nvswitch_firmware": Metric("text", "firmware of an NVSwitch", on="nvswitch"),
        "compute_mode": Metric("text", "who may use the GPU at once", on="gpu"),
        "persistence_mode": Metric("bool", "whether persistence mode is on", on="gpu"),
        "application_clock_default": Metric("MHz", "clock that jobs are given after a reset, by domain", on="gpu"),
        "confidential_computing": Metric("bool", "whether data is encrypted on its way to and from GPUs", on="node"),
        "cuda_version": Metric("text", "highest CUDA version of the driver", on="node"),
    },
)
