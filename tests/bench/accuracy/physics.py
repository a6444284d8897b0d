"""From physical state to readings: clock, power and temperature settle against each other, then sensors add noise.

Dynamic power grows with the clock to the power 2.5, leakage doubles every 30 °C; that and the share of leakage are
this generator's choice of something plausible, such that 7 °C of inlet cost about 1.5 % of clock. Limits of temperature
are 700 W Hopper's: 87 °C in operation, 89 °C slowdown (NVML and DCGM thresholds).

Run-to-run noise is 0.3–0.5 % of a figure: 0.5 % in rates under load, 0.3 % in rates by clock and in copies.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.bench.accuracy.devices import FP8_GAIN, GPUS, Devices, Places
from tests.bench.accuracy.draws import Array, run_noise
from tests.bench.accuracy.metrics import METRICS, PROBES

Readings = dict[str, Array]
"""Key of a metric → nodes × GPUs; NaN where a GPU does not answer."""

GEMM_CLOCK_MHZ = 1620.0
LIMIT_W, IDLE_W, LEAKAGE_W = 700.0, 38.0, 120.0
DYNAMIC_W = LIMIT_W - IDLE_W - LEAKAGE_W
POWER_EXPONENT = 2.5
RATED_C, LEAKAGE_DOUBLING_C = 62.0, 30.0
PREHEAT_C_PER_W = 0.003
FLOW_EXPONENT = 0.8
MAX_C, SLOWDOWN_C = 87.0, 89.0
SOFT_PER_C, HARD_SHARE = 0.03, 0.5
WARM_UP_S = 40.0
HOTTEST_C, BISECTIONS = 200.0, 20

# TFLOPS per GHz: 0.94 of the best published rates (stas00/ml-engineering bf16 794.5; Azure fp8 8192³ 1290) at 1.62 GHz.
PER_CLOCK = {"bf16": 461.0, "fp8": 749.0}
HBM_GB_S = {"copy": 2900.0, "triad": 2970.0}
PCIE_GB_S = {"h2d": 51.0, "d2h": 52.0}
NVLINK_GB_S = 21.25  # payload of one: 0.8 of the line's 26.562
HBM_GIB = 72.0
PRODUCTS_PER_S = 640.0
EXACT_BF16_S = 10.0

CLOCK_NOISE, WORK_NOISE, COPY_NOISE, POWER_NOISE, RESISTANCE_NOISE = 0.004, 0.003, 0.003, 0.003, 0.004
SENSOR_C = 0.3

_SECONDS = {probe.name: probe.seconds for probe in PROBES}


@dataclasses.dataclass(frozen=True)
class Settled:
    """Clock in MHz, power in W and core temperature in °C at the end of a soak; ``free_c`` without any throttling."""

    clock_mhz: Array
    power_w: Array
    core_c: Array
    free_c: Array


def settle(devices: Devices, inlet_c: Array) -> Settled:
    """Where governor and cooling meet. ``inlet_c`` by node.

    Slots 4–7 stand behind slots 0–3, in the air that those have warmed, so the front settles first.
    """
    inlet = np.repeat(inlet_c[:, None], GPUS // 2, axis=1)
    front = _settle_row(_columns(devices, slice(None, GPUS // 2)), inlet)
    rear_devices = _columns(devices, slice(GPUS // 2, None))
    rear = _settle_row(rear_devices, inlet + PREHEAT_C_PER_W * front.power_w / rear_devices.airflow)
    pairs = zip(dataclasses.astuple(front), dataclasses.astuple(rear), strict=True)
    return Settled(*(np.concatenate(pair, axis=1) for pair in pairs))


def _columns(devices: Devices, columns: slice) -> Devices:
    fields = dataclasses.fields(devices)
    return Devices(**{field.name: getattr(devices, field.name)[:, columns] for field in fields})


def _settle_row(devices: Devices, air_c: Array) -> Settled:
    """By bisection: a warmer core draws more leakage and is allowed less clock, so there is one temperature."""
    per_w = devices.resistance / devices.airflow**FLOW_EXPONENT
    low, high = air_c.copy(), np.full(air_c.shape, HOTTEST_C)
    for _ in range(BISECTIONS):
        core = (low + high) / 2.0
        too_cold = air_c + per_w * _governor(devices, core)[1] > core
        low, high = np.where(too_cold, core, low), np.where(too_cold, high, core)
    core = (low + high) / 2.0
    clock, power = _governor(devices, core)
    return Settled(clock, power, core, np.where(core > MAX_C, air_c + per_w * LIMIT_W * devices.power_share, core))


def _governor(devices: Devices, core_c: Array) -> tuple[Array, Array]:
    """The fastest clock within power limit, cap and temperature, and the power that it takes."""
    still = IDLE_W + devices.leakage_w * np.exp2((core_c - RATED_C) / LEAKAGE_DOUBLING_C)
    rated = GEMM_CLOCK_MHZ * devices.silicon
    headroom = np.maximum(LIMIT_W * devices.power_share - still, 1.0)
    clock = np.minimum(rated * (headroom / DYNAMIC_W) ** (1.0 / POWER_EXPONENT), devices.clock_cap_mhz)
    clock *= np.clip(1.0 - SOFT_PER_C * (core_c - MAX_C), HARD_SHARE, 1.0)
    clock *= 1.0 - (1.0 - HARD_SHARE) * devices.brake
    return clock, still + DYNAMIC_W * (clock / rated) ** POWER_EXPONENT


def measure(rng: np.random.Generator, devices: Devices, places: Places, inlet_c: Array) -> Readings:
    """One visit: every metric of every GPU."""
    settled = settle(devices, inlet_c)
    readings = {
        **_rates(rng, devices, places, settled),
        **_copies(rng, devices),
        **_heat(rng, devices, settled, inlet_c),
        **_counts(rng, devices),
    }
    absent = devices.present == 0.0
    for values in readings.values():
        values[absent] = np.nan
    return {metric.key: readings[metric.key] for metric in METRICS}


def _rates(rng: np.random.Generator, devices: Devices, places: Places, settled: Settled) -> Readings:
    shape = devices.present.shape
    newer = np.where(places.driver == 1, FP8_GAIN, 1.0)[:, None]
    work = {
        "bf16": PER_CLOCK["bf16"] * devices.lanes_bf16,
        "fp8": PER_CLOCK["fp8"] * devices.lanes_fp8 * newer,
    }
    readings: Readings = {}
    for dtype, per_clock in work.items():
        clock = settled.clock_mhz * (1.0 + run_noise(rng, CLOCK_NOISE, shape))
        by_clock = per_clock * (1.0 + run_noise(rng, WORK_NOISE, shape))
        readings[f"gemm_rate_per_clock[dtype={dtype}]"] = by_clock
        readings[f"gemm_rate[dtype={dtype}]"] = by_clock * clock / 1000.0
        # A mean of whole degrees over minutes.
        readings[f"gemm_temperature[dtype={dtype}]"] = settled.core_c + rng.normal(0.0, SENSOR_C, shape)
        if dtype == "bf16":
            readings["gemm_clock[dtype=bf16]"] = clock
    clock = settled.clock_mhz * (1.0 + run_noise(rng, CLOCK_NOISE, shape))
    readings["burn_rate_per_clock"] = work["bf16"] * (1.0 + run_noise(rng, WORK_NOISE, shape))
    readings["burn_rate"] = readings["burn_rate_per_clock"] * clock / 1000.0
    return readings


def _copies(rng: np.random.Generator, devices: Devices) -> Readings:
    shape = devices.present.shape
    readings: Readings = {}
    for op, rate in HBM_GB_S.items():
        readings[f"memory_bandwidth[op={op}]"] = rate * devices.hbm * (1.0 + run_noise(rng, COPY_NOISE, shape))
    lanes = devices.pcie_width / 16.0 * np.exp2(devices.pcie_generation - 5.0)
    link = lanes * devices.pcie * (1.0 - devices.pcie_lost)
    for direction, rate in PCIE_GB_S.items():
        noise = 1.0 + run_noise(rng, COPY_NOISE, shape)
        readings[f"pcie_bandwidth[direction={direction}]"] = rate * link * noise
    # By the median over its seven peers, so that one bad GPU does not slow the figures of the others.
    links = NVLINK_GB_S * devices.nvlinks * devices.nvlink * (1.0 - devices.nvlink_lost)
    readings["peer_bandwidth"] = links * (1.0 + run_noise(rng, COPY_NOISE, shape))
    return readings


def _heat(rng: np.random.Generator, devices: Devices, settled: Settled, inlet_c: Array) -> Readings:
    shape = devices.present.shape
    soak = _SECONDS["thermal_soak"]
    hottest = settled.core_c + np.abs(rng.normal(0.0, SENSOR_C, shape))
    resistance = (settled.core_c - inlet_c[:, None]) / settled.power_w
    # First-order warming from the inlet: whatever would settle above a limit spends the rest of the soak at it.
    throttled: Readings = {}
    for reason, limit in (("sw_thermal", MAX_C), ("hw_thermal", SLOWDOWN_C)):
        rise, allowed = settled.free_c - inlet_c[:, None], limit - inlet_c[:, None]
        reached = settled.core_c > limit
        left = WARM_UP_S * np.log(np.maximum(rise / np.maximum(rise - allowed, 1e-9), 1.0))
        throttled[reason] = np.asarray(np.where(reached, np.maximum(soak - left, 1.0), 0.0))
    return {
        "power_share": 100.0 / LIMIT_W * settled.power_w * (1.0 + run_noise(rng, POWER_NOISE, shape)),
        "temperature_max": np.rint(hottest),
        "hbm_temperature_max": np.rint(hottest + devices.hbm_offset_c),
        "thermal_resistance": resistance * (1.0 + run_noise(rng, RESISTANCE_NOISE, shape)),
        "throttle_time[reason=hw_power_brake]": np.asarray(soak * devices.brake),
        **{f"throttle_time[reason={reason}]": seconds for reason, seconds in throttled.items()},
    }


def _counts(rng: np.random.Generator, devices: Devices) -> Readings:
    burn_h = _SECONDS["gpu_burn"] / 3600.0
    wrong = rng.poisson(devices.upsets * PRODUCTS_PER_S * EXACT_BF16_S)
    return {
        "pcie_width": devices.pcie_width.copy(),
        "pcie_generation_max": devices.pcie_generation.copy(),
        "nvlink_active": devices.nvlinks.copy(),
        "row_remap_pending": devices.remap_pending.copy(),
        "ecc_uncorrected_delta": rng.poisson(devices.uncorrectable * burn_h).astype(np.float64),
        # One defective unit spoils four strided elements (AEGIS, OSDI'26).
        "gemm_mismatches[dtype=bf16]": 4.0 * wrong,
        "memory_mismatches[pattern=random]": rng.poisson(devices.flips * HBM_GIB).astype(np.float64),
    }
