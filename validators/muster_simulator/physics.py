"""Behaviour of a modelled GPU: the clock that it can hold, its power and its temperature.

Pure functions of the machine as built and its present temperatures; no clock, no files, nothing of any probe.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from muster_simulator.machine import Gpu, Machine
from muster_simulator.models import Model

# Dynamic power grows with the clock and the square of the voltage it needs; near the top of the curve that is about
# the power 2.5 of the clock.
_POWER_EXPONENT = 2.5
_LEAKAGE_DOUBLING_C = 40.0
# The driver's own thermal control takes this share of the clock per degree above the maximum operating temperature;
# it is too gentle to hold a GPU whose cooling is gone, which then meets the hardware's slowdown.
_SOFT_SLOWDOWN_PER_C = 0.03
_HARD_SLOWDOWN_SHARE = 0.5
_IDLE_HBM_SHARE = 0.3

THROTTLE_REASONS = ("sw_power_cap", "sw_thermal", "hw_thermal")
"""Throttle states that this model can be in, besides "none"."""


class Operating(NamedTuple):
    """A GPU's operating point: SM clock in MHz, board power in W, and the throttle state that limits the clock."""

    clock_mhz: float
    power_w: float
    throttle: str


def leakage(model: Model, gpu: Gpu, core_c: float) -> float:
    """Leakage power in W at a core temperature."""
    return gpu.leakage_w * math.pow(2.0, (core_c - model.rated_core_c) / _LEAKAGE_DOUBLING_C)


def operate(model: Model, gpu: Gpu, core_c: float, slowed: bool, busy: bool) -> Operating:
    """The clock governor: the fastest clock within power limit and temperatures, and what it takes.

    ``slowed`` is whether the hardware's own thermal slowdown is engaged (it has hysteresis, so it is state).
    """
    still = model.idle_power_w + leakage(model, gpu, core_c)
    if not busy:
        return Operating(model.idle_clock_mhz, still, "none")
    rated_w = model.power_limit_w - model.idle_power_w - model.leakage_w
    rated_mhz = model.gemm_clock_mhz * gpu.silicon
    headroom = max(1.0, gpu.power_limit_w - still)
    clock = rated_mhz * math.pow(headroom / rated_w, 1.0 / _POWER_EXPONENT)
    throttle = "sw_power_cap" if clock < model.boost_clock_mhz else "none"
    if gpu.clock_lock_mhz and gpu.clock_lock_mhz < clock:
        clock, throttle = gpu.clock_lock_mhz, "none"
    clock = min(clock, model.boost_clock_mhz)
    if slowed:
        clock, throttle = clock * _HARD_SLOWDOWN_SHARE, "hw_thermal"
    elif core_c > model.gpu_max_c:
        excess = core_c - model.gpu_max_c
        clock, throttle = clock * max(_HARD_SLOWDOWN_SHARE, 1.0 - _SOFT_SLOWDOWN_PER_C * excess), "sw_thermal"
    return Operating(clock, still + rated_w * math.pow(clock / rated_mhz, _POWER_EXPONENT), throttle)


def airflow(machine: Machine) -> float:
    """Share of the designed air flow that the fans which still turn can move (never zero: air rises)."""
    return max(0.1, sum(machine.fans) / len(machine.fans))


def settled_core(machine: Machine, gpu: Gpu, power_w: float, upstream_w: float) -> float:
    """Core temperature in °C that ``power_w`` leads to, in air behind a neighbour that warms it by ``upstream_w``."""
    if machine.model.liquid:
        return machine.coolant_c + gpu.thermal_resistance * power_w
    flow = airflow(machine)
    air_c = machine.inlet_c + machine.model.preheat_per_w * upstream_w / flow
    return air_c + gpu.thermal_resistance * power_w / math.pow(flow, 0.8)


def settled_hbm(gpu: Gpu, core_c: float, busy: bool) -> float:
    """HBM temperature in °C that a core temperature leads to."""
    return core_c + gpu.hbm_offset_c * (1.0 if busy else _IDLE_HBM_SHARE)


def towards(value: float, goal: float, seconds: float, time_constant: float) -> float:
    """First-order approach of ``value`` to ``goal``, exact for any step."""
    return goal + (value - goal) * math.exp(-seconds / time_constant)


def fan_duty(hottest_core_c: float) -> float:
    """Fan duty in percent that the chassis controller sets for its hottest GPU."""
    return min(100.0, max(30.0, 30.0 + 1.6 * (hottest_core_c - 45.0)))
