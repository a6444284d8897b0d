"""Work on several GPUs at once in which the error of one GPU is that GPU's result, and the others go on."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

from muster_node.hardware.seam import Device, Hardware, Worker
from muster_node.workloads.common import reason_of


@dataclasses.dataclass(frozen=True)
class DeviceError:
    """What PyTorch raised on a device: the first line of the error; or that the device hangs."""

    error: str


def on_each(
    hardware: Hardware,
    devices: list[Device],
    work: Callable[[Worker], Any],
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
    takes_s: float | None = None,
) -> list[Any]:
    """As ``Hardware.at_once``; the result of a GPU that hangs, or on which ``work`` raised a RuntimeError, is a
    DeviceError.

    PyTorch raises RuntimeError and its subclasses for errors of a device. On CPUs every error is raised: a core that
    cannot run a process is no core to measure.
    """
    if not devices or devices[0].kind != "gpu":
        return hardware.at_once(devices, work, tick, tick_s)

    def isolated(worker: Worker) -> Any:
        try:
            return work(worker)
        except RuntimeError as error:
            return DeviceError(reason_of(error))

    return hardware.at_once(devices, isolated, tick, tick_s, lambda device, why: DeviceError(why), takes_s)


def error_of(result: Any) -> str:
    """The reason of a DeviceError, "" for any other result."""
    return result.error if isinstance(result, DeviceError) else ""
