"""Exact products: healthy cores show no mismatch, and every kind of injected corruption is found and counted."""

import math

import pytest

from muster_node.hardware import open_hardware
from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.probes import exact_gemm
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.workloads.common import FORMATS
from muster_node.workloads.products import exact, exact_vector
from muster_simulator import create_machine, open_simulated
from tests.support.injector import OneDevice

pytestmark = pytest.mark.needs_torch

SHAPE = [48, 40, 64]
TESTED = ["fp64", "fp32", "bf16", "fp16"]


def test_this_machine_multiplies_exactly(run_probe, cpus):
    run = run_probe(ExactGemm, shapes=[SHAPE, [128, 128, 256]], rounds=4)
    for dtype in TESTED:
        for cpu in cpus:
            assert run.one("gemm_mismatches", cpu, dtype=dtype).value == 0
            # two shapes, four rounds, alone and together
            checked = run.one("gemm_checked_elements", cpu, dtype=dtype)
            assert checked.value == 2 * 4 * (48 * 40 + 128 * 128)
            assert checked.samples == 16
            assert run.one("gemm_checked_fraction", cpu, dtype=dtype).value == 100.0
    assert not run.all("gemm_mismatches", dtype="tf32"), "a CPU has no TF32"


def one_bit(torch, flat):
    flat[flat.numel() // 3] ^= 1


def sign_bit(torch, flat):
    flat[5] ^= torch.iinfo(flat.dtype).min


def four_strided(torch, flat):
    flat[7 : 7 + 4 * 16 : 16] ^= 1 << 3


def equal_masks_in_four_neighbours(torch, flat):
    """XOR checksums cancel on this one."""
    flat[20:24] ^= 1 << 9


def a_row(torch, flat):
    flat[: SHAPE[1]] += 1


def shifted(torch, flat):
    flat.copy_(flat.roll(1).clone())


def zeroed(torch, flat):
    flat.zero_()


CORRUPTIONS = {
    one_bit: 1,
    sign_bit: 1,
    four_strided: 4,
    equal_masks_in_four_neighbours: 4,
    a_row: SHAPE[1],
    shifted: None,  # almost all of it
    zeroed: None,
}


def corrupted_products():
    """Each corruption once and a single bit in each format; the other pairs in the slow suite."""
    for corrupt in CORRUPTIONS:
        for dtype in (*TESTED, "int8"):
            fast = dtype == "fp32" or corrupt in (one_bit, sign_bit)
            yield pytest.param(corrupt, dtype, id=f"{corrupt.__name__}-{dtype}", marks=[] if fast else pytest.mark.slow)


@pytest.mark.parametrize(("corrupt", "dtype"), corrupted_products())
def test_every_corruption_is_found(run_probe, cpus, monkeypatch, dtype, corrupt):
    import torch

    views = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    honest = CpuCompute.matmul

    def faulty(self, a, b, **nominal):
        product = honest(self, a, b, **nominal)
        if self.device.id == cpus[-1]:
            corrupt(torch, product.view(-1).view(views[product.element_size()]))
        return product

    monkeypatch.setattr(CpuCompute, "matmul", faulty)
    monkeypatch.setattr(CpuCompute, "supports", lambda self, name: True)
    run = run_probe(ExactGemm, dtypes=[dtype], shapes=[SHAPE], rounds=4, modes=["alone"], reruns=2)
    found = run.one("gemm_mismatches", cpus[-1], dtype=dtype)
    if CORRUPTIONS[corrupt] is not None:
        assert found.value == 4 * CORRUPTIONS[corrupt]
    else:
        assert found.value > 4 * 0.1 * math.prod(SHAPE[:2])
    assert "4 of 4 products wrong" in found.note
    assert "2 of 2" in found.note
    for cpu in cpus[:-1]:
        assert run.one("gemm_mismatches", cpu, dtype=dtype).value == 0
    reruns = {m.labels["on"]: (m.device, m.value) for m in run.all("gemm_rerun", dtype=dtype)}
    assert reruns == {cpus[-1]: (cpus[-1], 4), **dict.fromkeys(cpus[:-1][:2], (cpus[-1], 0))}


def test_devices_are_soaked_once_before_they_are_tested_together(run_probe, tmp_path, monkeypatch):
    """A device is cold before it is tested alone, and soaked after it multiplied unchecked for a while."""
    order = []
    honest = exact_gemm._Screen.__call__
    monkeypatch.setattr(
        exact_gemm, "soak", lambda torch, context, *_: order.append("soaked") or context.params["soak_s"]
    )
    monkeypatch.setattr(
        exact_gemm._Screen, "__call__", lambda self, worker: order.append(self._mode) or honest(self, worker)
    )
    create_machine(tmp_path / "node", seed=4)
    gpu = OneDevice(open_simulated(tmp_path / "node"))
    run_probe(ExactGemm, gpu, dtypes=["bf16", "fp64"], shapes=[SHAPE], rounds=1, soak_s=3.0)
    assert order == ["alone", "alone", "soaked", "together", "together"]


def test_soaking_lasts_as_long_as_it_should(run_probe):
    clock = open_hardware().clock
    begun = clock.now()
    run_probe(ExactGemm, dtypes=["fp32"], shapes=[SHAPE], rounds=1, modes=["together"], soak_s=0.5)
    assert clock.now() - begun >= 0.5


def test_an_intermittent_fault_is_distinguished_from_a_steady_one(run_probe, cpus, monkeypatch):
    honest, calls = CpuCompute.matmul, [0]

    def faulty(self, a, b, **nominal):
        product = honest(self, a, b, **nominal)
        calls[0] += 1
        if calls[0] == 2:
            product[3, 4] = float("nan")
        return product

    monkeypatch.setattr(CpuCompute, "matmul", faulty)
    run = run_probe(ExactGemm, dtypes=["fp32"], shapes=[SHAPE], rounds=3, modes=["alone"], reruns=4)
    found = run.one("gemm_mismatches", cpus[0], dtype="fp32")
    assert found.value == 1
    assert "(3,4) is nan" in found.note
    assert "0 of 4" in found.note
    again = run.one("gemm_rerun", cpus[0], on=cpus[0])
    assert (again.value, again.samples) == (0, 4)


def test_seeds_make_fresh_data_and_the_same_data_again():
    import torch

    def make(seed):
        return exact.make_operands(torch, torch.device("cpu"), "fp32", (8, 8, 16), "full", seed).scaled[0]

    assert torch.equal(make(1), make(1))
    assert not torch.equal(make(1), make(2))


@pytest.mark.parametrize(("k", "limit"), [(256, 255), (1024, 127), (2048, 90), (4096, 63), (8192, 45), (16384, 31)])
def test_limits_are_those_of_the_reference_table(k, limit):
    assert exact.operand_limit("bf16", k) == limit


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [32, 256, 4096])
def test_sums_stay_exact_and_results_normal(dtype, k):
    limit = exact.operand_limit(dtype, k)
    assert k * limit * limit < 2 ** FORMATS[dtype].exact_sum
    low, high = exact.exponent_limits(dtype, k, limit)
    assert low <= high
    if dtype == "fp16":
        assert 2 * low >= -14
        assert (k * limit * limit).bit_length() + 2 * high <= 16


@pytest.mark.parametrize("span", exact_vector.RANGES)
def test_scaling_sweeps_exponents_and_keeps_every_operand_exact(span):
    import torch

    operands = exact.make_operands(torch, torch.device("cpu"), "bf16", (64, 64, 256), span, 11)
    rows = exact.power_of_two(torch, operands.exponents[0])
    assert torch.equal(operands.scaled[0].double() / rows[:, None], operands.integers[0].double())
    assert operands.exponents[0].min() < -30
    assert operands.exponents[0].max() > 30


def test_rounding_is_to_nearest_even():
    import torch

    one = torch.zeros(1, dtype=torch.int64)
    for value, rounded in ((257, 256.0), (259, 260.0), (258, 258.0), (-257, -256.0)):
        left, right = torch.tensor([[value]]), torch.tensor([[1]])
        operands = exact.Operands("bf16", (left, right), (one, one), (left, right))
        assert operands.expected(torch, torch.bfloat16).item() == rounded
