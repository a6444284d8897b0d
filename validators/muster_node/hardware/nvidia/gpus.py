"""NVIDIA GPUs of a real machine through NVML: facts, counters, sensors, processes; compute is in ``nvidia.compute``.

Every NVML call may be refused at any moment: what a driver does not support has a note and never becomes a zero, and
a GPU that is lost costs its own figures only.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import itertools
import math
import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.nvidia.compute import CudaCompute, Pace
from muster_node.hardware.nvidia.events import EventSet
from muster_node.hardware.nvidia.links import Links, fabric_facts
from muster_node.hardware.nvidia.nvml import CALL_LIMIT_S, Answer, Nvml
from muster_node.hardware.nvidia.settings import COMPUTE_MODES, restore_setting
from muster_node.hardware.nvidia.throttling import HARMFUL_FIRST, throttle_fields
from muster_node.hardware.seam import NOT_SUPPORTED, Compute, Device, Fact, Sample
from muster_node.probe import Skip

_GIB = 2.0**30
_NS = 1e-9


@dataclasses.dataclass(frozen=True)
class _Limit:
    """A temperature at which clocks are taken back: its offset in T.Limit, and its threshold, with NVML's number."""

    field: str
    threshold: str
    otherwise: int


_SLOWDOWN = _Limit("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN", 1)
_MEMORY_MAX = _Limit("NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT", "NVML_TEMPERATURE_THRESHOLD_MEM_MAX", 2)


@dataclasses.dataclass(frozen=True)
class _Gpu:
    device: Device
    handle: Any
    uuid: str
    nvml_index: int


class NvidiaGpus:
    """All NVIDIA GPUs of this machine, numbered by slot. ``nvml`` is the pynvml module, or a stand-in in tests."""

    def __init__(self, nvml: Any, failure: str = "", limit_s: float = CALL_LIMIT_S) -> None:
        self._nvml = Nvml(nvml, limit_s)
        self._query = self._nvml.query
        self._constant = self._nvml.constant
        self._failure = failure
        self._unanswered: list[str] = []
        self._gpus = [] if failure else self._find()
        self._driver = Answer() if failure else self._query("nvmlSystemGetDriverVersion").map(str)

    def devices(self) -> list[Device]:
        """GPUs that answered when the machine was opened, in slot order."""
        return [gpu.device for gpu in self._gpus]

    def inventory(self) -> Iterator[Fact]:
        """Driver and GPU facts, as intake compares them."""
        yield Fact("gpu_count", "node", "count", *self._count())
        yield self._text("driver_version", "node", "nvmlSystemGetDriverVersion")
        cuda = self._query("nvmlSystemGetCudaDriverVersion_v2")
        version = cuda.map(lambda number: f"{number // 1000}.{number % 1000 // 10}")
        yield Fact("cuda_version", "node", "text", text=version.value, note=version.note)
        for gpu in self._gpus:
            yield from self._gpu_facts(gpu)

    def xid_source(self) -> EventSet:
        """XIDs of all GPUs from now on."""
        return EventSet(self._nvml, [(gpu.device, gpu.handle) for gpu in self._gpus])

    def counters(self) -> Iterator[Fact]:
        """ECC, row remaps, PCIe replay and throttle time of every GPU."""
        for gpu in self._gpus:
            yield from self._ecc_facts(gpu)
            remap = self._query("nvmlDeviceGetRemappedRows", gpu.handle)
            yield self._number("row_remap_corrected", gpu, "count", remap.map(operator.itemgetter(0)))
            yield self._number("row_remap_uncorrected", gpu, "count", remap.map(operator.itemgetter(1)))
            yield self._number("pcie_replay", gpu, "count", self._query("nvmlDeviceGetPcieReplayCounter", gpu.handle))
            yield from Links(self._nvml, gpu.handle, gpu.device.id).errors()
            for reason, field in throttle_fields(self._driver.value or "").items():
                yield self._number("throttle_time", gpu, "s", self._throttled(gpu, field), {"reason": reason})

    def _throttled(self, gpu: _Gpu, field: int | None) -> Answer:
        """Seconds in a throttle state since the driver was loaded."""
        if field is not None:
            return self._nvml.field(gpu.handle, field).map(lambda nanoseconds: nanoseconds * _NS)
        known = self._driver.value is not None or self._driver.note == NOT_SUPPORTED
        return Answer(note=NOT_SUPPORTED if known else "NVML: unknown, since the driver does not report its version")

    def telemetry(self) -> Iterator[Sample]:
        """One reading of every sensor that answers."""
        for gpu in self._gpus:
            core = self._query("nvmlDeviceGetTemperature", gpu.handle, self._constant("NVML_TEMPERATURE_GPU", 0))
            clock = self._query("nvmlDeviceGetClockInfo", gpu.handle, self._constant("NVML_CLOCK_SM", 1))
            watts = self._query("nvmlDeviceGetPowerUsage", gpu.handle).map(lambda milliwatts: milliwatts / 1000.0)
            # The usual reading is a mean over a second on most GPUs; this one, where there is one, is of the moment.
            instant = self._nvml.field(gpu.handle, "NVML_FI_DEV_POWER_INSTANT")
            busy = self._query("nvmlDeviceGetUtilizationRates", gpu.handle).map(lambda rates: rates.gpu)
            hbm = self._nvml.field(gpu.handle, "NVML_FI_DEV_MEMORY_TEMP")
            spared = self._query("nvmlDeviceGetMarginTemperature", gpu.handle)
            readings = (
                ("temperature", "°C", core),
                ("hbm_temperature", "°C", hbm),
                ("thermal_margin", "°C", self._margin(gpu, spared, _SLOWDOWN, core)),
                ("hbm_margin", "°C", self._margin(gpu, spared, _MEMORY_MAX, hbm)),
                ("power", "W", watts),
                ("power_instant", "W", instant.map(lambda milliwatts: milliwatts / 1000.0)),
                ("clock", "MHz", clock),
                ("utilisation", "%", busy),
                ("fan", "%", self._query("nvmlDeviceGetFanSpeed", gpu.handle)),
            )
            for series, unit, answer in readings:
                if _usable(answer):
                    yield Sample(series, gpu.device.id, unit, float(answer.value))
            throttle = self._throttle(gpu).value
            if throttle is not None:
                yield Sample("throttle", gpu.device.id, "state", state=throttle)

    def processes(self) -> tuple[str, ...]:
        """One sentence for each process on a GPU other than this one, and for each GPU whose list may not be read.

        A GPU that is lost, hangs or does not support the list counts as not in use: no process can be using it.
        """
        found = []
        for gpu in self._gpus:
            for kind in ("Compute", "Graphics"):
                answer = self._query(f"nvmlDeviceGet{kind}RunningProcesses", gpu.handle)
                if answer.code == self._constant("NVML_ERROR_NO_PERMISSION", 4):
                    found.append(f"no permission to list the {kind.lower()} processes of {gpu.device.id}")
                found += [
                    f"process {process.pid} uses {gpu.device.id} ({kind.lower()})"
                    for process in answer.value or ()
                    if process.pid != os.getpid()
                ]
        return tuple(found)

    def compute(self, device: Device) -> Compute:
        """Compute on one GPU. Raises Skip where PyTorch cannot use it."""
        gpu = next((gpu for gpu in self._gpus if gpu.device == device), None)
        if gpu is None:
            raise Skip(f"{device.id} does not answer NVML")
        pace, near = functools.partial(self._pace, gpu.handle), functools.partial(self._near, gpu.handle)
        return CudaCompute(device, gpu.uuid, gpu.nvml_index, pace, near)

    def restore_setting(self, device: str, setting: str, facts: Sequence[Fact]) -> str:
        """As ``Hardware.restore_setting``."""
        gpu = next((gpu for gpu in self._gpus if gpu.device.id == device), None)
        return "the GPU is gone" if gpu is None else restore_setting(self._nvml, gpu.handle, setting, facts)

    def lost(self, device: Device) -> bool:
        """As ``Hardware.lost``: some calls go on answering for a lost GPU, so several are made."""
        code = self._constant("NVML_ERROR_GPU_IS_LOST", 15)
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("nvmlDeviceGetTemperature", (self._constant("NVML_TEMPERATURE_GPU", 0),)),
            ("nvmlDeviceGetPowerUsage", ()),
            ("nvmlDeviceGetUtilizationRates", ()),
        )
        gpu = next((gpu for gpu in self._gpus if gpu.device == device), None)
        return gpu is not None and any(self._query(call, gpu.handle, *more).code == code for call, more in calls)

    def _near(self, handle: Any) -> frozenset[int]:
        """The logical CPUs of the GPU's own NUMA node, from NVML's bit mask in words of 64."""
        masks = self._query("nvmlDeviceGetCpuAffinity", handle, ((os.cpu_count() or 1) + 63) // 64).value or ()
        return frozenset(64 * place + bit for place, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)

    def _pace(self, handle: Any) -> Pace:
        clock = self._query("nvmlDeviceGetClockInfo", handle, self._constant("NVML_CLOCK_SM", 1))
        watts = self._query("nvmlDeviceGetPowerUsage", handle).map(lambda milliwatts: milliwatts / 1000.0)
        core = self._query("nvmlDeviceGetTemperature", handle, self._constant("NVML_TEMPERATURE_GPU", 0))
        return Pace(clock.value, watts.value, core.value)

    def _find(self) -> list[_Gpu]:
        """Every GPU that gives a handle."""
        found: list[tuple[int, Any, int | None]] = []
        count = self._query("nvmlDeviceGetCount")
        if count.value is None:
            self._failure = "NVML does not count its GPUs: {}".format(count.note.removeprefix("NVML: "))
        for index in range(count.value or 0):
            handle = self._query("nvmlDeviceGetHandleByIndex", index)
            if handle.value is None:
                self._unanswered.append(f"NVML index {index}: {handle.note}")
                continue
            found.append((index, handle.value, self._query("nvmlDeviceGetModuleId", handle.value).value))
        gpus = []
        for (index, handle, _), slot in zip(found, slots_of([(index, module) for index, _, module in found])):
            uuid = self._query("nvmlDeviceGetUUID", handle).value or ""
            gpus.append(_Gpu(Device(f"gpu{slot}", "gpu", slot), handle, uuid, index))
        return sorted(gpus, key=lambda gpu: gpu.device.index)

    def _count(self) -> tuple[float | None, str | None, dict[str, str], str]:
        if self._failure:
            return None, None, {}, self._failure
        return float(len(self._gpus)), None, {}, "; ".join(self._unanswered)

    def _gpu_facts(self, gpu: _Gpu) -> Iterator[Fact]:
        query, handle = self._query, gpu.handle
        texts = (
            ("gpu_model", "nvmlDeviceGetName"),
            ("gpu_serial", "nvmlDeviceGetSerial"),
            ("gpu_uuid", "nvmlDeviceGetUUID"),
            ("vbios", "nvmlDeviceGetVbiosVersion"),
            ("inforom_version", "nvmlDeviceGetInforomImageVersion"),
        )
        for name, function in texts:
            yield self._text(name, gpu.device.id, function, handle)
        yield self._text_fact(
            "pci_address", gpu, query("nvmlDeviceGetPciInfo", handle).map(lambda info: str(info.busId))
        )
        mode = query("nvmlDeviceGetComputeMode", handle)
        yield self._text_fact("compute_mode", gpu, mode.map(lambda mode: COMPUTE_MODES.get(mode, f"mode {mode}")))
        yield self._text_fact("throttle_reason", gpu, self._throttle(gpu))
        remap = query("nvmlDeviceGetRemappedRows", handle)
        limits = query("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        default = query("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        links = Links(self._nvml, handle, gpu.device.id)
        numbers = (
            ("module_id", "count", query("nvmlDeviceGetModuleId", handle)),
            ("inforom_valid", "bool", self._inforom(gpu)),
            ("sram_threshold_exceeded", "bool", self._sram_threshold(gpu)),
            ("hbm_total", "GiB", query("nvmlDeviceGetMemoryInfo", handle).map(lambda info: info.total / _GIB)),
            ("ecc_mode", "bool", query("nvmlDeviceGetEccMode", handle).map(lambda modes: modes[0])),
            ("row_remap_pending", "bool", remap.map(lambda rows: rows[2])),
            ("row_remap_failed", "bool", remap.map(lambda rows: rows[3])),
            ("row_remap_corrected", "count", remap.map(lambda rows: rows[0])),
            ("row_remap_uncorrected", "count", remap.map(lambda rows: rows[1])),
            ("retired_pages_pending", "bool", query("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
            ("pcie_generation", "count", query("nvmlDeviceGetCurrPcieLinkGeneration", handle)),
            ("pcie_generation_max", "count", query("nvmlDeviceGetMaxPcieLinkGeneration", handle)),
            ("pcie_width", "count", query("nvmlDeviceGetCurrPcieLinkWidth", handle)),
            ("pcie_width_max", "count", query("nvmlDeviceGetMaxPcieLinkWidth", handle)),
            ("pcie_replay", "count", query("nvmlDeviceGetPcieReplayCounter", handle)),
            ("nvlink_active", "count", links.active),
            ("power_limit", "W", query("nvmlDeviceGetEnforcedPowerLimit", handle).map(lambda limit: limit / 1000.0)),
            ("power_limit_default", "W", default.map(lambda limit: limit / 1000.0)),
            ("power_limit_min", "W", limits.map(lambda pair: pair[0] / 1000.0)),
            ("power_limit_max", "W", limits.map(lambda pair: pair[1] / 1000.0)),
            ("mig_mode", "bool", query("nvmlDeviceGetMigMode", handle).map(lambda modes: modes[0])),
            ("persistence_mode", "bool", query("nvmlDeviceGetPersistenceMode", handle)),
        )
        for name, unit, answer in numbers:
            yield self._number(name, gpu, unit, answer)
        yield from self._ecc_facts(gpu)
        yield from self._memory_repairs(gpu)
        yield from self._clock_facts(gpu)
        yield from links.facts()
        yield from links.errors()
        yield from fabric_facts(self._nvml, handle, gpu.device.id)
        # Last: a GPU may be lost at any of the queries above, and values read before that do not make it present.
        yield self._number("gpu_lost", gpu, "bool", self._lost(gpu))

    def _memory_repairs(self, gpu: _Gpu) -> Iterator[Fact]:
        """Pages retired before Ampere, spare rows of each bank since."""
        for cause, name in (
            ("single_bit", "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS"),
            ("double_bit", "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR"),
        ):
            pages = self._query("nvmlDeviceGetRetiredPages", gpu.handle, self._constant(name, 0))
            yield self._number("retired_pages", gpu, "count", pages.map(len), {"cause": cause})
        banks = self._query("nvmlDeviceGetRowRemapperHistogram", gpu.handle)
        for spare in ("max", "high", "partial", "low", "none"):
            count = banks.map(operator.attrgetter(spare))
            yield self._number("row_remap_banks", gpu, "count", count, {"spare": spare})

    def _clock_facts(self, gpu: _Gpu) -> Iterator[Fact]:
        """Clocks that jobs are given, and those that they could have."""
        for domain, name, otherwise in (("sm", "NVML_CLOCK_SM", 1), ("memory", "NVML_CLOCK_MEM", 2)):
            clock, labels = self._constant(name, otherwise), {"domain": domain}
            applied = self._query("nvmlDeviceGetApplicationsClock", gpu.handle, clock)
            yield self._number("application_clock", gpu, "MHz", applied, labels)
            highest = self._query("nvmlDeviceGetMaxClockInfo", gpu.handle, clock)
            yield self._number("max_clock", gpu, "MHz", highest, labels)

    def _ecc_facts(self, gpu: _Gpu) -> Iterator[Fact]:
        for name, kind in (("ecc_uncorrected", "UNCORRECTED"), ("ecc_corrected", "CORRECTED")):
            for scope in ("volatile", "aggregate"):
                error_type = self._constant("NVML_MEMORY_ERROR_TYPE_" + kind, 0)
                counter = self._constant(f"NVML_{scope.upper()}_ECC", 0)
                count = self._query("nvmlDeviceGetTotalEccErrors", gpu.handle, error_type, counter)
                yield self._number(name, gpu, "count", count, {"scope": scope})

    def _inforom(self, gpu: _Gpu) -> Answer:
        """NVML returns no value if the InfoROM is valid, and NVML_ERROR_CORRUPTED_INFOROM if not."""
        answer = self._query("nvmlDeviceValidateInforom", gpu.handle)
        if answer.code == self._constant("NVML_ERROR_CORRUPTED_INFOROM", 14):
            return Answer(0)
        return answer if answer.code else Answer(1)

    def _lost(self, gpu: _Gpu) -> Answer:
        """1 if any query found the GPU off the bus, 0 if it still answers, no value where that is unknown."""
        answer = self._query("nvmlDeviceGetUUID", gpu.handle)
        return Answer(1) if self._nvml.is_lost(gpu.handle) else answer.map(lambda _: 0)

    def _sram_threshold(self, gpu: _Gpu) -> Answer:
        """Whether uncorrectable SRAM errors passed the limit at which NVIDIA replaces the GPU (Hopper and later)."""
        structure = self._constant("c_nvmlEccSramErrorStatus_v1_t", None)
        if structure is None:
            return Answer(note=NOT_SUPPORTED)
        status = structure()
        answer = self._query("nvmlDeviceGetSramEccErrorStatus", gpu.handle, ctypes.byref(status))
        return answer.map(lambda _: status.bThresholdExceeded)

    def _margin(self, gpu: _Gpu, spared: Answer, limit: _Limit, reading: Answer) -> Answer:
        """°C left to a limit: by the T.Limit margin (``spared``) and the limit's own offset, else by its threshold.

        T.Limit first, since new drivers report margins in place of ceilings.
        Margins of zero and less are dropped: some H100 drivers return them as garbage
        (docs/science.md#temperature-limits).
        """
        offset = self._nvml.field(gpu.handle, limit.field)
        if spared.value is not None and spared.value > 0 and offset.value is not None:
            return Answer(spared.value - offset.value)
        kind = self._constant(limit.threshold, limit.otherwise)
        threshold = self._query("nvmlDeviceGetTemperatureThreshold", gpu.handle, kind)
        if threshold.value and reading.value is not None:
            return Answer(threshold.value - reading.value)
        return Answer(note=threshold.note or reading.note or NOT_SUPPORTED)

    def _throttle(self, gpu: _Gpu) -> Answer:
        """The most harmful reason that holds the clock down now, or "none"."""
        return self._query("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle).map(self._most_harmful)

    def _most_harmful(self, reasons: int) -> str:
        present = (name for name, constant in HARMFUL_FIRST if reasons & self._constant(constant, 0))
        return next(present, "none")

    def _number(self, name: str, gpu: _Gpu, unit: str, answer: Answer, labels: dict[str, str] | None = None) -> Fact:
        usable = _usable(answer)
        value = float(answer.value) if usable else None
        note = answer.note if usable else answer.note or "NVML gave no number"
        return Fact(name, gpu.device.id, unit, value, labels=labels or {}, note=note)

    def _text_fact(self, name: str, gpu: _Gpu, answer: Answer) -> Fact:
        return Fact(name, gpu.device.id, "text", text=answer.value, note=answer.note)

    def _text(self, name: str, device: str, function: str, *arguments: Any) -> Fact:
        answer = self._query(function, *arguments)
        return Fact(name, device, "text", text=None if answer.value is None else str(answer.value), note=answer.note)


def _usable(answer: Answer) -> bool:
    """Whether it is a number."""
    return isinstance(answer.value, (int, float)) and math.isfinite(answer.value)


def slots_of(modules: Sequence[tuple[int, int | None]]) -> list[int]:
    """Slots of GPUs from (NVML index, module id): the id − 1, or the index where a board has no usable ids.

    A GPU that alone has no id takes the first slot that the others leave, so that they keep theirs.
    """
    known = [module for _, module in modules if module is not None]
    if not known or min(known) < 1 or len(set(known)) < len(known):
        return [index for index, _ in modules]
    free = (slot for slot in itertools.count() if slot + 1 not in known)
    return [next(free) if module is None else module - 1 for _, module in modules]


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
    return NvidiaGpus(nvml, failure, limit_s)
