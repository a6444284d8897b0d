"""NVIDIA: GPUs through NVML, XIDs and SXIDs in the kernel log."""

from __future__ import annotations

from muster_node.hardware.nvidia.events import event_of
from muster_node.hardware.nvidia.fabric_manager import SERVICE
from muster_node.hardware.nvidia.gpus import open_nvidia
from muster_node.hardware.vendors import Vendor

VENDOR = Vendor(
    name="NVIDIA",
    pci_id="0x10de",
    open_gpus=open_nvidia,
    event_of=event_of,
    services=(SERVICE, "nvidia-persistenced", "nvidia-imex", "nvidia-dcgm"),
    tools={
        "nvidia-smi": "comes with the NVIDIA driver",
        "dcgmi": "install datacenter-gpu-manager for NVIDIA's own diagnostics",
    },
)
