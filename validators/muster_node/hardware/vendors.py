"""The vendors of GPUs. Each is a folder next to this file whose module ``vendor`` has a ``VENDOR``: so it is found."""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable

from muster_node.hardware.events import DeviceEvent
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Compute, Device, EventSource, Fact, GpuUse, Sample
from muster_node.probe import Metric


class Gpus(abc.ABC):
    """All GPUs of one vendor in this machine, as ``Hardware`` asks for them. A value that cannot be read has a note."""

    @abc.abstractmethod
    def devices(self) -> list[Device]:
        """GPUs that answered when the machine was opened, in slot order."""

    @abc.abstractmethod
    def inventory(self) -> Iterator[Fact]:
        """Driver and GPU facts, as intake compares them; "pci_address" names a GPU to the kernel's messages."""

    def machine(self, files: Files) -> Iterator[Fact]:
        """What the GPUs need of the rest of the machine, such as services and switches."""
        return iter(())

    def domain(self) -> Iterator[Fact]:
        """As ``Hardware.domain``."""
        return iter(())

    @abc.abstractmethod
    def counters(self) -> Iterator[Fact]:
        """Cumulative counters of every GPU."""

    @abc.abstractmethod
    def states(self) -> Iterator[Fact]:
        """As ``Hardware.states``."""

    @abc.abstractmethod
    def telemetry(self) -> Iterator[Sample]:
        """One reading of every sensor that answers."""

    @abc.abstractmethod
    def processes(self) -> GpuUse:
        """Every process on a GPU other than this one, and the GPUs of which they cannot be listed."""

    @abc.abstractmethod
    def compute(self, device: Device) -> Compute:
        """Compute on a GPU. Raises Skip where it or PyTorch is missing."""

    @abc.abstractmethod
    def lost(self, device: Device) -> bool:
        """As ``Hardware.lost``."""

    def restore_setting(self, device: str, setting: str, facts: Sequence[Fact]) -> str:
        """As ``Hardware.restore_setting``."""
        return "nothing can be set on these GPUs"

    @abc.abstractmethod
    def release(self) -> None:
        """As ``Hardware.release_gpus``."""

    def event_source(self) -> EventSource | None:
        """Device events from now on by another way than the kernel log; None where there is none."""
        return None


@dataclasses.dataclass(frozen=True)
class Vendor:
    """One vendor. ``pci_id``: its number on the PCI bus, as sysfs writes it.

    ``open_gpus``: its GPUs, None where this machine has no driver library of the vendor. ``event_of``: a message of
    the kernel log, from its first character on, and its seconds since boot, as an event of the driver's with a code;
    None for any other. The kernel repeats what users write, such as mount options, so only a message that begins as the
    driver's do is one. ``loads``: in the line that the driver
    logs when it is loaded, "" where it logs none. ``services``: what systemd should run.
    ``tools``: optional programs, and what to do where one is not installed. ``metrics``: those facts of the inventory
    that only this vendor's GPUs have.
    """

    name: str
    pci_id: str
    open_gpus: Callable[[], Gpus | None]
    event_of: Callable[[str, float | None], DeviceEvent | None]
    loads: str = ""
    services: tuple[str, ...] = ()
    tools: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, Metric] = dataclasses.field(default_factory=dict)


hardware = importlib.import_module(__name__.rpartition(".")[0])  # its name as an import would be a cycle


@functools.lru_cache(maxsize=1)
def vendors() -> tuple[Vendor, ...]:
    """Every vendor there is a folder of, also inside the zipapp."""
    found = []
    for info in sorted(pkgutil.iter_modules(hardware.__path__), key=lambda module: module.name):
        folder = f"{hardware.__name__}.{info.name}"
        if info.ispkg and any(each.name == "vendor" for each in pkgutil.iter_modules(_path(folder))):
            found.append(importlib.import_module(folder + ".vendor").VENDOR)
    return tuple(found)


def open_gpus() -> Gpus | None:
    """The GPUs of this machine; None where no vendor's driver library is there.

    Raises RuntimeError for GPUs of two vendors: they would claim the same slots.
    """
    opened = [(vendor.name, gpus) for vendor in vendors() for gpus in [vendor.open_gpus()] if gpus is not None]
    answering = [(name, gpus) for name, gpus in opened if gpus.devices()]
    if len(answering) > 1:
        names = " and ".join(name for name, _ in answering)
        raise RuntimeError(f"this machine has GPUs of {names}: a node has those of one vendor")
    return next((gpus for _, gpus in answering or opened), None)


PCI = "/sys/bus/pci/devices"
GPUS = ("0x0302", "0x0380")
"""Classes on the PCI bus: 3D and other display controllers. The graphics of a BMC are VGA, 0x0300."""
ACCELERATORS = (*GPUS, "0x1200")
"""And processing accelerators, which are GPUs or not, such as FPGAs."""


def on_pci(files: Files, vendor: Vendor) -> bool:
    """Whether any device of the vendor is on the PCI bus."""
    return any(files.text(f"{PCI}/{name}/vendor") == vendor.pci_id for name in files.names(PCI))


def of_no_vendor(files: Files, classes: tuple[str, ...] = ACCELERATORS) -> str:
    """A clause on the accelerators of these classes that are of no known vendor; "" where there are none."""
    found = {
        files.text(f"{PCI}/{name}/vendor")
        for name in files.names(PCI)
        if files.text(f"{PCI}/{name}/class").startswith(classes)
    }
    others = sorted(found - {"", *(vendor.pci_id for vendor in vendors())})
    if not others:
        return ""
    names = " and ".join(others)
    return f"GPUs or other accelerators of PCI vendor {names} are on the bus, and this version has no queries for them"


def _path(package: str) -> list[str]:
    return list(importlib.import_module(package).__path__)
