"""Two Acme GPUs that answer as a stand-in; faults in the kernel log are "acme 0000:1b:00.0: fault 7: core stopped"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster_node.hardware.events import DeviceEvent, normal_pci
from muster_node.hardware.seam import Compute, Device, Fact, GpuUse, Sample
from muster_node.hardware.vendors import Gpus, Vendor
from muster_node.probe import Metric, Skip

_FAULT = re.compile(r"acme ([0-9a-f:.]+): fault (\d+): (.*)$")
_TEXTS = {"gpu_model": "Acme A1", "vbios": "1.0", "throttle_reason": "none"}
_NUMBERS = {
    "hbm_total": (64.0, "GiB"), "ecc_mode": (1.0, "bool"), "pcie_generation": (5.0, "count"),
    "pcie_generation_max": (5.0, "count"), "pcie_width": (16.0, "count"), "power_limit": (300.0, "W"),
    "identity_shared": (0.0, "count"), "unlike_siblings": (0.0, "count"), "gpu_lost": (0.0, "bool"),
    "bad_cells": (0.0, "count"), "ring_ports": (2.0, "count"),
}  # fmt: skip


class AcmeGpus(Gpus):
    """The stand-in: every fact that intake asks for, the same for each GPU but for its identity."""

    def devices(self) -> list[Device]:
        """Two."""
        return [Device(f"gpu{slot}", "gpu", slot) for slot in range(2)]

    def inventory(self) -> Iterator[Fact]:
        """Driver, then each GPU."""
        yield Fact("gpu_count", "node", "count", 2.0)
        yield Fact("driver_version", "node", "text", text="9.1")
        for device in self.devices():
            own = {"gpu_uuid": f"uuid-{device.index}", "gpu_serial": f"S{device.index}",
                   "pci_address": f"0000:1{'ab'[device.index]}:00.0"}  # fmt: skip
            for name, text in {**_TEXTS, **own}.items():
                yield Fact(name, device.id, "text", text=text)
            for name, (value, unit) in _NUMBERS.items():
                yield Fact(name, device.id, unit, value)
            for scope in ("volatile", "aggregate"):
                yield Fact("ecc_uncorrected", device.id, "count", 0.0, labels={"scope": scope})

    def counters(self) -> Iterator[Fact]:
        """None."""
        return iter(())

    def states(self) -> Iterator[Fact]:
        """None."""
        return iter(())

    def telemetry(self) -> Iterator[Sample]:
        """None."""
        return iter(())

    def processes(self) -> GpuUse:
        """None."""
        return GpuUse()

    def compute(self, device: Device) -> Compute:
        """Raises Skip."""
        raise Skip("Acme GPUs do not compute")

    def release(self) -> None:
        """Nothing is held."""

    def lost(self, device: Device) -> bool:
        """Never."""
        return False


def event_of(message: str, at: float | None) -> DeviceEvent | None:
    """A fault, by its number."""
    found = _FAULT.match(message)
    if found is None:
        return None
    return DeviceEvent("acme", int(found.group(2)), normal_pci(found.group(1)), "", found.group(3), at)


VENDOR = Vendor(
    name="Acme",
    pci_id="0xacce",
    open_gpus=AcmeGpus,
    event_of=event_of,
    metrics={
        "bad_cells": Metric("count", "memory cells that cannot be repaired"),
        "ring_ports": Metric("count", "ports of the ring that are up"),
    },
)
