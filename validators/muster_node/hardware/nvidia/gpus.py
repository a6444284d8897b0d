"""NVIDIA GPUs of a real machine through NVML: facts, counters, sensors, processes; compute is in ``torch_gpu``.

Every NVML call may be refused at any moment: what a driver does not support has a note and never becomes a zero, and
a GPU that is lost costs its own figures only.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.nvidia import domain, fabric_manager, processes, sensors, states
from muster_node.hardware.nvidia.answers import number, text
from muster_node.hardware.nvidia.event_set import EventSet
from muster_node.hardware.nvidia.gpu import Gpu, find, identity_facts, module_id, unlike_siblings
from muster_node.hardware.nvidia.links import Links, c2c_facts, cliques
from muster_node.hardware.nvidia.nvml import CALL_LIMIT_S, Answer, Nvml, whole
from muster_node.hardware.nvidia.settings import restore_setting
from muster_node.hardware.seam import NOT_SUPPORTED, Compute, Device, Fact, GpuUse, Sample
from muster_node.hardware.torch_gpu import CudaCompute, Pace
from muster_node.hardware.vendors import Gpus
from muster_node.probe import Skip

_GIB = 2.0**30
_CPU_WORDS = 128
"""Words of 64 in a mask of CPUs: 8,192, the most that Linux is built for; those online may have any numbers."""
GPUS_MAX = 256
"""Eight times what the largest machine has."""


class NvidiaGpus(Gpus):
    """All NVIDIA GPUs of this machine, numbered by slot. ``nvml`` is the pynvml module, or a stand-in in tests."""

    def __init__(self, nvml: Any, failure: str = "", limit_s: float = CALL_LIMIT_S, *, loaded: bool = True) -> None:
        self._nvml = Nvml(nvml, limit_s)
        self._query = self._nvml.query
        self._constant = self._nvml.constant
        self._failure = failure
        self._unanswered: list[str] = []
        self._unlisted = [failure] if failure and loaded else []
        self._found, self._released = [] if failure else self._find(), False
        self._driver = Answer() if failure else self._query("nvmlSystemGetDriverVersion").map(str)

    def devices(self) -> list[Device]:
        """GPUs that answered when the machine was opened, in slot order."""
        return [gpu.device for gpu in self._gpus]

    @property
    def _gpus(self) -> list[Gpu]:
        """Found again after ``release``: handles are of one process, and end with a shutdown."""
        if self._released:
            self._released = False
            self._query("nvmlInit")
            self._found = self._find()
        return self._found

    def release(self) -> None:
        """As ``Gpus.release``."""
        if not self._failure:
            self._query("nvmlShutdown")
            self._released = True

    def inventory(self) -> Iterator[Fact]:
        """Driver and GPU facts, as intake compares them."""
        yield Fact("gpu_count", "node", "count", *self._count())
        yield text("driver_version", "node", self._query("nvmlSystemGetDriverVersion"))
        cuda = self._query("nvmlSystemGetCudaDriverVersion_v2")
        yield text("cuda_version", "node", cuda.map(lambda version: f"{version // 1000}.{version % 1000 // 10}"))
        yield number("confidential_computing", "node", "bool", self._confidential())
        facts: list[Fact] = []
        for gpu in self._gpus:
            for fact in self._gpu_facts(gpu):
                facts.append(fact)
                yield fact
        yield from identity_facts(self._nvml, self._gpus)
        yield from unlike_siblings(facts, self._gpus)
        yield from cliques(self._nvml, [(gpu.device.id, gpu.handle) for gpu in self._gpus])
        for gpu in self._gpus:
            yield domain.domain_fact(self._nvml, gpu.handle, gpu.device.id)
        # Last: a GPU may be lost at any of the queries above, and values read before that do not make it present.
        for gpu in self._gpus:
            yield number("gpu_lost", gpu.device.id, "bool", states.lost(self._nvml, gpu))

    def machine(self, files: Files) -> Iterator[Fact]:
        """NVSwitches, the fabric manager and IMEX."""
        yield from fabric_manager.facts(files)
        yield domain.imex_fact()

    def domain(self) -> Iterator[Fact]:
        """As ``Hardware.domain``."""
        for gpu in self._gpus:
            yield from domain.domain_facts(self._nvml, gpu.handle, gpu.device.id)
        yield domain.imex_fact()

    def event_source(self) -> EventSet:
        """XIDs of all GPUs from now on."""
        return EventSet(self._nvml, [(gpu.device, gpu.handle) for gpu in self._gpus])

    def counters(self) -> Iterator[Fact]:
        """ECC, row remaps, PCIe replay and throttle time of every GPU."""
        for gpu in self._gpus:
            yield from states.counters(self._nvml, gpu, self._links(gpu), self._driver)

    def states(self) -> Iterator[Fact]:
        """As ``Hardware.states``."""
        for gpu in self._gpus:
            links, device = self._links(gpu), gpu.device.id
            yield from states.states(self._nvml, gpu, links)
            yield from states.counters(self._nvml, gpu, links, self._driver)
            busy = self._query("nvmlDeviceGetUtilizationRates", gpu.handle).map(lambda rates: rates.gpu)
            yield number("utilisation", device, "%", busy)
            yield from states.clock_shares(self._nvml, gpu)
            yield processes.foreign(self._nvml, gpu)
            yield number("gpu_lost", device, "bool", states.lost(self._nvml, gpu))

    def telemetry(self) -> Iterator[Sample]:
        """One reading of every sensor that answers."""
        for gpu in self._gpus:
            yield from sensors.samples(self._nvml, gpu)

    def processes(self) -> GpuUse:
        """As ``Gpus.processes``. No process uses GPUs whose driver is not loaded, or one that gives no handle."""
        unlisted = [*self._unlisted, *(processes.unlisted(self._nvml, gpu) for gpu in self._gpus)]
        return GpuUse(
            tuple(sentence for gpu in self._gpus for sentence in processes.on(self._nvml, gpu)),
            tuple(filter(None, unlisted)),
        )

    def compute(self, device: Device) -> Compute:
        """Compute on one GPU. Raises Skip where PyTorch cannot use it, RuntimeError where it is not clear which."""
        gpu = self._of(device)
        if gpu is None:
            raise Skip(f"{device.id} does not answer NVML")
        pace, near = functools.partial(self._pace, gpu.handle), functools.partial(self._near, gpu.handle)
        return CudaCompute(device, gpu, pace, near)

    def restore_setting(self, device: str, setting: str, facts: Sequence[Fact]) -> str:
        """As ``Hardware.restore_setting``."""
        gpu = next((gpu for gpu in self._gpus if gpu.device.id == device), None)
        return "the GPU is gone" if gpu is None else restore_setting(self._nvml, gpu.handle, setting, facts)

    def lost(self, device: Device) -> bool:
        """As ``Hardware.lost``: some calls go on answering for a lost GPU, so several are made; and once is enough."""
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("nvmlDeviceGetTemperature", (self._constant("NVML_TEMPERATURE_GPU"),)),
            ("nvmlDeviceGetPowerUsage", ()),
            ("nvmlDeviceGetUtilizationRates", ()),
        )
        gpu = self._of(device)
        if gpu is None:
            return False
        for call, more in calls:
            self._query(call, gpu.handle, *more)
        return self._nvml.is_lost(gpu.handle)

    def _of(self, device: Device) -> Gpu | None:
        return next((gpu for gpu in self._gpus if gpu.device == device), None)

    def _links(self, gpu: Gpu) -> Links:
        return Links(self._nvml, gpu.handle, gpu.device.id)

    def _near(self, handle: Any) -> frozenset[int]:
        """The logical CPUs of the GPU's own NUMA node, from NVML's bit mask in words of 64."""
        masks = self._query("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS).value or ()
        return frozenset(64 * place + bit for place, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)

    def _pace(self, handle: Any) -> Pace:
        clock = self._query("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_SM"))
        watts = self._query("nvmlDeviceGetPowerUsage", handle).map(lambda milliwatts: milliwatts / 1000.0)
        core = self._query("nvmlDeviceGetTemperature", handle, self._constant("NVML_TEMPERATURE_GPU"))
        return Pace(clock.value, watts.value, core.value)

    def _find(self) -> list[Gpu]:
        """Every GPU that gives a handle."""
        count = self._query("nvmlDeviceGetCount")
        if count.value is None:
            self._failure = "NVML does not count its GPUs: {}".format(count.note.removeprefix("NVML: "))
            self._unlisted.append(self._failure)
        elif count.value > GPUS_MAX:
            self._failure = f"NVML counts {count.value} GPUs, which no machine has"
            return []
        gpus, self._unanswered = find(self._nvml, count.value or 0)
        return gpus

    def _count(self) -> tuple[float | None, str | None, dict[str, str], str]:
        if self._failure:
            return None, None, {}, self._failure
        return float(len(self._gpus)), None, {}, "; ".join(self._unanswered)

    def _confidential(self) -> Answer:
        """Whether data is encrypted between one GPU and its host, or between all GPUs of the machine and it.

        The feature's own flag does not cover the latter (protected PCIe, and NVLink encryption since). The binding
        returns this call's error instead of raising it. Drivers before 550 have only the older call.
        """
        settings = self._constant("c_nvmlSystemConfComputeSettings_v1_t")()
        answer = self._query("nvmlSystemGetConfComputeSettings", ctypes.byref(settings))
        if answer.value:
            answer = self._nvml.refusal(answer.value)
        if answer.note == NOT_SUPPORTED:
            return self._query("nvmlSystemGetConfComputeState").map(lambda state: state.ccFeature)
        return answer.map(lambda _: int(settings.ccFeature != 0 or settings.multiGpuMode != 0))

    def _gpu_facts(self, gpu: Gpu) -> Iterator[Fact]:
        query, handle, device = self._query, gpu.handle, gpu.device.id
        texts = (
            ("gpu_model", "nvmlDeviceGetName"),
            ("gpu_uuid", "nvmlDeviceGetUUID"),
            ("vbios", "nvmlDeviceGetVbiosVersion"),
            ("inforom_version", "nvmlDeviceGetInforomImageVersion"),
        )
        for name, function in texts:
            yield text(name, device, query(function, handle))
        yield text("pci_address", device, query("nvmlDeviceGetPciInfo", handle).map(lambda info: str(info.busId)))
        limits = query("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        default = query("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        memory = query("nvmlDeviceGetMemoryInfo", handle).map(lambda info: whole(info.total) / _GIB)
        remap = query("nvmlDeviceGetRemappedRows", handle)
        numbers = (
            ("module_id", "count", module_id(self._nvml, gpu)),
            ("inforom_valid", "bool", self._inforom(gpu)),
            ("hbm_total", "GiB", memory),
            ("row_remap_corrected", "count", remap.map(operator.itemgetter(0))),
            ("row_remap_uncorrected", "count", remap.map(operator.itemgetter(1))),
            ("pcie_generation_max", "count", query("nvmlDeviceGetMaxPcieLinkGeneration", handle)),
            ("pcie_width_max", "count", query("nvmlDeviceGetMaxPcieLinkWidth", handle)),
            ("pcie_replay", "count", query("nvmlDeviceGetPcieReplayCounter", handle)),
            ("power_limit_default", "W", default.map(lambda limit: limit / 1000.0)),
            ("power_limit_min", "W", limits.map(lambda pair: pair[0] / 1000.0)),
            ("power_limit_max", "W", limits.map(lambda pair: pair[1] / 1000.0)),
        )
        for name, unit, answer in numbers:
            yield number(name, device, unit, answer)
        links = self._links(gpu)
        yield from states.states(self._nvml, gpu, links)
        yield from states.ecc_counts(self._nvml, gpu)
        yield from self._memory_repairs(gpu)
        for clock, name in (("sm", "NVML_CLOCK_SM"), ("memory", "NVML_CLOCK_MEM")):
            highest = query("nvmlDeviceGetMaxClockInfo", handle, self._constant(name))
            yield number("max_clock", device, "MHz", highest, {"domain": clock})
            default = query("nvmlDeviceGetDefaultApplicationsClock", handle, self._constant(name))
            yield number("application_clock_default", device, "MHz", default, {"domain": clock})
        yield from links.facts()
        yield from links.errors()
        yield from c2c_facts(self._nvml, handle, device)

    def _memory_repairs(self, gpu: Gpu) -> Iterator[Fact]:
        """Pages retired before Ampere, spare rows of each bank since."""
        for cause, name in (
            ("single_bit", "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS"),
            ("double_bit", "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR"),
        ):
            pages = self._query("nvmlDeviceGetRetiredPages", gpu.handle, self._constant(name))
            yield number("retired_pages", gpu.device.id, "count", pages.map(len), {"cause": cause})
        banks = self._query("nvmlDeviceGetRowRemapperHistogram", gpu.handle)
        for spare in ("max", "high", "partial", "low", "none"):
            count = banks.map(operator.attrgetter(spare))
            yield number("row_remap_banks", gpu.device.id, "count", count, {"spare": spare})

    def _inforom(self, gpu: Gpu) -> Answer:
        """NVML returns no value if the InfoROM is valid, and NVML_ERROR_CORRUPTED_INFOROM if not."""
        answer = self._query("nvmlDeviceValidateInforom", gpu.handle)
        if answer.code == self._constant("NVML_ERROR_CORRUPTED_INFOROM"):
            return Answer(0)
        return answer if answer.code else Answer(1)


def open_nvidia(nvml: Any = None, limit_s: float = CALL_LIMIT_S) -> NvidiaGpus | None:
    """The NVIDIA GPUs of this machine; None where there is no NVIDIA driver library at all.

    A library that is present but does not start is not "no GPUs": gpu_count then has no value, and a note.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
    start = Nvml(nvml, limit_s).query("nvmlInit")
    if start.code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return None
    failure = "NVML does not start: {}".format(start.note.removeprefix("NVML: ")) if start.note else ""
    return NvidiaGpus(nvml, failure, limit_s, loaded=start.code != nvml.NVML_ERROR_DRIVER_NOT_LOADED)
