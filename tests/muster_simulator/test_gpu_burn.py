"""The burn beside its steady load: pulses, the host's load, and a GPU that is lost under load."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
import importlib
import importlib.util
from concurrent.futures import Future
from multiprocessing import synchronize
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.hardware import open_hardware
from muster_node.hardware.host.cpu_workers import WorkerFailed
from muster_node.hardware.seam import Clock, Compute, Device, Hardware, Sample, Timing, Worker
from muster_node.probe import Context, resolve_params
from muster_node.probes import gpu_burn
from muster_node.probes.gpu_burn import GpuBurn
from muster_node.workloads import host_load
from muster_node.workloads.common import GIB, MIB
from muster_node.workloads.host_load import burning, emit_burns
from muster_node.workloads.products import pulses
from muster_node.workloads.products.pulses import PATTERNS
from muster_simulator import create_machine, open_simulated
from muster_simulator.hardware import SimulatedHardware
from tests.muster_simulator.winding import WoundClock

pytestmark = pytest.mark.needs_torch
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

GPUS = [f"gpu{slot}" for slot in range(8)]
PULSES = {"seconds": 20.0, "pulse_s": 100.0, "pulse_ms": [20, 50]}


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measurement."""

    value: float | None
    note: str
    samples: int


def _burn(hardware: Hardware, scratch: Path, **params: Any) -> dict[tuple[str, str, str], Measured]:
    """(metric, device, first label's value or "") -> measurement."""
    measured: dict[tuple[str, str, str], Measured] = {}
    so_far: set[tuple[str, str, str]] = set()

    def emit(metric: str, device: str, **fields: Any) -> None:
        assert metric in GpuBurn.metrics
        variant = next(iter((fields.get("labels") or {}).values()), "")
        if fields.get("so_far"):
            so_far.add((metric, device, variant))
            return
        assert metric != "pulse_mismatches" or not fields["value"] or (metric, device, variant) in so_far
        measured[metric, device, variant] = Measured(
            fields.get("value"), fields.get("note", ""), fields.get("samples", 1)
        )

    GpuBurn().run(Context(hardware, resolve_params(GpuBurn, params), 5, scratch, emit, lambda sentence: None))
    return measured


def _machine(tmp_path: Path, *faults: dict[str, Any]) -> Hardware:
    create_machine(tmp_path / "node", seed=4, faults=faults)
    return open_simulated(tmp_path / "node")


def test_both_patterns_pulse_every_gpu_and_a_healthy_one_computes_the_same_throughout(tmp_path: Path) -> None:
    measured = _burn(_machine(tmp_path), tmp_path, **PULSES)
    for pattern in PATTERNS:
        for gpu in GPUS:
            assert measured["pulse_mismatches", gpu, pattern].samples > 1
            assert measured["pulse_mismatches", gpu, pattern].value == 0
            assert measured["pulse_share", gpu, pattern].value is None  # its seconds pass faster than its host works
    assert {measured["gpu_lost", gpu, ""].value for gpu in GPUS} == {0.0}


def test_the_share_of_the_bursts_that_came_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedHardware, "simulated", False)
    measured = _burn(_machine(tmp_path), tmp_path, **PULSES)
    places = 50 / 0.04 + 50 / 0.1
    for pattern in PATTERNS:
        share = measured["pulse_share", "gpu0", pattern].value
        assert share == pytest.approx(100 * measured["pulse_mismatches", "gpu0", pattern].samples / places)


def test_without_seconds_for_it_nothing_pulses(tmp_path: Path) -> None:
    measured = _burn(_machine(tmp_path), tmp_path, seconds=5.0)
    assert not [metric for metric, *_ in measured if metric.startswith("pulse")]


def test_a_marginal_lane_shows_in_the_pulses(tmp_path: Path) -> None:
    measured = _burn(_machine(tmp_path, {"kind": "sdc", "gpu": 2}), tmp_path, **PULSES)
    wrong = {gpu for pattern in PATTERNS for gpu in GPUS if measured["pulse_mismatches", gpu, pattern].value}
    assert wrong == {"gpu2"}


def _gpu6_breaks_off(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the devices that have failed so far."""
    real = pulses.repeated
    failed: set[str] = set()

    def repeated(*given: Any) -> pulses.Work:
        if given[-2].device.id == "gpu6":
            failed.add("gpu6")
            raise RuntimeError("CUDA error: GPU is lost\nCompile with TORCH_USE_CUDA_DSA")
        return real(*given)

    monkeypatch.setattr(pulses, "repeated", repeated)
    return failed


def test_a_gpu_lost_in_the_pulses_is_reported_with_its_last_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = _machine(tmp_path)
    telemetry, failed = hardware.telemetry, _gpu6_breaks_off(monkeypatch)

    def silent_once_failed() -> list[Sample]:
        return [sample for sample in telemetry() if sample.device not in failed]

    monkeypatch.setattr(hardware, "telemetry", silent_once_failed)
    measured = _burn(hardware, tmp_path, **PULSES)
    lost = measured["gpu_lost", "gpu6", ""]
    assert lost.value == 1.0
    assert lost.note.startswith("lost under pulses in phase: CUDA error: GPU is lost; last seen at ")
    assert measured["pulse_mismatches", "gpu6", "in phase"].value is None
    assert ("pulse_mismatches", "gpu6", "anti-phase") not in measured
    assert measured["pulse_mismatches", "gpu5", "anti-phase"].samples
    assert measured["burn_rate", "gpu6", ""].value


def test_a_gpu_that_fails_and_still_answers_is_not_reported_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example memory ran out: nothing was measured, and no GPU fails."""
    _gpu6_breaks_off(monkeypatch)
    lost = _burn(_machine(tmp_path), tmp_path, **PULSES)["gpu_lost", "gpu6", ""]
    assert lost.value is None
    assert "GPU is lost" in lost.note


class Recording(Compute):
    """A device that notes when it is given each product; every product takes it ``takes`` seconds of the clock."""

    def __init__(self, device: Device, clock: Clock, takes: float) -> None:
        self.device, self.torch_device = device, torch.device("cpu")
        self.given: list[float] = []
        self._clock, self._takes = clock, takes

    def physical(self, *shape: int) -> tuple[int, ...]:
        raise NotImplementedError

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        self.given.append(round(self._clock.now(), 6))
        self._clock.sleep(self._takes)
        return torch.zeros(1)

    def copy(self, target: Any, source: Any, *, nominal_bytes: int) -> None:
        raise NotImplementedError

    def touch(self, tensor: Any, *, nominal_bytes: int) -> Any:
        raise NotImplementedError

    def timer(self) -> Any:
        return contextlib.nullcontext(Timing(seconds=0.005))

    def free_memory(self) -> int:
        raise NotImplementedError

    def supports(self, dtype: str) -> bool:
        return True


def _bursts(pattern: str, slot: int, widths: list[int], takes: float = 0.0) -> list[tuple[float, int]]:
    """(begin in ms after the first, products) of each burst of 400 ms of pulses on one GPU."""
    clock, device = WoundClock(), Device(f"gpu{slot}", "gpu", slot)
    compute = Recording(device, clock, takes)
    hardware = SimpleNamespace(clock=clock, compute=lambda _: compute)
    params = resolve_params(GpuBurn, {"pulse_s": 0.4, "pulse_ms": widths})
    context = Context(hardware, params, 1, Path(), lambda *_: None, lambda _: None)  # type: ignore[arg-type]
    pulsing = pulses.Pulsing(
        context, "bf16", pattern, functools.partial(pulses.repeated, context, lambda _: [0, 0], pattern)
    )
    pulsed = pulsing(Worker(device, 0, 1, lambda: None))
    assert pulsed is not None
    begins = collections.Counter(compute.given[4:])  # the first four lay out and size
    assert pulsed.bursts == len(begins) or takes
    start = 1000.0 + 4 * takes + 0.05  # after layout, sizing and the start signal
    return [(round(1000 * (begin - start), 3), products) for begin, products in begins.items()]


def test_bursts_are_as_wide_as_asked_and_rest_as_long() -> None:
    assert _bursts("in phase", 0, [20, 50]) == [
        (0, 4), (40, 4), (80, 4), (120, 4), (160, 4), (200, 10), (300, 10)
    ]  # fmt: skip


def test_in_anti_phase_every_other_gpu_bursts_while_the_rest_pause() -> None:
    first = _bursts("in phase", 0, [50])
    assert _bursts("in phase", 1, [50]) == _bursts("anti-phase", 2, [50]) == first
    assert [begin for begin, _ in _bursts("anti-phase", 1, [50])] == [50 + begin for begin, _ in first]


def test_a_late_burst_is_left_out_and_no_other_moves() -> None:
    begins = [begin for begin, _ in _bursts("in phase", 0, [20], takes=0.03)][::4]
    assert begins == [0, 120, 240, 360]


def test_without_cores_to_spare_the_host_is_not_loaded(tmp_path: Path) -> None:
    measured = _burn(_machine(tmp_path), tmp_path, seconds=5.0)
    why = "there is no core to spare that could be loaded"  # CPU work is not modelled
    assert (
        measured["memory_burn_mismatches", "memory", ""]
        == measured["host_burn_rate", "node", ""]
        == measured["host_product_mismatches", "node", ""]
        == Measured(None, why, 1)
    )
    assert measured["host_cores", "node", ""].value is None


def test_a_core_that_dies_under_load_is_no_note(tmp_path: Path) -> None:
    burns: Any = Future()
    burns.set_exception(WorkerFailed("the worker on cpu3 failed: it died without a message"))
    with pytest.raises(WorkerFailed):
        emit_burns(Context(open_hardware(), {}, 1, tmp_path, print, print), burns)


def test_each_core_is_loaded_in_some_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[list[Device]] = []
    monkeypatch.setattr(gpu_burn.host_load, "burning", lambda context, torch, cores, *limits: loaded.append(cores))
    cores, gpus = [Device(f"cpu{n}", "cpu", n) for n in range(6)], [Device(f"gpu{n}", "gpu", n) for n in range(4)]
    hardware: Any = SimpleNamespace(devices=lambda kind: cores)
    counted: list[Any] = []
    for seed in range(6):
        params = {"host_gib": 1.0, "seconds": 1.0, "pulse_s": 0.0}
        context = Context(hardware, params, seed, tmp_path, lambda *_, **fields: counted.append(fields["value"]), print)
        gpu_burn._host_load(context, torch, gpus)
    assert counted == [6] * 6
    assert {len(each) for each in loaded} == {2}
    assert {core for each in loaded for core in each} == set(cores)


def _beside(hardware: Hardware, scratch: Path, memory_gib: float) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        measured[metric] = Measured(fields.get("value"), fields.get("note", ""), fields.get("samples", 1))

    context = Context(hardware, {}, 1, scratch, emit, lambda _: None)
    with burning(context, torch, hardware.devices("core")[:1], memory_gib, 60.0) as burns:
        assert burns is not None
        assert not burns.done() or burns.exception()
        hardware.clock.sleep(0.5)
    emit_burns(context, burns)
    return measured


def test_cores_work_and_check_memory_while_the_gpus_do_and_stop_with_them(tmp_path: Path) -> None:
    hardware = open_hardware()
    begun = hardware.clock.now()
    measured = _beside(hardware, tmp_path, 0.01)
    assert hardware.clock.now() - begun < 30
    assert measured["host_burn_rate"].value
    assert measured["memory_burn_mismatches"].value == 0
    assert measured["memory_burn_mismatches"].samples >= 1


def test_cores_work_where_there_is_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a full /dev/shm: no semaphore can be made, and none is needed."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(synchronize.SemLock, "__init__", full)
    assert _beside(open_hardware(), tmp_path, 0.01)["host_burn_rate"].value


def test_caches_hold_no_memory_that_burns_with_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_load, "beyond_caches", lambda hardware: 32 * MIB)
    assert _beside(open_hardware(), tmp_path, 0.01)["memory_burn_tested"].value == 32 * MIB / GIB


def test_too_little_host_memory_is_reported_and_leaves_the_gpus_unaffected(tmp_path: Path) -> None:
    measured = _beside(open_hardware(), tmp_path, 10**6)
    assert measured["memory_burn_mismatches"].value is None
    assert "1000000.0 GiB" in measured["memory_burn_mismatches"].note
