"""States and error counters of one NVIDIA GPU: what a load may change, so read before, during and after it."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Iterator

from muster_node.hardware.nvidia.answers import number, text, usable
from muster_node.hardware.nvidia.gpu import Gpu
from muster_node.hardware.nvidia.links import Links, fabric_facts
from muster_node.hardware.nvidia.nvml import Answer, Nvml, whole
from muster_node.hardware.nvidia.sensors import throttle
from muster_node.hardware.nvidia.settings import COMPUTE_MODES
from muster_node.hardware.nvidia.throttling import throttle_fields
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

_NS = 1e-9
RECOVERY_ACTIONS = {
    0: "none",
    1: "reset of the GPU",
    2: "reboot of the node",
    3: "drain of peer traffic",
    4: "drain and reset",
    5: "recovery of the IMEX domain",
    6: "reset of the bus",
    7: "reboot of the system",
}
"""NVML_GPU_RECOVERY_ACTION_…: what the driver says that the GPU needs."""


def states(nvml: Nvml, gpu: Gpu, links: Links) -> Iterator[Fact]:
    """States that the SKU's rules judge, by the names that the inventory has them under."""
    query, handle, device = nvml.query, gpu.handle, gpu.device.id
    remap = query("nvmlDeviceGetRemappedRows", handle)
    repair = query("nvmlDeviceGetRepairStatus", handle)
    ecc, mig = query("nvmlDeviceGetEccMode", handle), query("nvmlDeviceGetMigMode", handle)
    mode = query("nvmlDeviceGetComputeMode", handle)
    action = nvml.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
    if not action.value and nvml.needs_reset(handle):
        action = Answer(nvml.constant("NVML_GPU_RECOVERY_ACTION_GPU_RESET"))
    yield text("compute_mode", device, mode.map(lambda mode: COMPUTE_MODES.get(mode, f"mode {mode}")))
    yield text("throttle_reason", device, throttle(nvml, gpu))
    yield text("recovery_action", device, action.map(lambda code: RECOVERY_ACTIONS.get(code, f"action {code}")))
    numbers = (
        ("sram_threshold_exceeded", "bool", sram_threshold(nvml, gpu)),
        ("ecc_mode", "bool", ecc.map(operator.itemgetter(0))),
        ("mig_mode", "bool", mig.map(operator.itemgetter(0))),
        ("mode_change_pending", "bool", _pending(ecc, mig)),
        ("row_remap_pending", "bool", remap.map(operator.itemgetter(2))),
        ("row_remap_failed", "bool", remap.map(operator.itemgetter(3))),
        ("channel_repair_pending", "bool", repair.map(operator.itemgetter(0))),
        ("tpc_repair_pending", "bool", repair.map(operator.itemgetter(1))),
        ("unrepairable_memory", "bool", query("nvmlDeviceGetUnrepairableMemoryFlag_v1", handle)),
        ("retired_pages_pending", "bool", query("nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        ("pcie_generation", "count", query("nvmlDeviceGetCurrPcieLinkGeneration", handle)),
        ("pcie_width", "count", query("nvmlDeviceGetCurrPcieLinkWidth", handle)),
        ("nvlink_active", "count", links.active),
        ("power_limit", "W", query("nvmlDeviceGetEnforcedPowerLimit", handle).map(lambda limit: limit / 1000.0)),
        ("persistence_mode", "bool", query("nvmlDeviceGetPersistenceMode", handle)),
    )
    for name, unit, answer in numbers:
        yield number(name, device, unit, answer)
    for domain, name in (("sm", "NVML_CLOCK_SM"), ("memory", "NVML_CLOCK_MEM")):
        applied = query("nvmlDeviceGetApplicationsClock", handle, nvml.constant(name))
        yield number("application_clock", device, "MHz", applied, {"domain": domain})
    yield from fabric_facts(nvml, handle, device)


def counters(nvml: Nvml, gpu: Gpu, links: Links, driver: Answer) -> Iterator[Fact]:
    """ECC, row remaps, PCIe replay, NVLink errors and throttle time, all cumulative."""
    device = gpu.device.id
    yield from ecc_counts(nvml, gpu)
    remap = nvml.query("nvmlDeviceGetRemappedRows", gpu.handle)
    yield number("row_remap_corrected", device, "count", remap.map(operator.itemgetter(0)))
    yield number("row_remap_uncorrected", device, "count", remap.map(operator.itemgetter(1)))
    yield number("pcie_replay", device, "count", nvml.query("nvmlDeviceGetPcieReplayCounter", gpu.handle))
    yield from links.errors()
    for reason, field in throttle_fields(driver.value or "").items():
        yield number("throttle_time", device, "s", _throttled(nvml, gpu, field, driver), {"reason": reason})


def clock_shares(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    """Each clock as a share of the GPU's highest: NVML reports no locked clocks, but a GPU at work runs at its highest
    clock unless something holds it."""
    for domain, name in (("sm", "NVML_CLOCK_SM"), ("memory", "NVML_CLOCK_MEM")):
        highest = nvml.query("nvmlDeviceGetMaxClockInfo", gpu.handle, nvml.constant(name))
        clock = nvml.query("nvmlDeviceGetClockInfo", gpu.handle, nvml.constant(name))
        share = Answer(note=highest.note or clock.note or NOT_SUPPORTED)
        if usable(clock) and usable(highest) and highest.value > 0:
            share = Answer(100.0 * clock.value / highest.value)
        yield number("clock_share", gpu.device.id, "%", share, {"domain": domain})


def ecc_counts(nvml: Nvml, gpu: Gpu) -> Iterator[Fact]:
    """Errors in memory, by scope."""
    for name, kind in (("ecc_uncorrected", "UNCORRECTED"), ("ecc_corrected", "CORRECTED")):
        for scope in ("volatile", "aggregate"):
            error_type = nvml.constant("NVML_MEMORY_ERROR_TYPE_" + kind)
            counter = nvml.constant(f"NVML_{scope.upper()}_ECC")
            count = nvml.query("nvmlDeviceGetTotalEccErrors", gpu.handle, error_type, counter)
            yield number(name, gpu.device.id, "count", count, {"scope": scope})


def sram_threshold(nvml: Nvml, gpu: Gpu) -> Answer:
    """Whether uncorrectable SRAM errors passed the limit at which NVIDIA replaces the GPU (Hopper and later)."""
    status = nvml.constant("c_nvmlEccSramErrorStatus_v1_t")()
    answer = nvml.query("nvmlDeviceGetSramEccErrorStatus", gpu.handle, ctypes.byref(status))
    return answer.map(lambda _: status.bThresholdExceeded)


def lost(nvml: Nvml, gpu: Gpu) -> Answer:
    """1 if any query ever found the GPU lost (``Nvml.is_lost``), 0 if it answers, no value where that is unknown."""
    answer = nvml.query("nvmlDeviceGetUUID", gpu.handle)
    return Answer(1) if nvml.is_lost(gpu.handle) else answer.map(lambda _: 0)


def _pending(ecc: Answer, mig: Answer) -> Answer:
    """Whether the ECC or MIG mode will be another one after the next reset."""
    known = [answer.value for answer in (ecc, mig) if answer.value is not None]
    if not known:
        return Answer(note=ecc.note or mig.note)
    return Answer(tuple(known)).map(lambda modes: any(whole(now) != whole(after) for now, after in modes))


def _throttled(nvml: Nvml, gpu: Gpu, field: int | None, driver: Answer) -> Answer:
    """Seconds in a throttle state since the driver was loaded."""
    if field is not None:
        return nvml.field(gpu.handle, field).map(lambda nanoseconds: nanoseconds * _NS)
    known = driver.value is not None or driver.note == NOT_SUPPORTED
    return Answer(note=NOT_SUPPORTED if known else "NVML: unknown, since the driver does not report its version")
