"""Sensors of one NVIDIA GPU: temperatures and what they are from their limits, power, clock, and what holds it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from muster_node.hardware.host.sensors import POSSIBLE_C
from muster_node.hardware.nvidia.answers import usable
from muster_node.hardware.nvidia.gpu import Gpu
from muster_node.hardware.nvidia.nvml import Answer, Nvml
from muster_node.hardware.nvidia.throttling import named
from muster_node.hardware.seam import NOT_SUPPORTED, Sample

MARGIN_C = 150.0
"""°C that no GPU is from a limit: the highest temperature that one may have."""
POSSIBLE = {
    "temperature": POSSIBLE_C,
    "hbm_temperature": POSSIBLE_C,
    "power": (0.0, 5000.0),
    "power_instant": (0.0, 5000.0),
    "clock": (0.0, 10_000.0),
    "thermal_margin": (-MARGIN_C, MARGIN_C),
    "hbm_margin": (-MARGIN_C, MARGIN_C),
}
"""What a reading lies between, ends excluded. Chosen far outside of what any data-centre GPU is built for."""
DISAGREE_C = 5.0
"""°C by which a margin and the temperature itself may differ before the margin is garbage. Chosen here."""

OF_GPU = "by the GPU's T.Limit, since memory's own threshold or temperature is not readable"


@dataclasses.dataclass(frozen=True)
class _Limit:
    """A temperature at which clocks are taken back: its offset in T.Limit, and its threshold."""

    field: str
    threshold: str


_SLOWDOWN = _Limit("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN")
_MEMORY_MAX = _Limit("NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT", "NVML_TEMPERATURE_THRESHOLD_MEM_MAX")


def samples(nvml: Nvml, gpu: Gpu) -> Iterator[Sample]:
    """One reading of every sensor that answers with a value that can be."""
    core = nvml.query("nvmlDeviceGetTemperature", gpu.handle, nvml.constant("NVML_TEMPERATURE_GPU"))
    clock = nvml.query("nvmlDeviceGetClockInfo", gpu.handle, nvml.constant("NVML_CLOCK_SM"))
    watts = nvml.query("nvmlDeviceGetPowerUsage", gpu.handle).map(lambda milliwatts: milliwatts / 1000.0)
    # The usual reading is a mean over a second on most GPUs; this one, where there is one, is of the moment.
    instant = nvml.field(gpu.handle, "NVML_FI_DEV_POWER_INSTANT").map(lambda milliwatts: milliwatts / 1000.0)
    busy = nvml.query("nvmlDeviceGetUtilizationRates", gpu.handle).map(lambda rates: rates.gpu)
    hbm = nvml.field(gpu.handle, "NVML_FI_DEV_MEMORY_TEMP")
    spared = nvml.query("nvmlDeviceGetMarginTemperature", gpu.handle)
    core, hbm = (each if _possible("temperature", each) else Answer(note="no temperature") for each in (core, hbm))
    readings = (
        ("temperature", "°C", core),
        ("hbm_temperature", "°C", hbm),
        ("thermal_margin", "°C", margin(nvml, gpu, spared, _SLOWDOWN, core)),
        ("hbm_margin", "°C", memory_margin(nvml, gpu, spared, hbm)),
        ("power", "W", watts),
        ("power_instant", "W", instant),
        ("clock", "MHz", clock),
        ("utilisation", "%", busy),
        ("fan", "%", nvml.query("nvmlDeviceGetFanSpeed", gpu.handle)),
    )
    for series, unit, answer in readings:
        if _possible(series, answer):
            yield Sample(series, gpu.device.id, unit, float(answer.value), note=answer.note)
    held = throttle(nvml, gpu).value
    if held is not None:
        yield Sample("throttle", gpu.device.id, "state", state=held)


def _possible(series: str, answer: Answer) -> bool:
    if not usable(answer):
        return False
    lowest, highest = POSSIBLE.get(series, (-1e6, 1e6))
    return lowest < float(answer.value) < highest


def margin(nvml: Nvml, gpu: Gpu, spared: Answer, limit: _Limit, reading: Answer) -> Answer:
    """°C left to a limit: by the T.Limit margin (``spared``) and the limit's own offset, else by its threshold.

    T.Limit first, since new drivers report margins in place of ceilings. Some H100 drivers return margins of zero and
    less as garbage (docs/science.md#temperature-limits): such a one counts unless the threshold contradicts it.
    """
    offset = nvml.field(gpu.handle, limit.field)
    known = usable(spared) and usable(offset) and abs(spared.value) < MARGIN_C and abs(offset.value) < MARGIN_C
    by_margin = Answer(spared.value - offset.value) if known else None
    if by_margin is not None and spared.value > 0:
        return by_margin
    by_threshold = _by_threshold(nvml, gpu, limit, reading)
    if by_margin is None or not usable(by_threshold):
        return by_margin or by_threshold
    return by_margin if by_threshold.value - by_margin.value <= DISAGREE_C else by_threshold


def memory_margin(nvml: Nvml, gpu: Gpu, spared: Answer, hbm: Answer) -> Answer:
    """°C left of memory to its own threshold. T.Limit is the whole GPU's, so it stands in only where there is none."""
    own = _by_threshold(nvml, gpu, _MEMORY_MAX, hbm)
    if usable(own):
        return own
    of_gpu = margin(nvml, gpu, spared, _MEMORY_MAX, hbm)
    return Answer(of_gpu.value, note=OF_GPU) if usable(of_gpu) else of_gpu


def _by_threshold(nvml: Nvml, gpu: Gpu, limit: _Limit, reading: Answer) -> Answer:
    kind = nvml.constant(limit.threshold)
    threshold = nvml.query("nvmlDeviceGetTemperatureThreshold", gpu.handle, kind)
    if usable(threshold) and 0.0 < threshold.value < MARGIN_C and usable(reading):
        return Answer(threshold.value - reading.value)
    return Answer(note=threshold.note or reading.note or NOT_SUPPORTED)


def throttle(nvml: Nvml, gpu: Gpu) -> Answer:
    """All reasons that currently hold the clock down, as ``named``."""
    answer = nvml.query("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if answer.code == nvml.constant("NVML_ERROR_FUNCTION_NOT_FOUND"):
        # Its name until driver 535.
        answer = nvml.query("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    return answer.map(named)
