"""The model is sane: monotone where physics is, healthy machines stay healthy, defects show where they must."""

from __future__ import annotations

import statistics

import pytest

from muster_simulator import physics
from muster_simulator.machine import draw_machine
from tests.muster_simulator.conftest import Build
from tests.muster_simulator.winding import fact, reading, soak, throttled

HARMFUL = ("sw_thermal", "hw_thermal")


def test_a_hotter_core_leaks_more_and_runs_slower() -> None:
    machine = draw_machine("node", "h100-sxm-8", 1)
    cores = [30.0, 45.0, 60.0, 75.0, 86.0, 88.0, 95.0]
    points = [physics.operate(machine.model, machine.gpus[0], core, False, True) for core in cores]
    clocks = [point.clock_mhz for point in points]
    assert clocks == sorted(clocks, reverse=True)
    assert len(set(clocks)) == len(clocks)
    assert all(point.power_w <= machine.model.power_limit_w + 0.01 for point in points)
    assert [point.throttle for point in points] == ["sw_power_cap"] * 5 + ["sw_thermal"] * 2
    idle = [physics.operate(machine.model, machine.gpus[0], core, False, False).power_w for core in cores]
    assert idle == sorted(idle)


def test_hardware_slowdown_takes_half_the_clock() -> None:
    machine = draw_machine("node", "h100-sxm-8", 1)
    free = physics.operate(machine.model, machine.gpus[0], 85.0, False, True)
    slowed = physics.operate(machine.model, machine.gpus[0], 85.0, True, True)
    assert slowed.throttle == "hw_thermal"
    assert slowed.clock_mhz == pytest.approx(free.clock_mhz / 2)
    assert slowed.power_w < 0.5 * free.power_w


def test_twenty_healthy_nodes_run_within_their_limits(build: Build) -> None:
    hottest, clocks = [], []
    for seed in range(20):
        hardware = build(seed)
        soak(hardware, 900.0)
        with hardware.loading(hardware.devices("gpu")):
            cores = [reading(hardware, "temperature", device.id) for device in hardware.devices("gpu")]
            hottest.append(max(cores))
            assert min(cores) >= 50
            assert max(cores) <= 75
            clocks += [reading(hardware, "clock", device.id) for device in hardware.devices("gpu")]
            assert max(reading(hardware, "hbm_temperature", device.id) for device in hardware.devices("gpu")) < 90
        for device in hardware.devices("gpu"):
            assert throttled(hardware, device.id)["sw_power_cap"] == pytest.approx(900.0)
            assert all(throttled(hardware, device.id)[reason] == 0.0 for reason in HARMFUL)
    assert len(set(hottest)) > 3
    assert 0.010 < statistics.pstdev(clocks) / statistics.mean(clocks) < 0.025


def test_one_long_step_is_many_short_ones(build: Build) -> None:
    one, many = build(5), build(6)
    create = {"hostname": "twin", "model_name": "h100-sxm-8", "seed": 5}
    one.machine = many.machine = draw_machine(**create)
    one._state._machine = many._state._machine = one.machine
    with one.loading(one.devices("gpu")), many.loading(many.devices("gpu")):
        one.clock.sleep(200.0)
        for _ in range(400):
            many.clock.sleep(0.5)
            many.reading(many.devices("gpu")[0])
        for device in one.devices("gpu"):
            first, second = one.reading(device), many.reading(device)
            assert first.megacycles == pytest.approx(second.megacycles, rel=1e-3)
            assert first.joules == pytest.approx(second.joules, rel=1e-3)
            assert reading(one, "temperature", device.id) == pytest.approx(
                reading(many, "temperature", device.id), abs=1
            )


@pytest.mark.parametrize("seed", range(5))
def test_dried_paste_throttles_in_hardware_and_shows_in_resistance(build: Build, seed: int) -> None:
    hardware = build(seed, {"kind": "throttle", "gpu": 3})
    gpus = hardware.devices("gpu")
    with hardware.loading(gpus):
        start = {gpu.id: hardware.reading(gpu) for gpu in gpus}
        hardware.clock.sleep(600.0)
        end = {gpu.id: hardware.reading(gpu) for gpu in gpus}
    clocks = {name: (end[name].megacycles - start[name].megacycles) / 600.0 for name in end}
    power = {name: (end[name].joules - start[name].joules) / 600.0 for name in end}
    assert throttled(hardware, "gpu3")["hw_thermal"] > 60
    assert clocks["gpu3"] < 0.85 * statistics.median(clocks.values())
    assert all(throttled(hardware, gpu.id)["hw_thermal"] == 0 for gpu in gpus if gpu.index != 3)
    inlet = reading(hardware, "inlet_temperature", "node")
    resistance = {gpu.id: (reading(hardware, "temperature", gpu.id) - inlet) / power[gpu.id] for gpu in gpus}
    assert resistance["gpu3"] > 1.5 * max(value for name, value in resistance.items() if name != "gpu3")
    assert reading(hardware, "fan", "node") >= 90


def test_neighbours_heat_each_other(build: Build) -> None:
    alone, together = build(1), build(2)
    together.machine = alone.machine
    together._state._machine = alone.machine
    rear = alone.devices("gpu")[6]
    soak(alone, 600.0, [rear])
    soak(together, 600.0)
    assert reading(together, "temperature", rear.id) > reading(alone, "temperature", rear.id)


def test_a_stopped_fan_and_a_hot_inlet_heat_every_gpu(build: Build) -> None:
    temperatures = {}
    for number, faults in enumerate([[], [{"kind": "fan_fail"}], [{"kind": "hot_inlet", "celsius": 40.0}]]):
        hardware = build(number, *faults)
        soak(hardware, 600.0)
        temperatures[number] = [reading(hardware, "temperature", gpu.id) for gpu in hardware.devices("gpu")]
    assert statistics.mean(temperatures[1]) > statistics.mean(temperatures[0]) + 3
    assert statistics.mean(temperatures[2]) > statistics.mean(temperatures[0]) + 10


def test_failing_memory_counts_and_logs_under_load_only(build: Build) -> None:
    hardware = build(1, {"kind": "ecc", "gpu": 2, "per_hour": 60.0})
    hardware.clock.sleep(3600.0)
    assert fact(hardware, "xid_count", "node") == 0
    soak(hardware, 600.0)
    counts = {f.device: f.value for f in hardware.counters() if f.name == "ecc_uncorrected"}
    assert counts.pop("gpu2") in (9.0, 10.0)
    assert set(counts.values()) == {0.0}
    assert fact(hardware, "row_remap_pending", "gpu2") == 1
    log = hardware.kernel_log() or []
    assert len([line for line in log if "NVRM: Xid (PCI:0000:" in line]) == fact(hardware, "xid_count", "node") > 0


def test_what_intake_detects_of_each_defect(build: Build) -> None:
    hardware = build(
        1,
        {"kind": "missing_gpu", "gpu": 4},
        {"kind": "pcie_width", "gpu": 1},
        {"kind": "nvlink_down", "gpu": 2},
    )
    assert [device.index for device in hardware.devices("gpu")] == [0, 1, 2, 3, 5, 6, 7]
    assert fact(hardware, "gpu_count", "node") == 7
    assert not [f for f in hardware.inventory() if f.device == "gpu4"]
    assert (fact(hardware, "pcie_width", "gpu1"), fact(hardware, "pcie_width", "gpu0")) == (8, 16)
    assert (fact(hardware, "nvlink_active", "gpu2"), fact(hardware, "nvlink_active", "gpu0")) == (17, 18)
