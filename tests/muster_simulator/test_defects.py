"""Effects of a defect: clocks, counters, log lines and losses, each only under the conditions that cause it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
from typing import Any

import pytest

from muster_node.hardware.host.kernel_events import device_events
from muster_simulator import SimulatedHardware
from muster_simulator.inventory import IS_LOST
from tests.muster_simulator.conftest import Build
from tests.muster_simulator.winding import fact, reading, soak

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
CUBE = (8192, 8192, 8192)


def _again(hardware: SimulatedHardware) -> SimulatedHardware:
    """The same machine, opened by a later process."""
    return SimulatedHardware(hardware._directory, hardware.clock)


def _count(hardware: SimulatedHardware, name: str, **labels: str) -> dict[str, Any]:
    return {f.device: f.value for f in hardware.counters() if f.name == name and labels.items() <= f.labels.items()}


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        ("ecc_storm", "ecc_corrected", {"scope": "volatile"}),
        ("pcie_errors", "pcie_replay", {}),
        ("nvlink_errors", "nvlink_errors", {"kind": "replay", "link": "0"}),
    ],
)
def test_counts_rise_under_load_only(build: Build, kind: str, name: str, labels: dict[str, str]) -> None:
    hardware = build(3, {"kind": kind, "gpu": 2, "per_hour": 7200.0})
    hardware.clock.sleep(600.0)
    assert set(_count(hardware, name, **labels).values()) == {0.0}
    soak(hardware, 300.0)
    counts = _count(hardware, name, **labels)
    assert counts.pop("gpu2") in (599.0, 600.0)
    assert max(counts.values()) < 5  # healthy parts have an error now and then


def test_a_noisy_port_counts_errors_at_rest(build: Build) -> None:
    hardware = build(3, {"kind": "nic_errors", "nic": 2, "per_hour": 3600.0})
    list(hardware.counters())
    hardware.clock.sleep(100.0)
    counts = _count(hardware, "ib_errors")
    assert (counts.pop("nic:ib2"), set(counts.values())) == (100.0, {0.0})


def test_the_log_dates_each_error(build: Build) -> None:
    """At 60 an hour, one a minute from when the load began; what is in the log stays as it is."""
    hardware = build(3, {"kind": "ecc", "gpu": 2, "per_hour": 60.0})
    hardware.clock.sleep(500.0)
    before = hardware.kernel_log() or []
    begun = hardware.clock.now()
    soak(hardware, 330.0)
    log = hardware.kernel_log() or []
    assert log[: len(before)] == before
    events = device_events(log)
    assert [event.code for event in events] == [48] * 5
    since = [event.at - events[0].at for event in events if event.at is not None and events[0].at is not None]
    assert since == pytest.approx([0.0, 60.0, 120.0, 180.0, 240.0], abs=0.01)
    with hardware._state.now() as state:
        assert events[0].at == pytest.approx(begun - state.booted + 60.0, abs=0.01)
    soak(hardware, 60.0)
    assert (hardware.kernel_log() or [])[: len(log)] == log


def test_a_storm_of_errors_keeps_the_newest_lines(build: Build) -> None:
    hardware = build(3, {"kind": "processor_hang", "gpu": 2, "per_hour": 36000.0})
    soak(hardware, 300.0)
    lines = hardware.kernel_log() or []
    assert len(lines) == 1002
    stamps = [float(re.findall(r"\d+\.\d+", line)[0]) for line in lines]
    assert stamps == sorted(stamps)
    with hardware._state.now() as state:
        assert stamps[-1] == pytest.approx(state.at - state.booted, abs=0.2)


@pytest.mark.needs_torch
@pytest.mark.parametrize("model", ["h100-sxm-8", "gb200-nvl72"])
def test_a_joint_that_opens_when_warm_loses_the_gpu_under_load(build: Build, model: str) -> None:
    hardware = build(3, {"kind": "gpu_lost", "gpu": 2}, model=model)
    gpus = hardware.devices("gpu")
    hardware.clock.sleep(900.0)
    assert fact(hardware, "gpu_uuid", "gpu2").startswith("GPU-")
    with hardware.loading(gpus):
        hardware.clock.sleep(120.0)
        compute = hardware.compute(gpus[2])
        with pytest.raises(RuntimeError, match="GPU is lost"), compute.timer():
            pass
        assert "gpu2" not in {sample.device for sample in hardware.telemetry()}
        assert reading(hardware, "power", "gpu1") > 500
    # An open handle reports the loss; new handles do not find the GPU; it stays lost when cold and idle.
    assert [device.index for device in hardware.devices("gpu")] == [device.index for device in gpus]
    facts = [f for f in (*hardware.inventory(), *hardware.counters()) if f.device == "gpu2"]
    assert facts
    assert all((f.value, f.text, f.note) == (None, None, IS_LOST) for f in facts)
    hardware.clock.sleep(3600.0)
    later = _again(hardware)
    assert 2 not in [device.index for device in later.devices("gpu")]
    assert not [f for f in later.inventory() if f.device == "gpu2"]
    events = device_events(later.kernel_log() or [])
    assert [(event.code, event.pci) for event in events] == [(79, "0000:4d:00")]


def test_a_lowered_power_limit_is_held_and_costs_clock(build: Build) -> None:
    hardware = build(3, {"kind": "power_limit", "gpu": 2, "share": 0.6})
    soak(hardware, 300.0)
    with hardware.loading(hardware.devices("gpu")):
        assert reading(hardware, "power", "gpu2") == pytest.approx(420.0, rel=0.03)
        assert reading(hardware, "clock", "gpu2") < 0.9 * reading(hardware, "clock", "gpu1")
        assert reading(hardware, "throttle", "gpu2") == "sw_power_cap"
    assert (fact(hardware, "power_limit", "gpu2"), fact(hardware, "power_limit_default", "gpu2")) == (420.0, 700.0)


def test_a_locked_clock_saves_power_and_is_no_throttle(build: Build) -> None:
    hardware = build(3, {"kind": "clock_lock", "gpu": 2, "share": 0.65})
    with hardware.loading(hardware.devices("gpu")):
        hardware.clock.sleep(10.0)
        assert reading(hardware, "clock", "gpu2") == 15 * (1053 // 15)
        assert reading(hardware, "throttle", "gpu2") == "none"
        assert reading(hardware, "power", "gpu2") < 0.6 * reading(hardware, "power", "gpu1")


def test_leakage_lowers_the_clock(build: Build) -> None:
    hardware = build(3, {"kind": "leaky", "gpu": 2})
    soak(hardware, 300.0)
    assert reading(hardware, "power", "gpu2") > 2 * reading(hardware, "power", "gpu1")
    with hardware.loading(hardware.devices("gpu")):
        assert reading(hardware, "clock", "gpu2") < 0.85 * reading(hardware, "clock", "gpu1")


def test_a_row_is_remapped_at_the_next_reset_if_its_bank_has_a_spare_one(build: Build) -> None:
    hardware = build(3, {"kind": "row_remap_pending", "gpu": 1}, {"kind": "row_remap_failed", "gpu": 2})
    pending = [fact(hardware, "row_remap_pending", f"gpu{slot}") for slot in range(3)]
    failed = [fact(hardware, "row_remap_failed", f"gpu{slot}") for slot in range(3)]
    assert (pending, failed) == ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    empty = [f.value for f in hardware.inventory() if f.name == "row_remap_banks" and f.labels["spare"] == "none"]
    assert empty == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_fans_and_neighbours_do_not_heat_a_liquid_cooled_gpu(build: Build) -> None:
    well, stopped = build(3, model="gb200-nvl72"), build(4, model="gb200-nvl72")
    stopped.machine = dataclasses.replace(well.machine, fans=[0.0, *well.machine.fans[1:]])
    stopped._state._machine = stopped.machine
    for hardware in (well, stopped):
        soak(hardware, 300.0)
    assert reading(stopped, "fan_speed", "fan0") == 0.0
    assert reading(stopped, "fan_speed", "fan1") > 1000.0
    assert reading(stopped, "temperature", "gpu3") == reading(well, "temperature", "gpu3")


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ["bfloat16", "float64", "int8"])
def test_a_wrong_unit_is_wrong_in_the_same_way_every_time(build: Build, name: str) -> None:
    hardware = build(5, {"kind": "wrong_unit", "gpu": 1})
    good, bad = (hardware.compute(hardware.devices("gpu")[slot]) for slot in (0, 1))
    a = torch.randint(-3, 4, (32, 32)).to(getattr(torch, name))
    clean, wrong, again = (compute.matmul(a, a, nominal=CUBE) for compute in (good, bad, bad))
    assert torch.equal(wrong.view(torch.int8), again.view(torch.int8))
    places = (clean != wrong).view(-1).nonzero().flatten().tolist()
    assert places
    assert all(place % hardware.machine.gpus[1].stuck_output_every == 0 for place in places)


@pytest.mark.needs_torch
@pytest.mark.parametrize("seed", range(4))
def test_a_dead_cell_holds_one_bit_of_one_word_of_large_buffers(build: Build, seed: int) -> None:
    hardware = build(seed, {"kind": "stuck_bit", "gpu": 1})
    gpu = hardware.machine.gpus[1]
    compute = hardware.compute(hardware.devices("gpu")[1])
    (words,) = compute.physical(10**9)
    for fill in (0, -1):
        buffer = torch.full((words,), fill, dtype=torch.int64)
        compute.touch(buffer, nominal_bytes=8 * 10**9)
        changed = (buffer != fill).nonzero().flatten().tolist()
        assert changed == ([gpu.stuck_cell_word % words] if (fill == 0) == (gpu.stuck_cell_level == 1) else [])
        flipped = [(int(buffer[at]) ^ fill) & (2**64 - 1) for at in changed]
        assert flipped == [1 << gpu.stuck_cell_bit] * len(changed)
    small = torch.zeros(64, dtype=torch.int64)
    assert not compute.touch(small, nominal_bytes=512).any()
