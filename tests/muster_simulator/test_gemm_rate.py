"""GEMM rates of GPUs: what is reported next to the rate, and what the flush of the caches changes."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from muster_node.hardware.seam import Hardware
from muster_node.probes.gemm_rate import GemmRate
from muster_node.workloads.products.timed import Products
from muster_simulator import SimulatedHardware, create_machine
from muster_simulator.compute import SimulatedCompute
from tests.muster_simulator.test_probes import measure
from tests.muster_simulator.winding import WoundClock
from tests.support.injector import OneDevice

pytestmark = pytest.mark.needs_torch
torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

GPUS = [f"gpu{slot}" for slot in range(8)]
SHORT = {"dtypes": ["bf16"], "seconds": 0.3, "warmup_s": 0.1}


def _machine(tmp_path: Path, *faults: dict[str, Any]) -> Hardware:
    """Under its own clock, each host second between two blocks would heat the GPUs for 150 simulated seconds."""
    create_machine(tmp_path / "node", seed=4, faults=faults)
    return SimulatedHardware(tmp_path / "node", WoundClock())


def test_every_gpu_reports_all_that_belongs_to_a_rate(tmp_path: Path) -> None:
    values = measure(_machine(tmp_path), GemmRate, tmp_path, **SHORT)
    for metric in ("gemm_rate", "gemm_rate_per_clock", "gemm_clock", "gemm_power"):
        assert list(values[metric, "bf16"]) == GPUS
    for gpu in GPUS:
        assert values["gemm_rate", "bf16"][gpu] < 794.5
        assert 600 < values["gemm_power", "bf16"][gpu] < 710


def test_the_flush_is_not_counted_as_work_and_slow_memory_does_not_slow_the_rate(tmp_path: Path) -> None:
    per_clock = []
    for faults in ((), ({"kind": "hbm_slow", "gpu": 0, "share": 0.5},)):
        machine = OneDevice(_machine(tmp_path, *faults))
        values = measure(machine, GemmRate, tmp_path, dtypes=["bf16"], seconds=0.5)
        per_clock.append(values["gemm_rate_per_clock", "bf16"]["gpu0"])
    assert per_clock[1] == pytest.approx(per_clock[0], rel=0.02)


def test_each_product_finds_the_caches_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary: list[str] = []
    for name in ("matmul", "touch"):
        real = getattr(SimulatedCompute, name)

        def noting(self: Any, *arguments: Any, real: Any = real, name: str = name, **how: Any) -> Any:
            diary.append(name)
            return real(self, *arguments, **how)

        monkeypatch.setattr(SimulatedCompute, name, noting)
    hardware = _machine(tmp_path)
    compute = hardware.compute(hardware.devices("gpu")[0])
    products = Products(torch, compute, "bf16", (8192, 8192, 8192), 1, 256)
    diary.clear()
    products.block()
    assert diary == ["touch", "matmul"] * products.per_block
