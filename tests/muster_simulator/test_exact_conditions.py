"""Exact products cold, soaked and pulsed: each condition matches its name, and a wrong bit is found in each."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_node.hardware.seam import Device, RealClock, Timing
from muster_node.probe import Context, resolve_params
from muster_node.probes import exact_gemm
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.tools.run import gpu_temperatures
from muster_node.workloads.products.exact_conditions import pulsed
from muster_node.workloads.products.exact_conditions import soak as soak_work
from muster_node.workloads.products.exact_vector import Finding, Vector, heaviest
from muster_node.workloads.products.pulses import PATTERNS
from muster_node.workloads.products.timed import BUSY_BLOCK_S
from muster_simulator import SimulatedHardware, create_machine
from muster_simulator.compute import SimulatedCompute
from tests.muster_simulator.conftest import Build
from tests.muster_simulator.winding import reading, soak

pytestmark = pytest.mark.needs_torch

GPUS = [f"gpu{slot}" for slot in range(8)]
SHAPE = [4096, 4096, 16384]
PULSES = {"dtypes": ["bf16"], "shapes": [SHAPE], "rounds": 1, "modes": ["together"], "pulse_s": 1.0}


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measurement."""

    metric: str
    device: str
    labels: dict[str, str]
    value: float | None
    note: str


def _context(hardware: SimulatedHardware, scratch: Path, measured: list[Measured], **params: Any) -> Context:
    def emit(metric: str, device: str, **fields: Any) -> None:
        assert metric in ExactGemm.metrics
        labels = fields.get("labels") or {}
        # A figure replaces what was sent so far.
        measured[:] = [one for one in measured if (one.metric, one.device, one.labels) != (metric, device, labels)]
        measured.append(Measured(metric, device, labels, fields.get("value"), fields.get("note", "")))

    return Context(hardware, resolve_params(ExactGemm, params), 5, scratch, emit, lambda sentence: None)


def _run(hardware: SimulatedHardware, scratch: Path, **params: Any) -> list[Measured]:
    measured: list[Measured] = []
    ExactGemm().run(_context(hardware, scratch, measured, **params))
    return measured


@pytest.fixture
def steady(tmp_path: Path) -> SimulatedHardware:
    """A machine whose clock is the host's: no GPU's waiting makes another one late."""
    create_machine(tmp_path / "node", seed=4)
    return SimulatedHardware(tmp_path / "node", RealClock())


def _values(measured: list[Measured], metric: str, **labels: str) -> dict[str, float | None]:
    return {one.device: one.value for one in measured if one.metric == metric and labels.items() <= one.labels.items()}


def _wrong_in_bursts(
    monkeypatch: pytest.MonkeyPatch, gpu: str, wrong: Callable[[int], bool]
) -> collections.Counter[str]:
    """One bit of a GPU's products is wrong while it pulses, the same each time.

    ``wrong``: whether the product with this number in its burst is wrong.

    Returns how many products each GPU gave in its bursts, the reruns of wrong ones not counted.
    """
    burst, given = threading.local(), collections.Counter[str]()
    check_burst, is_wrong, matmul = Vector.check_burst, Vector.is_wrong, SimulatedCompute.matmul

    def bursting(self: Vector, *args: Any) -> None:
        burst.products = 0
        try:
            check_burst(self, *args)
        finally:
            del burst.products

    def resting(self: Vector) -> bool:
        products = vars(burst).pop("products", None)
        try:
            return is_wrong(self)
        finally:
            if products is not None:
                burst.products = products

    def multiply(self: SimulatedCompute, *args: Any, **how: Any) -> Any:
        product = matmul(self, *args, **how)
        if hasattr(burst, "products"):
            given[self.device.id] += 1
            burst.products += 1
            if self.device.id == gpu and wrong(burst.products):
                product.view(-1).view(self._torch.int32)[7] ^= 1
        return product

    monkeypatch.setattr(Vector, "check_burst", bursting)
    monkeypatch.setattr(Vector, "is_wrong", resting)
    monkeypatch.setattr(SimulatedCompute, "matmul", multiply)
    return given


def test_a_healthy_node_passes_its_pulses_and_every_element_of_them_is_checked(
    steady: SimulatedHardware, tmp_path: Path
) -> None:
    measured = _run(steady, tmp_path, **PULSES)
    assert _values(measured, "gemm_mismatches") == dict.fromkeys(GPUS, 0)
    assert _values(measured, "gemm_checked_fraction") == dict.fromkeys(GPUS, 100.0)
    for pattern in PATTERNS:
        assert all(_values(measured, "gemm_pulses", pattern=pattern).values())


def test_a_repeatable_wrong_bit_that_only_pulses_bring_out_is_found(
    steady: SimulatedHardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products of all bursts are wrong alike, so that comparing them with one another shows nothing."""
    given = _wrong_in_bursts(monkeypatch, "gpu2", lambda product: True)
    measured = _run(steady, tmp_path, **PULSES)
    assert _values(measured, "gemm_mismatches") == {**dict.fromkeys(GPUS, 0), "gpu2": given["gpu2"]}
    (note,) = (one.note for one in measured if (one.metric, one.device) == ("gemm_mismatches", "gpu2"))
    assert "in phase" in note
    assert "0 of 10" in note


def test_every_product_of_a_burst_is_checked_not_only_its_last(
    steady: SimulatedHardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wrong_in_bursts(monkeypatch, "gpu5", lambda product: product == 2)
    measured = _run(steady, tmp_path, **PULSES)
    bursts = sum(_values(measured, "gemm_pulses", pattern=pattern)["gpu5"] or 0 for pattern in PATTERNS)
    assert _values(measured, "gemm_mismatches") == {**dict.fromkeys(GPUS, 0), "gpu5": bursts}


def test_without_seconds_for_it_nothing_pulses(build: Build, tmp_path: Path) -> None:
    assert not _values(_run(build(4), tmp_path, **{**PULSES, "pulse_s": 0.0}), "gemm_pulses")


def test_pulses_too_short_for_any_burst_are_noted_and_not_counted(build: Build, tmp_path: Path) -> None:
    measured = _run(build(4), tmp_path, **{**PULSES, "pulse_s": 0.019, "pulse_ms": [20]})
    assert _values(measured, "gemm_pulses") == dict.fromkeys(GPUS, None)
    assert all(one.note for one in measured if one.metric == "gemm_pulses")


@pytest.mark.parametrize("product_s", [0.0, 0.05, 0.051])
def test_the_share_of_a_formats_bursts_is_known_unless_a_product_outlasts_every_burst(
    steady: SimulatedHardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product_s: float
) -> None:
    monkeypatch.setattr(SimulatedHardware, "simulated", False)
    measured: list[Measured] = []
    context = _context(steady, tmp_path, measured, **PULSES)
    labels, found = {"pattern": PATTERNS[0], "dtype": "bf16"}, Finding("pulsed", bursts=23, product_s=product_s)
    pulsing = pulsed(None, context, "bf16", PATTERNS[0])
    exact_gemm._report_pulses(context, steady.devices("gpu")[:1], pulsing, labels, {"gpu0": [found]})
    (share,) = (one for one in measured if one.metric == "pulse_share")
    places = 25 + 12 + 6 + 2  # of 5, 10, 20 and 50 ms, a quarter of a second each
    assert (share.value, bool(share.note)) == ((None, True) if product_s > 0.05 else (100 * 23 / places, False))


def test_the_soak_keeps_a_gpu_busy_for_a_tenth_of_a_second_between_two_looks(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[float] = []
    honest = SimulatedCompute.timer

    @contextlib.contextmanager
    def timer(self: SimulatedCompute) -> Iterator[Timing]:
        with honest(self) as timing:
            yield timing
        blocks.append(timing.seconds)

    monkeypatch.setattr(SimulatedCompute, "timer", timer)
    hardware, torch = build(4), pytest.importorskip("torch")
    context = _context(hardware, tmp_path, [], soak_s=3.0)
    begun = hardware.clock.now()
    assert hardware.at_once(hardware.devices("gpu")[:1], functools.partial(soak_work, torch, context, "bf16")) == [3.0]
    assert 3.0 <= hardware.clock.now() - begun < 3.0 + 2 * BUSY_BLOCK_S
    # The first block sizes the second one, which is the first at the clock under load.
    assert 25 < len(blocks) < 40
    assert all(0.9 * BUSY_BLOCK_S < block < 1.1 * BUSY_BLOCK_S for block in blocks[2:])


def test_load_is_made_of_the_heaviest_products() -> None:
    assert heaviest(None, "gpu", "bf16") == (4096, 4096, 16384)
    assert heaviest(None, "gpu", "fp8") == (4096, 4096, 8192)
    assert heaviest([[9, 9, 9], [8, 8, 8]], "cpu", "fp32") == (9, 9, 9)


Starts = dict[tuple[str, str], list[float]]
"""By condition and format: how warm each GPU was when its products began."""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """Filled while exact products run."""
    found, at_once = collections.defaultdict[tuple[str, str], list[float]](list), exact_gemm._at_once

    def noting(context: Context, devices: list[Device], condition: str, dtype: str, *rest: Any) -> None:
        warm = gpu_temperatures(context.hardware)
        found[condition, dtype] += [warm[device.id] for device in devices]
        at_once(context, devices, condition, dtype, *rest)

    monkeypatch.setattr(exact_gemm, "_at_once", noting)
    return found


def test_cold_is_cold_after_a_burn_and_soaked_is_warm(tmp_path: Path, starts: Starts) -> None:
    create_machine(tmp_path / "node", seed=4)
    hardware = SimulatedHardware(tmp_path / "node")
    soak(hardware, 300.0)
    while min(reading(hardware, "temperature", gpu) for gpu in GPUS) <= 50:
        soak(hardware, 60.0)  # on a busy host they cool between soak and reading
    _run(hardware, tmp_path, dtypes=["bf16", "fp64"], shapes=[SHAPE], rounds=1, soak_s=120.0, pulse_s=1.0)
    assert all(len(each) == len(GPUS) for each in starts.values())
    for dtype in ("bf16", "fp64"):  # the second format too, whose turn was after the soak once
        assert max(starts["cold", dtype]) <= 45
        assert min(starts["soaked", dtype]) > 50
        for pattern in PATTERNS:
            assert min(starts["pulsed " + pattern, dtype]) > 50


def test_the_wait_is_limited(build: Build, tmp_path: Path, starts: Starts) -> None:
    hardware = build(4)
    soak(hardware, 600.0)
    _run(hardware, tmp_path, dtypes=["bf16"], shapes=[SHAPE], rounds=1, modes=["alone"], cool_limit_s=0.0)
    assert min(starts["cold", "bf16"]) > 45


def test_without_cold_tests_there_is_no_wait(build: Build, tmp_path: Path, starts: Starts) -> None:
    """Level demo: all at once, as they are found."""
    hardware = build(4)
    soak(hardware, 600.0)
    begun = hardware.clock.now()
    _run(hardware, tmp_path, dtypes=["bf16"], shapes=[SHAPE], rounds=1, modes=["together"])
    assert hardware.clock.now() - begun < 2
    assert min(starts["as found", "bf16"]) > 45


def test_a_wrong_product_while_cold_is_reported_though_the_test_fails_later(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(torch: Any, context: Context, dtype: str, worker: Any) -> float:
        worker.ready()
        raise OSError("the test itself breaks")

    monkeypatch.setattr(exact_gemm, "soak", broken)
    measured: list[Measured] = []
    hardware = build(4, {"kind": "sdc", "gpu": 1})
    context = _context(hardware, tmp_path, measured, dtypes=["bf16"], shapes=[SHAPE], rounds=20, soak_s=9.0)
    with pytest.raises(OSError):
        ExactGemm().run(context)
    mismatches = _values(measured, "gemm_mismatches")
    assert list(mismatches) == ["gpu1"], "what was right until then clears nothing"
    assert mismatches["gpu1"]
