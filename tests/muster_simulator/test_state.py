"""One machine, several processes: load is seen by all, ends with its owner, and nests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_simulator import SimulatedHardware, create_machine, open_simulated
from muster_simulator.clock import SimulatedClock
from tests.muster_simulator.conftest import Build
from tests.muster_simulator.winding import reading

LOAD_AND_WAIT = """
import pathlib, sys, time
from muster_simulator import open_simulated
hardware = open_simulated(pathlib.Path(sys.argv[1]))
with hardware.loading([device for device in hardware.devices("gpu") if device.index == 2]):
    print("loading", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A machine, and another process that loads its gpu2."""
    directory = tmp_path / "node"
    create_machine(directory)
    child = subprocess.Popen([sys.executable, "-c", LOAD_AND_WAIT, str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        yield directory, child
    finally:
        child.kill()
        child.wait()


def _power(directory: Path, device: str) -> float:
    return float(reading(SimulatedHardware(directory), "power", device))


def test_load_of_one_process_is_seen_by_another(loader: tuple[Path, subprocess.Popen[str]]) -> None:
    directory, _ = loader
    time.sleep(0.3)
    hardware = SimulatedHardware(directory)
    assert reading(hardware, "power", "gpu2") > 600
    assert reading(hardware, "utilisation", "gpu2") == 100
    assert reading(hardware, "power", "gpu1") < 120
    assert reading(hardware, "temperature", "gpu2") > reading(hardware, "temperature", "gpu1") + 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_load_ends_with_its_process(loader: tuple[Path, subprocess.Popen[str]], number: int) -> None:
    directory, child = loader
    assert _power(directory, "gpu2") > 600
    child.send_signal(number)
    child.wait(10)
    assert _power(directory, "gpu2") < 120


def test_blocks_nest_and_overlap(build: Build) -> None:
    hardware = build()
    gpus = hardware.devices("gpu")
    with hardware.loading(gpus[:2]):
        with hardware.loading([gpus[0]]):
            assert reading(hardware, "utilisation", "gpu0") == 100
        hardware.clock.sleep(1.0)
        assert [reading(hardware, "utilisation", gpu.id) for gpu in gpus[:3]] == [100, 100, 0]
    hardware.clock.sleep(1.0)
    assert reading(hardware, "utilisation", "gpu0") == 0


def test_a_block_that_raises_ends_its_load(build: Build) -> None:
    hardware = build()
    with pytest.raises(KeyError), hardware.loading(hardware.devices("gpu")):
        raise KeyError
    hardware.clock.sleep(1.0)
    assert reading(hardware, "utilisation", "gpu0") == 0


def test_a_clock_that_starts_again_gives_no_time(build: Build) -> None:
    hardware = build()
    with hardware.loading(hardware.devices("gpu")):
        hardware.clock.sleep(300.0)
        before = reading(hardware, "temperature", "gpu0")
        hardware.clock.sleep(-1200.0)
        assert reading(hardware, "temperature", "gpu0") == before
        hardware.clock.sleep(10.0)
        assert reading(hardware, "utilisation", "gpu0") == 100


def test_the_clock_is_as_fast_as_it_says() -> None:
    rested: list[float] = []
    clock = SimulatedClock(100.0, tick=lambda: 7.0, rest=rested.append)
    assert clock.now() == 700.0
    clock.sleep(50.0)
    clock.sleep(-1.0)
    assert rested == [0.5]
    assert abs(SimulatedClock(1.0).wall() - time.time()) < 5


def test_usage_is_idle_without_foreign_processes(tmp_path: Path) -> None:
    create_machine(tmp_path / "node")
    hardware = open_simulated(tmp_path / "node")
    assert hardware.usage().gpu_processes == ()
    assert hardware.usage().cpu_count == 224
    tenant = {"gpu_processes": ["process 77 (train.py) uses gpu0"], "load_1min": 31.0}
    (tmp_path / "node" / "usage.json").write_text(json.dumps(tenant))
    (process,) = hardware.usage().gpu_processes
    assert "77" in process
    assert hardware.usage().load_1min == 31.0


def _rows(hardware: SimulatedHardware, slot: int) -> dict[str, float | None]:
    names = ("row_remap_pending", "row_remap_failed", "row_remap_corrected")
    return {fact.name: fact.value for fact in hardware.states() if fact.device == f"gpu{slot}" and fact.name in names}


def test_a_reset_replaces_the_rows_that_wait_and_nothing_forgets_that_they_failed(build: Build) -> None:
    hardware = build(1, {"kind": "row_remap_pending", "gpu": 3})
    assert _rows(hardware, 3) == {"row_remap_pending": 1.0, "row_remap_failed": 0.0, "row_remap_corrected": 1.0}
    assert hardware.simulate_reset(hardware.machine.gpus[3].serial) == ""
    assert _rows(hardware, 3) == {"row_remap_pending": 0.0, "row_remap_failed": 0.0, "row_remap_corrected": 1.0}
    again = SimulatedHardware(hardware._directory, hardware.clock)
    assert _rows(again, 3)["row_remap_pending"] == 0.0, "another process sees it too"


def test_a_reset_cannot_replace_a_row_without_a_spare_one(build: Build) -> None:
    hardware = build(1, {"kind": "row_remap_failed", "gpu": 3})
    hardware.simulate_reset(hardware.machine.gpus[3].serial)
    assert _rows(hardware, 3)["row_remap_failed"] == 1.0


def test_a_gpu_that_computes_or_does_not_answer_is_not_reset(build: Build) -> None:
    hardware = build(1, {"kind": "row_remap_pending", "gpu": 3}, {"kind": "missing_gpu", "gpu": 4})
    with hardware.loading([each for each in hardware.devices("gpu") if each.index == 3]):
        assert hardware.simulate_reset(hardware.machine.gpus[3].serial)
    assert hardware.simulate_reset(hardware.machine.gpus[4].serial)
    assert hardware.simulate_reset("another")
    assert _rows(hardware, 3)["row_remap_pending"] == 1.0
