"""Operations of real models on operands of full entropy, the same on every device to the last bit.

Operands are drawn on the host, so that devices of one model are given the same bits. Every product goes through the
device's own product, and every other result through its memory, so that a fault of either can show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Callable

from muster_node.hardware.seam import Compute
from muster_node.workloads.common import FORMATS, accumulator_of, right_operand, seed_of
from muster_node.workloads.models.transformer import Shape, Transformer

Operation = Callable[[], list[Any]]
"""A function that runs once and returns all that it computed."""

VERSION = 3
"""Version of the operations here and of their digest; it is raised when either changes, since digests change then."""

# m, n, k of projections and of both halves of a feed-forward block at 4096 tokens of an 8-billion-parameter model.
GEMM_SHAPES = {
    "cpu": [(64, 64, 64), (64, 224, 64), (64, 64, 224)],
    "gpu": [(4096, 4096, 4096), (4096, 14336, 4096), (4096, 4096, 14336)],
}
_ROWS = {"cpu": (64, 64), "gpu": (4096, 4096)}
_ATTENTION = {"cpu": (1, 2, 32, 16), "gpu": (1, 32, 4096, 128)}  # batch, heads, tokens, head
_STEP = {
    "cpu": Shape(layers=1, d_model=32, head_dim=16, seq=16, batch=2, vocab=32),
    "gpu": Shape(layers=2, d_model=2048, head_dim=128, seq=1024, batch=2, vocab=256),
}
_FLOATS = {"cpu": "float32", "gpu": "bfloat16"}
_WIDE = 4  # exponents spread over so many powers of two up and down: no format overflows
_ADAM = (0.9, 0.999, 1e-8, 1e-3)  # decay of both moments, floor of the root, learning rate


class Operations:
    """All operations on one device, by name."""

    def __init__(self, torch: Any, compute: Compute, seed: int) -> None:
        self._torch, self._compute, self._seed, self._kind = torch, compute, seed, compute.device.kind
        self._float = getattr(torch, _FLOATS[self._kind])

    def products(self, dtypes: list[str]) -> Iterator[tuple[str, Operation]]:
        """Name and operation, one after the other: only one holds its operands at a time."""
        for dtype in dtypes:
            if self._compute.supports(dtype):
                for shape in GEMM_SHAPES[self._kind]:
                    yield f"gemm {dtype} {'x'.join(map(str, shape))}", self._gemm(dtype, shape)

    def named(self, dtypes: list[str]) -> Iterator[tuple[str, Operation]]:
        """As ``products``, and after them all that is no single product."""
        yield from self.products(dtypes)
        yield "attention", self._attention()
        yield "layer norm", self._rows(lambda x: self._torch.nn.functional.layer_norm(x, x.shape[-1:]))
        yield "softmax", self._rows(lambda x: self._torch.softmax(x, -1))
        yield "reduction", self._rows(lambda x: self._torch.cat([x.sum(0), x.sum(1), x.exp().sum(1)]))
        yield "adam step", self._adam()
        yield "transformer step", self._transformer()

    def _draw(self, name: str, size: tuple[int, ...]) -> Any:
        """Normal numbers whose exponents are spread wide, in fp32 on the device."""
        torch = self._torch
        dice = torch.Generator().manual_seed(seed_of(self._seed, name, size))
        exponents = torch.randint(-_WIDE, _WIDE + 1, size, generator=dice)
        return torch.ldexp(torch.randn(size, generator=dice), exponents).to(self._compute.torch_device)

    def _stored(self, result: Any, nominal: tuple[int, ...]) -> Any:
        return self._compute.touch(result, nominal_bytes=math.prod(nominal) * result.element_size())

    def _gemm(self, dtype: str, shape: tuple[int, int, int]) -> Operation:
        m, n, k = self._compute.physical(*shape)
        target = getattr(self._torch, FORMATS[dtype].torch_name)
        a, b = (self._draw(side, size) for side, size in (("a", (m, k)), ("b", (k, n))))
        if dtype == "int8":
            a, b = ((x * 16).clamp(-127, 127) for x in (a, b))
        a, b = a.to(target), right_operand(b.to(target))
        out_dtype = accumulator_of(self._torch, dtype)
        return lambda: [self._compute.matmul(a, b, nominal=shape, out_dtype=out_dtype)]

    def _attention(self) -> Operation:
        batch, heads, tokens, head = _ATTENTION[self._kind]
        seen, width = self._compute.physical(tokens, head)
        q, k, v = (self._draw(name, (batch, heads, seen, width)).to(self._float) for name in "qkv")
        attend = self._torch.nn.functional.scaled_dot_product_attention
        return lambda: [self._stored(attend(q, k, v, is_causal=True), (batch, heads, tokens, head))]

    def _rows(self, work: Callable[[Any], Any]) -> Operation:
        nominal = _ROWS[self._kind]
        x = self._draw("rows", self._compute.physical(*nominal)).to(self._float)
        return lambda: [self._stored(work(x), nominal)]

    def _adam(self) -> Operation:
        nominal = _ROWS[self._kind]
        size = self._compute.physical(*nominal)
        weight, gradient, first, second = (self._draw(name, size) for name in ("weight", "gradient", "m", "v"))
        decay, decay_square, floor, rate = _ADAM

        def step() -> list[Any]:
            mean = first * decay + gradient * (1 - decay)
            square = second.abs() * decay_square + gradient.square() * (1 - decay_square)
            moved = weight - rate * mean / (square.sqrt() + floor)
            return [self._stored(result, nominal) for result in (mean, square, moved)]

        return step

    def _transformer(self) -> Operation:
        """Loss and gradients of one micro-batch, and all that its products gave on the way."""
        shape = _STEP[self._kind]
        model = Transformer(self._torch, self._compute, shape, _FLOATS[self._kind], seed_of(self._seed, "weights"))
        batch = model.batch(seed_of(self._seed, "batch"), shape.batch * shape.seq)

        def step() -> list[Any]:
            seen: list[Any] = []
            model.tape = lambda kind, layer, tensor: seen.append(tensor)
            loss, _ = model.gradients(batch)
            return [loss, *seen]

        return step
