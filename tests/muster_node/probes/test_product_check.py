"""The cheap check of products: nothing slips through its sums."""

import pytest

from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.workloads.products import exact
from muster_node.workloads.products.check import ByteSums, ProductCheck
from muster_node.workloads.products.exact_vector import BATCH

pytestmark = pytest.mark.needs_torch

BYTES_OF_A_ROW = 4096


def int_mm(left, right):
    """What ``torch._int_mm`` gives on CUDA, on any CPU, with what it refuses there: sizes (ATen's Blas.cpp), and by
    cuBLASLt on SM 8.0 a right operand that lies row by row (PyTorch issue 169956).
    """
    import torch

    (m, k), (_, n) = left.shape, right.shape
    if m <= 16 or k % 8 or n % 8:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, and the others multiples of 8: {m}, {k}, {n}")
    if right.stride(0) != 1:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul")
    return (left.to(torch.int32)) @ (right.to(torch.int32))


@pytest.fixture
def sums():
    import torch

    return ByteSums(torch, torch.device("cpu"), 5, int_mm)


def test_every_byte_alone_changes_the_sums(sums):
    import torch

    clean = torch.zeros((BYTES_OF_A_ROW, BYTES_OF_A_ROW), dtype=torch.int8)
    spoilt = torch.eye(BYTES_OF_A_ROW, dtype=torch.int8) * torch.randint(1, 127, (BYTES_OF_A_ROW, 1), dtype=torch.int8)
    different = (sums(spoilt) != sums(clean)).any(dim=1)
    assert bool(different.all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("stride", [1, 2, 16, 64, 512, 1024])
def test_no_four_strided_elements_with_one_mask_cancel(sums, dtype, stride):
    """Also where the changes run + − − +, which cancels in sums whose weights grow evenly with the place."""
    import torch

    product = torch.randn((320, 128), generator=torch.Generator().manual_seed(stride)).mul(99).to(getattr(torch, dtype))
    wanted = sums(product)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[product.element_size()]
    for bit in range(8 * product.element_size() - 1):
        spoilt = product.clone()
        spoilt.view(-1).view(words)[7 : 7 + 4 * stride : stride] ^= 1 << bit
        assert bool((sums(spoilt) != wanted).any())


def test_rows_that_changed_places_show(sums):
    import torch

    product = torch.arange(24 * 1024, dtype=torch.float32).view(24, 1024)
    assert bool((sums(product) != sums(product.flip(0))).any())
    assert bool((sums(product) != sums(product.roll(1))).any())


def test_the_sums_fit_into_int32(sums):
    import torch

    extreme = torch.full((24, BYTES_OF_A_ROW), -128, dtype=torch.int8)
    exact = extreme.to(torch.int64) @ sums._weights.to(torch.int64)
    assert torch.equal(sums(extreme).to(torch.int64), exact)
    assert 128 * 127 * BYTES_OF_A_ROW < 2**31


def test_products_of_a_cpu_are_compared_directly():
    import torch

    expected = torch.ones((3, 5))
    check = ProductCheck(torch, expected, 1)
    assert not bool(check.differs(expected.clone()))
    assert bool(check.differs(-expected))


@pytest.mark.parametrize("limit", [1, 63, 64, 8191, 1 << 20, 1 << 26])
def test_int8_products_give_the_product_of_wide_integers(limit):
    import torch

    draw = torch.Generator().manual_seed(limit)
    a, b = (torch.randint(-limit, limit + 1, size, generator=draw) for size in ((24, 16), (16, 8)))
    a[0, 0], b[0, 0] = -limit, limit
    assert torch.equal(exact.limb_product(torch, a, b, int_mm), a @ b)


def test_the_sums_of_fp8_products_stay_within_its_accumulator():
    assert exact.fitting_shape("fp8", (8, 8, 16384)) == (8, 8, 8192)
    assert exact.fitting_shape("bf16", (8, 8, 16384)) == (8, 8, 16384)
    assert exact.operand_limit("fp8", 8192) == 1


def test_repeats_are_counted_and_checked(run_probe, cpus):
    run = run_probe(ExactGemm, dtypes=["fp32"], shapes=[[64, 64, 512]], rounds=1, modes=["alone"], dwell_s=1e-9)
    # The product that came with the operands, and the fewest repeats.
    assert run.one("gemm_checked_elements", cpus[0], dtype="fp32").samples == 1 + BATCH
    assert run.one("gemm_checked_fraction", cpus[0], dtype="fp32").value == 100.0


def test_one_wrong_product_among_many_of_the_same_operands_is_found(run_probe, cpus, monkeypatch):
    honest, calls = CpuCompute.matmul, [0]

    def faulty(self, a, b, **nominal):
        product = honest(self, a, b, **nominal)
        calls[0] += 1
        # One product comes with the operands, and one is timed alone; the last repeat is wrong.
        if calls[0] == 1 + 1 + BATCH:
            product[2, 3] += 1
        return product

    monkeypatch.setattr(CpuCompute, "matmul", faulty)
    run = run_probe(ExactGemm, dtypes=["fp32"], shapes=[[16, 16, 32]], rounds=1, modes=["alone"], dwell_s=1e-9)
    found = run.one("gemm_mismatches", cpus[0], dtype="fp32")
    assert found.value == 1
    assert "0 of 10" in found.note


def test_sums_that_came_rounded_are_not_called_compared(run_probe, cpus):
    run = run_probe(ExactGemm, dtypes=["fp32", "bf16"], shapes=[[16, 16, 32]], rounds=1, modes=["alone"])
    assert run.one("gemm_accumulator", cpus[0], dtype="fp32").text == "float32"
    rounded = run.one("gemm_accumulator", cpus[0], dtype="bf16")
    assert rounded.text is None
    assert "bfloat16" in rounded.note


def test_formats_that_a_device_lacks_are_named(run_probe, cpus):
    run = run_probe(ExactGemm, dtypes=["fp32", "tf32", "fp8"], shapes=[[16, 16, 32]], rounds=1)
    assert run.one("gemm_not_supported", cpus[0]).text == "tf32, fp8"
