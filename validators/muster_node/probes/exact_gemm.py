"""Silent data corruption: matrix products of integers, compared element by element with the exact answer.

Operands are integers with K·Amax² below what the accumulator holds exactly, so the answer does not depend on order,
tiles, libraries or models of hardware: no golden value is needed, and one differing bit is a fault. Rows and columns
are scaled by random powers of two, which stays exact and sweeps the exponent range, since real faults fire for some
ranges of values only. Outputs that round (bf16, fp16) are compared with the exact value rounded to nearest even.

Not covered: significands of full entropy, since integers here fill at most the accumulator's square root.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Optional, Tuple

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._shared import FORMATS, best_devices, precision_of, seed_of

SHAPES = {
    "cpu": [[256, 256, 256], [192, 320, 640]],
    "gpu": [[1024, 1024, 1024], [4096, 4096, 4096], [2048, 2048, 13312]],
}
RANGES = ("full", "unit", "high", "sparse")
_EXAMPLES = 2  # wrong products told in words
_PLACES = 4  # wrong elements of each
_BIT_VIEWS = {8: "int64", 4: "int32", 2: "int16", 1: "int8"}


class ExactGemm(Probe):
    """Every element of many integer products, on each device alone and on all together."""

    name = "exact_gemm"
    stage = "integrity"
    doc = "Integer matrix products compared bit by bit with the exact answer"
    params = {
        "dtypes": Param(list(FORMATS), "number formats to test; those a device does not have are left out"),
        "shapes": Param(None, "list of [m, n, k]; None takes shapes that suit the kind of device"),
        "rounds": Param(4, "products for each format and shape; operand ranges take turns, so 4 covers all"),
        "seconds": Param(0.0, "go on for at least so many seconds for each format, device and mode"),
        "modes": Param(["alone", "together"], "each device in turn, all at once, or both"),
        "reruns": Param(10, "how often a product that was wrong is computed again"),
    }
    metrics = {
        "gemm_mismatches": Metric("count", "elements that differ from the exact answer"),
        "gemm_checked_elements": Metric("count", "elements compared"),
        "gemm_checked_fraction": Metric("%", "share of all elements produced that were compared"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Screen every device, one format after the other. Raises Skip where no device has any of the formats."""
        torch = require_torch()
        hardware, devices = context.hardware, best_devices(context.hardware)
        tested = False
        for dtype in context.params["dtypes"]:
            findings: Dict[str, List[_Finding]] = {device.id: [] for device in devices}
            with precision_of(torch, dtype):
                for mode, group in _groups(context.params["modes"], devices):
                    context.progress("exact %s products on %s" % (dtype, ", ".join(device.id for device in group)))
                    with hardware.loading(group):
                        found = hardware.at_once(group, _Screen(torch, context, dtype, mode))
                    for device, finding in zip(group, found):
                        findings[device.id] += [finding] if finding is not None else []
            for device in devices:
                tested = _report(context, device, dtype, findings[device.id]) or tested
        if not tested:
            raise Skip("no device here multiplies any of %s" % ", ".join(context.params["dtypes"]))


def _groups(modes: List[str], devices: List[Device]) -> List[Tuple[str, List[Device]]]:
    alone = [("alone", [device]) for device in devices] if "alone" in modes else []
    return alone + ([("together", devices)] if "together" in modes else [])


@dataclasses.dataclass
class _Finding:
    """What one worker found: products and elements, and the first few wrong ones in words."""

    mode: str
    products: int = 0
    produced: int = 0
    checked: int = 0
    mismatches: int = 0
    wrong_products: int = 0
    examples: List[str] = dataclasses.field(default_factory=list)


def _report(context: Context, device: Device, dtype: str, findings: List[_Finding]) -> bool:
    if not findings:
        return False
    labels = {"dtype": dtype}
    total = sum(finding.mismatches for finding in findings)
    checked, produced = sum(f.checked for f in findings), sum(f.produced for f in findings)
    products = sum(finding.products for finding in findings)
    note = ""
    if total:
        wrong = sum(finding.wrong_products for finding in findings)
        modes = " and ".join(finding.mode for finding in findings if finding.mismatches)
        examples = "; ".join([e for finding in findings for e in finding.examples][:_EXAMPLES])
        note = "%d of %d products wrong (%s): %s" % (wrong, products, modes, examples)
    context.emit("gemm_mismatches", device.id, value=total, labels=labels, samples=products, note=note)
    context.emit("gemm_checked_elements", device.id, value=checked, labels=labels, samples=products)
    context.emit("gemm_checked_fraction", device.id, value=100.0 * checked / produced, labels=labels, samples=products)
    return True


class _Screen:
    """The work of one device: products with fresh seeds until rounds and seconds are both reached."""

    def __init__(self, torch: Any, context: Context, dtype: str, mode: str) -> None:
        self._torch, self._hardware, self._dtype, self._mode = torch, context.hardware, dtype, mode
        self._params, self._seed = context.params, context.seed

    def __call__(self, worker: Worker) -> Optional[_Finding]:
        compute = self._hardware.compute(worker.device)
        worker.ready()
        if not compute.supports(self._dtype):
            return None
        finding, clock = _Finding(self._mode), self._hardware.clock
        end, number = clock.now() + self._params["seconds"], 0
        while number < self._params["rounds"] or clock.now() < end:
            for shape in self._params["shapes"] or SHAPES[worker.device.kind]:
                seed = seed_of(self._seed, self._mode, worker.device.id, self._dtype, tuple(shape), number)
                self._one(compute, tuple(shape), RANGES[number % len(RANGES)], seed, finding)
            number += 1
        return finding

    def _one(self, compute: Compute, shape: Tuple[int, int, int], span: str, seed: int, finding: _Finding) -> None:
        m, n, k = compute.physical(*shape)
        operands = make_operands(self._torch, compute.torch_device, self._dtype, (m, n, k), span, seed)
        product = multiply(self._torch, compute, operands, shape)
        expected = operands.expected(self._torch, product.dtype)
        wrong = different_bits(self._torch, product, expected)
        count = int(wrong.sum())
        finding.products += 1
        finding.produced += product.numel()
        finding.checked += wrong.numel()
        if not count:
            return
        finding.mismatches += count
        finding.wrong_products += 1
        if len(finding.examples) < _EXAMPLES:
            again = sum(
                bool(different_bits(self._torch, multiply(self._torch, compute, operands, shape), expected).any())
                for _ in range(self._params["reruns"])
            )
            places = [tuple(place) for place in wrong.nonzero()[:_PLACES].tolist()]
            seen = ["(%d,%d) is %r, exact %r" % (*p, product[p].item(), expected[p].item()) for p in places]
            finding.examples.append(
                "%dx%dx%d %s seed %d: %d elements, %s, again in %d of %d reruns"
                % (m, n, k, span, seed, count, ", ".join(seen), again, self._params["reruns"])
            )


@dataclasses.dataclass(frozen=True)
class Operands:
    """Integer matrices, the exponents that scale their rows and columns, and both combined in the format under test."""

    dtype: str
    integers: Tuple[Any, Any]
    exponents: Tuple[Any, Any]
    scaled: Tuple[Any, Any]

    def expected(self, torch: Any, out_dtype: Any) -> Any:
        """The exact product, rounded once to ``out_dtype``."""
        exact = exact_product(torch, *self.integers, self.dtype)
        if not out_dtype.is_floating_point:
            return exact.to(out_dtype)
        rows, columns = (power_of_two(torch, exponents) for exponents in self.exponents)
        return (exact.double() * rows[:, None] * columns[None, :]).to(out_dtype)


def operand_limit(dtype: str, k: int) -> int:
    """Amax: the largest integer with K·Amax² exact in the accumulator and Amax itself exact in the format."""
    number_format = FORMATS[dtype]
    return max(1, min((1 << number_format.significand) - 1, math.isqrt(((1 << number_format.exact_sum) - 1) // k)))


def exponent_limits(dtype: str, k: int, limit: int) -> Tuple[int, int]:
    """Lowest and highest power of two by which a row or column may be scaled with every result normal and finite."""
    scale = FORMATS[dtype].scale
    if dtype != "fp16":
        return -scale, scale
    # Results must stay within 2^-14 (normal) and 2^16 (finite): the sum's own bits leave the rest for the exponents.
    return -scale, max(-scale, (15 - (k * limit * limit).bit_length()) // 2)


def make_operands(torch: Any, device: Any, dtype: str, shape: Tuple[int, int, int], span: str, seed: int) -> Operands:
    """Operands for one product of physical ``shape`` (m, n, k), integers spread as ``span`` says."""
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(seed)
    limit = 1 if span == "unit" else operand_limit(dtype, k)
    a, b = (_integers(torch, device, generator, size, limit, span) for size in ((m, k), (k, n)))
    low, high = exponent_limits(dtype, k, limit)
    rows, columns = (
        torch.randint(low, high + 1, (size,), generator=generator, device=device, dtype=torch.int64) for size in (m, n)
    )
    target = getattr(torch, FORMATS[dtype].torch_name)
    if dtype == "int8":
        scaled = (a.to(target), b.to(target))
    else:
        scaled = (
            (a.double() * power_of_two(torch, rows)[:, None]).to(target),
            (b.double() * power_of_two(torch, columns)[None, :]).to(target),
        )
    return Operands(dtype, (a, b), (rows, columns), scaled)


def _integers(torch: Any, device: Any, generator: Any, size: Tuple[int, int], limit: int, span: str) -> Any:
    draw = {"generator": generator, "device": device, "dtype": torch.int64}
    values = torch.randint(-limit, limit + 1, size, **draw)
    if span == "high":
        return (limit - values.abs() // 4) * (1 - 2 * torch.randint(0, 2, size, **draw))
    if span == "sparse":
        return values * (torch.randint(0, 10, size, **draw) == 0)
    return values


def power_of_two(torch: Any, exponents: Any) -> Any:
    """2**exponents as float64, put together from bits: a library's pow need not be exact."""
    return ((exponents + 1023) << 52).view(torch.float64)


def exact_product(torch: Any, a: Any, b: Any, dtype: str) -> Any:
    """The product of integer matrices as int64, by another data path than the one under test.

    CPUs multiply integers; GPUs, whose PyTorch has no int64 product, use fp64 units (exact below 2^53), and the host
    where fp64 itself is under test.
    """
    if not a.is_cuda:
        return torch.mm(a, b)
    if dtype == "fp64":
        return torch.mm(a.cpu(), b.cpu()).to(a.device)
    return torch.mm(a.double(), b.double()).to(torch.int64)


def multiply(torch: Any, compute: Compute, operands: Operands, nominal: Tuple[int, int, int]) -> Any:
    """The product under test, in fp32 where the device can give that (its accumulator, before any rounding)."""
    out_dtype = {"fp64": torch.float64, "int8": torch.int32}.get(operands.dtype, torch.float32)
    return compute.matmul(*operands.scaled, nominal=nominal, out_dtype=out_dtype)


def different_bits(torch: Any, product: Any, expected: Any) -> Any:
    """Where the two differ in any bit, as a boolean matrix."""
    view = getattr(torch, _BIT_VIEWS[product.element_size()])
    return product.contiguous().view(view) != expected.view(view)
