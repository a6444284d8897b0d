"""XIDs by NVML's event set, for machines whose kernel log cannot be read (containers, ``kernel.dmesg_restrict``).

NVML queues what happens after the registration, of all processes, and gives the code without the driver's text.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from muster_node.hardware.events import DeviceEvent, normal_pci
from muster_node.hardware.nvidia.events import XID
from muster_node.hardware.nvidia.nvml import Nvml
from muster_node.hardware.seam import Device

READ_MAX = 1000
"""Events of one reading: a storm of them must not keep the reader for ever."""
NO_INSTANCE = 0xFFFFFFFF
TEXT = "by NVML's event set, which has no text"


class EventSet:
    """A registration for XIDs of all ``gpus``. ``refused``: by device, why its XIDs are not seen. ``trouble``: why a
    reading broke off, "" if none did.
    """

    name = "NVML's event set"

    def __init__(self, nvml: Nvml, gpus: Sequence[tuple[Device, Any]]) -> None:
        self._nvml = nvml
        self._places: dict[int, str] = {}
        self.refused: dict[str, str] = {}
        self.trouble = ""
        self._set = nvml.query("nvmlEventSetCreate")
        for device, handle in gpus:
            answer = self._set
            if self._set.value is not None:
                kind = nvml.constant("nvmlEventTypeXidCriticalError")
                answer = nvml.query("nvmlDeviceRegisterEvents", handle, kind, self._set.value)
            if answer.note:
                self.refused[device.id] = answer.note
            address = nvml.query("nvmlDeviceGetPciInfo", handle).map(lambda info: normal_pci(str(info.busId)))
            self._places[_address(handle)] = address.value or ""

    def read(self) -> list[DeviceEvent]:
        """The XIDs since the last reading, without waiting for any."""
        events: list[DeviceEvent] = []
        while self._set.value is not None and len(events) < READ_MAX:
            answer = self._nvml.query("nvmlEventSetWait_v2", self._set.value, 0)
            if answer.value is None:
                if answer.code != self._nvml.constant("NVML_ERROR_TIMEOUT"):  # which means that there is none
                    self.trouble = self.trouble or answer.note
                break
            data = answer.value
            if data.eventType == self._nvml.constant("nvmlEventTypeXidCriticalError"):
                at = time.clock_gettime(time.CLOCK_BOOTTIME)
                pci = self._places.get(_address(data.device), "")
                events.append(DeviceEvent(XID, int(data.eventData), pci, "", TEXT + _instance(data), at))
        return events

    def close(self) -> None:
        """Ends the registration."""
        if self._set.value is not None:
            self._nvml.query("nvmlEventSetFree", self._set.value)


def _address(handle: Any) -> int:
    """The number that identifies a handle: pynvml wraps the same pointer again in each event."""
    return handle if isinstance(handle, int) else ctypes.cast(handle, ctypes.c_void_p).value or 0


def _instance(data: Any) -> str:
    """The MIG instance, as the kernel log names it."""
    parts = (("GPU-I", data.gpuInstanceId), ("GPU-CI", data.computeInstanceId))
    named = " ".join(f"{name}:{number:02d}" for name, number in parts if number != NO_INSTANCE)
    return f" ({named})" if named else ""
