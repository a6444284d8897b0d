"""Products of one set of integer operands on one device, each compared in every element with the exact answer."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.hardware.seam import Compute, Device
from muster_node.workloads.common import reason_of
from muster_node.workloads.products.check import ProductCheck
from muster_node.workloads.products.exact import different_bits, fitting_shape, make_operands, multiply
from muster_node.workloads.rerun import Rerun

SHAPES = {
    "cpu": [[256, 256, 256], [192, 320, 640]],
    "gpu": [[1024, 1024, 1024], [4096, 4096, 16384], [2048, 2048, 13312]],
}
RANGES = ("full", "unit", "high", "sparse")
EXAMPLES = 2
"""Wrong products that are described."""
BATCH = 8
"""Products that wait together for their checks: few enough to hold, enough to keep a GPU busy."""
_PLACES = 4  # wrong elements of each
_HELD_BYTES = 2 << 30  # of products that a burst holds until they are checked; a longer one pauses for a moment

Shape = tuple[int, int, int]


def heaviest(shapes: Sequence[Sequence[int]] | None, kind: str, dtype: str) -> Shape:
    """The shape with the most work, of those given or that suit the kind of device: it takes the fewest launches.

    Eight GPUs are fed by the threads of one process, which cannot queue small products as fast as they are done.
    """
    m, n, k = max(shapes or SHAPES[kind], key=math.prod)
    return fitting_shape(dtype, (m, n, k))


@dataclasses.dataclass
class Finding:
    """What one worker found: products and elements, the first few wrong ones in words, and what ended it early."""

    mode: str
    products: int = 0
    produced: int = 0
    checked: int = 0
    mismatches: int = 0
    wrong_products: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    wrong: list[tuple[Shape, str, int]] = dataclasses.field(default_factory=list)  # shape, range and seed of operands
    again: Rerun = dataclasses.field(default_factory=Rerun)
    bursts: int = 0
    product_s: float = 0.0  # of one product before the bursts
    accumulator: str = ""  # the format in which products came
    error: str = ""

    @contextlib.contextmanager
    def keeping_errors(self) -> Iterator[None]:
        """Keeps what was found when PyTorch raises an error of the device, and notes that as ``error``."""
        try:
            yield
        except RuntimeError as error:
            self.error = reason_of(error)


def hung(_: Device, why: str) -> Finding:
    """The finding of a worker that did not end."""
    return Finding("hung", error=why)


class Vector:
    """One set of operands, its exact answer, and the check against it, which serves any number of products.

    ``emit``: the context's, which gets a finding's first mismatches as soon as they are seen.
    """

    def __init__(
        self,
        torch: Any,
        compute: Compute,
        dtype: str,
        shape: Shape,
        span: str,
        seed: int,
        emit: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self._torch, self._compute, self._dtype, self._shape, self._emit = torch, compute, dtype, shape, emit
        self.origin = (shape, span, seed)
        m, n, k = compute.physical(*shape)
        self._operands = make_operands(torch, compute.torch_device, dtype, (m, n, k), span, seed)
        self._origin_text = f"{m}x{n}x{k} {span} seed {seed}"
        # Which format the product comes in is up to the device, and decides how the exact answer is rounded.
        self._first = self._multiply()
        self._expected = self._operands.expected(torch, self._first.dtype)
        self._check = ProductCheck(torch, self._expected, seed)

    def raw(self, products: int) -> None:
        """Multiplies without a check."""
        for _ in range(products):
            self._multiply()

    def check_first(self, reruns: int, finding: Finding) -> None:
        """Check the product that came with the operands."""
        self._settle([(self._first, self._differs(self._first))], reruns, finding)

    def check(self, products: int, reruns: int, finding: Finding, batch_size: int = BATCH) -> None:
        """Multiply so many times and check every element of every product, waiting for the device once a batch."""
        while products:
            batch = []
            for _ in range(min(products, batch_size)):
                product = self._multiply()
                batch.append((product, self._differs(product)))
            self._settle(batch, reruns, finding)
            products -= len(batch)

    def check_burst(self, products: int, reruns: int, finding: Finding) -> None:
        """As ``check``, without a pause for as long as memory allows."""
        held = _HELD_BYTES // (self._expected.numel() * self._expected.element_size())
        self.check(products, reruns, finding, max(BATCH, held))

    def is_wrong(self) -> bool:
        """Multiplies once more and checks every element."""
        return bool(different_bits(self._torch, self._multiply(), self._expected).any())

    def _multiply(self) -> Any:
        return multiply(self._torch, self._compute, self._operands, self._shape)

    def _differs(self, product: Any) -> Any:
        m, n, _ = self._shape
        return self._check.differs(self._compute.touch(product, nominal_bytes=m * n * product.element_size()))

    def _settle(self, batch: list[tuple[Any, Any]], reruns: int, finding: Finding) -> None:
        flags = self._torch.stack([differs for _, differs in batch]).tolist()
        for (product, _), wrong in zip(batch, flags):
            finding.accumulator = str(product.dtype).replace("torch.", "")
            finding.products += 1
            finding.produced += product.numel()
            finding.checked += self._expected.numel()
            if wrong:
                self._record_wrong(product, reruns, finding)

    def _record_wrong(self, product: Any, reruns: int, finding: Finding) -> None:
        """Count the wrong elements of a product that the check objects to, and compute it again."""
        wrong = different_bits(self._torch, product, self._expected)
        count = int(wrong.sum())
        if not finding.mismatches:
            device, labels, note = self._compute.device.id, {"dtype": self._dtype}, self._origin_text
            self._emit("gemm_mismatches", device, value=count or 1, labels=labels, note=note, so_far=True)
        # The check itself runs on the device: if only its sums were wrong, that is a fault of the device as well.
        finding.mismatches += count or 1
        finding.wrong_products += 1
        if len(finding.examples) >= EXAMPLES:
            return
        again = sum(self.is_wrong() for _ in range(reruns))
        finding.again = Rerun(finding.again.runs + reruns, finding.again.wrong + again)
        finding.wrong.append(self.origin)
        places = [tuple(place) for place in wrong.nonzero()[:_PLACES].tolist()]
        seen = [f"({p[0]},{p[1]}) is {product[p].item()!r}, exact {self._expected[p].item()!r}" for p in places]
        what = f"{count} elements, {', '.join(seen)}" if count else "its check sums alone"
        finding.examples.append(f"{self._origin_text}: {what}, again in {again} of {reruns} reruns")
