"""NVML serves one process: it is given up before a fork whose processes ask for GPUs, and opened again after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pynvml
import pytest

from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.hardware import HARDWARE_ENV
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia.gpus import NvidiaGpus, open_nvidia
from muster_node.hardware.seam import Device
from muster_node.probe import Context
from tests.muster_node.cluster.alone import Alone, alone_block
from tests.muster_node.hardware.nvml_standin import FakeNvml, facts_of

_PER_START = 1000


class OfOneProcess(FakeNvml):
    """NVML of driver 580.159 as it behaved on an H100 (docs/gpu-day.md): what it holds serves one process.

    A forked process is answered "uninitialized". There, it starts with the descriptors that it inherited, and not where
    they are closed (NVML_ERROR_OPERATING_SYSTEM). Handles of an earlier start are invalid arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self._descriptor: int | None = None
        self._process, self._starts = 0, 0
        self.answers["nvmlShutdown"] = None
        self.before = self._check

    def _check(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlInit":
            self._start()
        elif self._descriptor is None or self._process != os.getpid():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        elif name == "nvmlShutdown":
            os.close(self._descriptor)
            self._descriptor = None
        elif self._is_handle(name, arguments) and arguments[0] // _PER_START != self._starts:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def _start(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(os.devnull, os.O_RDONLY)
        elif not os.path.exists(f"/proc/self/fd/{self._descriptor}"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_OPERATING_SYSTEM)
        self._process = os.getpid()
        self._starts += 1

    @staticmethod
    def _is_handle(name: str, arguments: tuple[Any, ...]) -> bool:
        return name.startswith("nvmlDevice") and bool(arguments) and name != "nvmlDeviceGetHandleByIndex"

    def _answer(self, name: str, *arguments: Any) -> Any:
        if self._is_handle(name, arguments):
            arguments = (arguments[0] % _PER_START, *arguments[1:])
        answer = super()._answer(name, *arguments)
        return answer + self._starts * _PER_START if name == "nvmlDeviceGetHandleByIndex" else answer


@pytest.fixture
def nvml() -> OfOneProcess:
    return OfOneProcess()


def opened(nvml: OfOneProcess) -> NvidiaGpus:
    gpus = open_nvidia(nvml)
    assert gpus is not None
    return gpus


SHARED: list[OfOneProcess] = []


def of_this_test() -> HostHardware:
    """What a rank opens."""
    return HostHardware(accelerators=open_nvidia(SHARED[-1]))


def test_every_rank_opens_the_gpus_although_its_parent_had(nvml: OfOneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    SHARED.append(nvml)
    monkeypatch.setenv(HARDWARE_ENV, f"{__name__}:of_this_test")
    emitted: list[tuple[str, str]] = []

    def work(group: RankGroup) -> None:
        group.emit("gpus", ",".join(device.id for device in group.hardware.devices("gpu")))

    context = Context(of_this_test(), {}, 1, Path(), lambda name, text, **fields: emitted.append((name, text)), print)
    Ranks(Alone(alone_block()), [Device("gpu0", "gpu", 0)], context).run(work)
    assert emitted == [("gpus", ",".join(f"gpu{slot}" for slot in range(8)))]


def test_the_process_that_gave_them_up_asks_again_with_new_handles(nvml: OfOneProcess) -> None:
    gpus = opened(nvml)
    before = facts_of(gpus)
    gpus.release()
    assert facts_of(gpus) == before
    assert [device.id for device in gpus.devices()] == [f"gpu{slot}" for slot in range(8)]


def test_a_driver_that_never_started_has_nothing_to_give_up(nvml: OfOneProcess) -> None:
    nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    gpus = opened(nvml)
    gpus.release()
    assert gpus.devices() == []
