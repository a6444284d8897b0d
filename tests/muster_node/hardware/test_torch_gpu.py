"""torch.cuda as a stand-in: which GPU is which, what is timed, which product is called."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.hardware import torch_gpu
from muster_node.hardware.seam import Device, Transfer
from muster_node.hardware.torch_gpu import Card, CudaCompute, Pace
from muster_node.probe import Skip
from muster_node.workloads.common import right_operand
from muster_node.workloads.models import model_operations
from muster_node.workloads.products.exact import make_operands, multiply
from muster_node.workloads.products.timed import Products

GPU5 = Device("gpu5", "gpu", 5)


class Event:
    """A CUDA event whose work is done at the third question."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.queries = 0
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def query(self) -> bool:
        self.queries += 1
        return self.queries > 2

    def synchronize(self) -> None:
        assert self.recorded

    def elapsed_time(self, other: Event) -> float:
        assert self.recorded
        assert other.recorded
        return 250.0


class Stream:
    """A CUDA stream that notes what it waits for and what is done in it."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def wait_stream(self, other: Stream) -> None:
        self.diary.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.diary.append(f"in {self.name}")

    def __exit__(self, *_: object) -> None:
        self.diary.append(f"out of {self.name}")


class Buffer:
    """Memory that only notes what is copied into it."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def copy_(self, source: Buffer, non_blocking: bool = False) -> None:
        assert non_blocking
        self.diary.append(f"{source.name} to {self.name}")


class Matrix:
    """As much of a tensor as a product's dispatch looks at; ``copies`` counts those of all."""

    copies = 0

    def __init__(self, dtype: str, by_columns: bool = False) -> None:
        self.dtype, self.by_columns = dtype, by_columns

    def stride(self, dimension: int) -> int:
        return 1 if self.by_columns else 64

    def t(self) -> Matrix:
        return Matrix(self.dtype, not self.by_columns)

    def contiguous(self) -> Matrix:
        Matrix.copies += 1
        return Matrix(self.dtype, False)


def _torch(**changes: Any) -> Any:
    uuids = ["aaaa-1", "bbbb-2"]
    diary: list[str] = []
    sides = itertools.count()
    calls: list[Any] = []

    def mm(a: Any, b: Any, **how: Any) -> str:
        calls.append(("mm", how))
        return "product"

    def scaled_mm(a: Any, b: Any, **how: Any) -> str:
        calls.append(("_scaled_mm", b.stride(0), how["out_dtype"]))
        return "product"

    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
        get_device_capability=lambda index: (9, 0),
        mem_get_info=lambda index: (7, 9),
        synchronize=lambda: None,
        device=lambda index: contextlib.nullcontext(),
        Event=Event,
        Stream=lambda: Stream(f"side{next(sides)}", diary),
        current_stream=lambda: Stream("main", diary),
        stream=lambda stream: stream,
        diary=diary,
    )
    torch = SimpleNamespace(
        __version__="2.9",
        version=SimpleNamespace(hip=None),
        cuda=cuda,
        device=lambda kind, index: (kind, index),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
        int8="int8",
        int64="int64",
        empty=lambda elements, **how: (elements, how, os.sched_getaffinity(0)),
        float8_e4m3fn="fp8",
        float8_e5m2="fp8b",
        bfloat16="bf16",
        float32="fp32",
        ones=lambda *shape, **how: calls.append(("ones",)) or "one",
        mm=mm,
        _int_mm=lambda a, b: calls.append(("_int_mm",)),
        _scaled_mm=scaled_mm,
        calls=calls,
    )
    for name, value in changes.items():
        setattr(cuda, name, value)
    return torch


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake = _torch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def _gpu(uuid: str = "GPU-BBBB-2", index: int = 0, pci: str = "", twins: tuple[str, ...] = ()) -> Card:
    return Card(uuid, index, pci, twins)


def _compute(uuid: str = "GPU-BBBB-2", index: int = 0, pace: Any = lambda: Pace(None, None, None)) -> CudaCompute:
    return CudaCompute(GPU5, _gpu(uuid, index), pace)


def test_the_uuid_decides_which_gpu_it_is(torch: Any) -> None:
    compute = _compute()
    assert compute.torch_device == ("cuda", 1)
    assert compute.free_memory() == 7
    assert compute.physical(8192, 4096) == (8192, 4096)
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False


def test_a_hidden_gpu_is_never_taken_for_another(torch: Any) -> None:
    with pytest.raises(Skip):
        _compute("GPU-cccc")


TWIN = {"uuid": "GPU-AAAA-1", "twins": ("gpu2",)}


def _twins(torch: Any, **places: Any) -> None:
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(
        uuid="aaaa-1", **{name: of[index] for name, of in places.items()}
    )


def test_of_gpus_that_share_a_uuid_none_computes_in_anothers_place(torch: Any) -> None:
    _twins(torch)
    with pytest.raises(RuntimeError, match="gpu2 reports the same UUID"):
        CudaCompute(GPU5, _gpu(**TWIN, pci="00000000:1B:00.0"), lambda: Pace(None, None, None))


def test_gpus_that_share_a_uuid_are_told_apart_by_their_address(torch: Any) -> None:
    _twins(torch, pci_domain_id=[0, 0], pci_bus_id=[0x9B, 0x1B], pci_device_id=[0, 0])
    found = [
        CudaCompute(GPU5, _gpu(**TWIN, pci=pci), lambda: Pace(None, None, None)).torch_device
        for pci in ("00000000:9B:00.0", "00000000:1B:00.0")
    ]
    assert found == [("cuda", 0), ("cuda", 1)]
    with pytest.raises(RuntimeError):
        CudaCompute(GPU5, _gpu(**TWIN, pci="00000000:2B:00.0"), lambda: Pace(None, None, None))


def test_a_pytorch_without_uuids_goes_by_bus_order(torch: Any) -> None:
    torch.cuda.get_device_properties = lambda index: SimpleNamespace()
    assert _compute(index=0).torch_device == ("cuda", 0)
    with pytest.raises(Skip):
        _compute(index=2)


def test_a_pytorch_without_cuda_is_skipped_and_says_so(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.is_available = lambda: False
    with pytest.raises(Skip):
        _compute()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Skip):
        _compute()


def test_a_block_is_timed_by_the_device_and_paced_while_it_runs(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gpu, "_PACE_INTERVAL_S", 0.0)
    readings = [Pace(1600.0, 690.0, 60), Pace(1500.0, None, 61), Pace(1400.0, 710.0, None)]
    given, over = iter(readings), (threading.Event(), threading.Event())

    def pace() -> Pace:
        reading = next(given, None)
        if reading is None:
            over[0].set()
            over[1].wait(10)  # a sensor that does not answer before the block is done
        return reading or Pace(0.0, 0.0, 0)

    with _compute(pace=pace).timer() as timing:
        assert over[0].wait(10)
    assert timing.seconds == 0.25
    assert timing.mean_clock_mhz == 1500.0
    assert timing.mean_power_w == 700.0
    assert timing.mean_core_c == 60.5
    over[1].set()


def test_a_block_without_any_reading_has_no_mean(torch: Any) -> None:
    with _compute().timer() as timing:
        pass
    assert (timing.seconds, timing.mean_clock_mhz, timing.mean_power_w, timing.mean_core_c) == (0.25, None, None, None)


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [((9, 0), set()), ((8, 0), {"fp8"}), ((7, 0), {"fp8", "bf16", "tf32", "int8"})],
)
def test_formats_go_by_compute_capability(torch: Any, capability: tuple[int, int], lacking: set[str]) -> None:
    torch.cuda.get_device_capability = lambda index: capability
    compute = _compute()
    formats = {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"}
    assert {name for name in formats if not compute.supports(name)} == lacking
    assert not compute.supports("fp4")


@pytest.mark.parametrize(("capability", "has"), [((9, 4), False), ((9, 5), True)], ids=["MI300X", "MI350X"])
def test_the_fp8_of_the_mi300x_is_another_one(torch: Any, capability: tuple[int, int], has: bool) -> None:
    torch.version.hip = "6.4"
    torch.cuda.get_device_capability = lambda index: capability
    assert _compute().supports("fp8") is has
    assert _compute().supports("bf16")


def test_each_format_takes_its_own_product(torch: Any) -> None:
    compute, cube = _compute(), (64, 64, 64)
    compute.matmul(Matrix("int8"), Matrix("int8"), nominal=cube)
    compute.matmul(Matrix("fp8"), Matrix("fp8"), nominal=cube, out_dtype="fp32")
    compute.matmul(Matrix("bf16"), Matrix("bf16"), nominal=cube, out_dtype="fp32")
    compute.matmul(Matrix("bf16"), Matrix("bf16"), nominal=cube)
    expected = [("_int_mm",), ("ones",), ("_scaled_mm", 1, "fp32"), ("mm", {"out_dtype": "fp32"}), ("mm", {})]
    assert torch.calls == expected


@pytest.mark.parametrize(("by_columns", "copies"), [(True, 0), (False, 1)])
def test_an_operand_that_lies_right_is_not_copied_within_a_product(
    torch: Any, monkeypatch: pytest.MonkeyPatch, by_columns: bool, copies: int
) -> None:
    compute, right = _compute(), Matrix("fp8", by_columns)
    for _ in range(3):
        monkeypatch.setattr(Matrix, "copies", 0)
        compute.matmul(Matrix("fp8"), right, nominal=(64, 64, 64))
        assert Matrix.copies == copies
    assert torch.calls == [("ones",), *[("_scaled_mm", 1, "bf16")] * 3]


def _copies_in(work: Callable[[], object]) -> list[str]:
    """The copies that PyTorch really makes meanwhile."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(operation.overloadpacket.__name__)
            return operation(*args, **(kwargs or {}))

    with Watch():
        work()
    return [name for name in seen if name in ("clone", "copy_", "_to_copy")]


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp8", "int8", "bf16"])
def test_the_probes_products_copy_no_operand(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch as real

    fake = _torch()
    fake.device = lambda kind, index: real.device("cpu")
    for name in ("int8", "float8_e4m3fn", "float8_e5m2", "float32", "bfloat16"):
        setattr(fake, name, getattr(real, name))
    rights: list[Any] = []
    for name in ("_int_mm", "_scaled_mm", "mm"):
        setattr(fake, name, lambda a, b, **how: rights.append(b))
    monkeypatch.setitem(sys.modules, "torch", fake)
    compute = _compute()
    monkeypatch.setitem(sys.modules, "torch", real)
    products = Products(real, compute, dtype, (32, 48, 64), 7, 0.0)
    exact = make_operands(real, real.device("cpu"), dtype, (32, 48, 64), "full", 7)
    monkeypatch.setitem(model_operations.GEMM_SHAPES, "gpu", [(32, 48, 64)])
    _, full_entropy = next(model_operations.Operations(real, compute, 7).named([dtype]))
    rights.clear()

    def work() -> None:
        products.block()
        multiply(real, compute, exact, (32, 48, 64))
        full_entropy()

    assert _copies_in(work) == []
    assert len(rights) == products.per_block + 2
    assert {right.stride(0 if dtype != "bf16" else 1) for right in rights} == {1}


@pytest.mark.needs_torch
@pytest.mark.parametrize(("dtype", "fast"), [("float8_e4m3fn", 0), ("int8", 0), ("bfloat16", 1), ("float32", 1)])
def test_only_the_layout_of_a_right_operand_changes(dtype: str, fast: int) -> None:
    import torch as real

    drawn = real.randn((48, 32), generator=real.Generator().manual_seed(3)).mul(8).to(getattr(real, dtype))
    laid = right_operand(drawn)
    assert laid.shape == drawn.shape
    assert laid.stride(fast) == 1
    assert bool((laid.float() == drawn.float()).all())


def _old_mm(a: Any, b: Any) -> str:  # PyTorch 2.7's
    return "in bf16"


def _rocm_mm(a: Any, b: Any, out_dtype: Any = None) -> str:
    """That of PyTorch 2.8 and 2.9 for ROCm (HIPBlas.cpp; PyTorch issue 154221)."""
    if out_dtype:
        raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")
    return "in bf16"


@pytest.mark.parametrize("mm", [_old_mm, _rocm_mm])
def test_a_pytorch_without_wider_products_gives_its_own(torch: Any, mm: Callable[..., str]) -> None:
    torch.mm = mm
    assert _compute().matmul(Matrix("bf16"), Matrix("bf16"), nominal=(1, 1, 1), out_dtype="fp32") == "in bf16"


def test_a_wide_product_that_breaks_is_an_error_of_the_device_and_none_is_rounded_in_its_place(torch: Any) -> None:
    compute, real = _compute(), torch.mm

    def lost(a: Any, b: Any, **how: Any) -> str:
        raise RuntimeError("CUDA error: unspecified launch failure")

    torch.mm = lost
    with pytest.raises(RuntimeError):
        compute.matmul(Matrix("bf16"), Matrix("bf16"), nominal=(1, 1, 1), out_dtype="fp32")
    torch.mm = real
    compute.matmul(Matrix("bf16"), Matrix("bf16"), nominal=(1, 1, 1), out_dtype="fp32")  # the next is wide again
    assert torch.calls == [("mm", {"out_dtype": "fp32"})]


def test_copies_both_ways_are_on_streams_of_their_own_within_what_is_timed(torch: Any) -> None:
    compute, diary = _compute(), torch.cuda.diary
    host, gpu = Buffer("host", diary), Buffer("gpu", diary)
    for _ in range(2):
        diary.clear()
        compute.transfer([Transfer("h2d", gpu, host), Transfer("d2h", host, gpu)], nominal_bytes=8)
        assert diary == [
            "side0 waits for main", "in side0", "host to gpu", "out of side0",
            "side1 waits for main", "in side1", "gpu to host", "out of side1",
            "main waits for side0", "main waits for side1",
        ]  # fmt: skip


def test_host_memory_is_taken_beside_the_gpu_and_page_locked(torch: Any) -> None:
    before = os.sched_getaffinity(0)
    near = frozenset([min(before)])
    compute = CudaCompute(GPU5, _gpu(), lambda: Pace(None, None, None), lambda: near | {10**6})
    assert compute.host_buffer(64) == (64, {"dtype": "int64", "pin_memory": True}, near)
    assert os.sched_getaffinity(0) == before
    nowhere = CudaCompute(GPU5, _gpu(), lambda: Pace(None, None, None), lambda: frozenset([10**6]))
    assert nowhere.host_buffer(64)[2] == _compute().host_buffer(64)[2] == before
