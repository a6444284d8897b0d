"""A tiny decoder-only transformer whose every weight product goes through the device under test.

The same seed gives the same weights and batches to the last bit on every machine: they are drawn as integers. Nothing
in it adds in an order that may change (no scatter, no atomic addition), so that two runs on one device must agree.
Attention and elementwise work run on the device through PyTorch itself: on simulated devices they cost no device time
and meet no fault.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, NamedTuple

from muster_node.hardware.seam import Compute

_LEVELS = 127  # weights are whole 127ths, exact in every format


@dataclasses.dataclass(frozen=True)
class Shape:
    """Nominal sizes: ``seq`` tokens a sequence, ``batch`` sequences a micro-batch."""

    layers: int
    d_model: int
    head_dim: int
    seq: int
    batch: int
    vocab: int


Tape = Callable[[str, str, Any], None]
"""Gets (kind, layer, tensor) of what every product gave: later steps may round a wrong bit away."""


class Batch(NamedTuple):
    """Input and target as one-hot matrices (tokens × vocabulary), and the nominal number of tokens they stand for."""

    given: Any
    wanted: Any
    tokens: int


class Transformer:
    """One replica on one device. ``names`` and ``weights`` go together; the physical sizes are the device's choice."""

    def __init__(self, torch: Any, compute: Compute, shape: Shape, dtype: str, seed: int) -> None:
        self.shape, self.compute, self._torch = shape, compute, torch
        d, self.ff = compute.physical(shape.d_model, 4 * shape.d_model)
        self.head = min(shape.head_dim, d)
        self.d = d // self.head * self.head
        self.tokens, self.vocab = compute.physical(shape.batch * shape.seq, shape.vocab)
        self.seq = min(shape.seq, self.tokens)
        self.tokens = self.tokens // self.seq * self.seq
        self.tape: Tape = lambda kind, layer, tensor: None
        self._product = self._products_in(getattr(torch, dtype))
        self.names, self.weights = self._draw(seed)
        self._mask = torch.full((self.seq, self.seq), -1e9, device=compute.torch_device).triu(1)

    def batch(self, seed: int, tokens: int) -> Batch:
        """A micro-batch that represents ``tokens`` nominal tokens; the same for the same seed on every node."""
        torch = self._torch
        dice = torch.Generator().manual_seed(seed)
        text = torch.randint(0, self.vocab, (self.tokens // self.seq, self.seq + 1), generator=dice)
        one_hot = torch.nn.functional.one_hot(text, self.vocab).float().to(self.compute.torch_device)
        given, wanted = one_hot[:, :-1], one_hot[:, 1:]
        return Batch(given.reshape(self.tokens, -1), wanted.reshape(self.tokens, -1), tokens)

    def loss(self, batch: Batch) -> Any:
        """Mean cross-entropy in nats."""
        torch, named, t = self._torch, dict(zip(self.names, self.weights)), batch.tokens
        d, vocab, ff = self.shape.d_model, self.shape.vocab, 4 * self.shape.d_model
        x = self._product(batch.given, named["embed"], (t, d, vocab), "embed")
        x = x + named["place"].repeat(self.tokens // self.seq, 1)
        for layer in map(str, range(self.shape.layers)):
            mixed = self._attend(self._product(_norm(x), named["mix." + layer], (t, 3 * d, d), layer))
            x = x + self._product(mixed, named["join." + layer], (t, d, d), layer)
            wide = self._product(_norm(x), named["up." + layer], (t, ff, d), layer).relu().square()
            x = x + self._product(wide, named["down." + layer], (t, d, ff), layer)
            self.tape("activations", layer, x)
        logits = self._product(_norm(x), named["head"], (t, vocab, d), "head")
        return (torch.logsumexp(logits, 1) - (logits * batch.wanted).sum(1)).mean()

    def gradients(self, batch: Batch) -> tuple[Any, list[Any]]:
        """Loss, and the local gradient of every weight."""
        loss = self.loss(batch)
        gradients = list(self._torch.autograd.grad(loss, self.weights))
        for name, gradient in zip(self.names, gradients):
            kind, _, layer = name.partition(".")
            self.tape("gradients", layer or ("head" if kind == "head" else "embed"), gradient)
        return loss.detach(), gradients

    def _attend(self, mixed: Any) -> Any:
        torch, d = self._torch, self.d
        split = (self.tokens // self.seq, self.seq, d // self.head, self.head)
        q, k, v = (part.reshape(split).transpose(1, 2) for part in mixed.split(d, 1))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head) + self._mask
        return torch.matmul(torch.softmax(scores, 3), v).transpose(1, 2).reshape(self.tokens, d)

    def _draw(self, seed: int) -> tuple[list[str], list[Any]]:
        sizes = {"embed": (self.vocab, self.d), "place": (self.seq, self.d)}
        for layer in range(self.shape.layers):
            sizes[f"mix.{layer}"] = (self.d, 3 * self.d)
            sizes[f"join.{layer}"] = (self.d, self.d)
            sizes[f"up.{layer}"] = (self.d, self.ff)
            sizes[f"down.{layer}"] = (self.ff, self.d)
        sizes["head"] = (self.d, self.vocab)
        dice = self._torch.Generator().manual_seed(seed)
        weights = []
        for rows, columns in sizes.values():
            whole = self._torch.randint(-_LEVELS, _LEVELS + 1, (rows, columns), generator=dice)
            # A power of two near the usual 1/sqrt(rows) keeps the scaling exact.
            scale = 2.0 ** -round(math.log2(_LEVELS * math.sqrt(rows)))
            weights.append((whole.float() * scale).to(self.compute.torch_device).requires_grad_(True))
        return list(sizes), weights

    def _products_in(self, dtype: Any) -> Any:
        """x @ w for fp32 tensors, forwards and backwards by the device's own products in ``dtype``."""
        torch, compute = self._torch, self.compute

        class Product(torch.autograd.Function):  # type: ignore[misc, name-defined]  # torch is not typed
            """Takes nominal (m, n, k) and the layer in addition to the operands."""

            @staticmethod
            def forward(context: Any, x: Any, w: Any, nominal: tuple[int, int, int], layer: str) -> Any:
                x, w = x.to(dtype), w.to(dtype)
                context.save_for_backward(x, w)
                context.nominal, context.layer = nominal, layer
                product = compute.matmul(x, w, nominal=nominal, out_dtype=torch.float32).float()
                self.tape("activations", layer, product)
                return product

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                x, w = context.saved_tensors
                m, n, k = context.nominal
                gradient, dx = gradient.to(dtype).contiguous(), None
                if context.needs_input_grad[0]:
                    dx = compute.matmul(gradient, w.t(), nominal=(m, k, n), out_dtype=torch.float32).float()
                    self.tape("gradients", context.layer, dx)
                dw = compute.matmul(x.t(), gradient, nominal=(k, n, m), out_dtype=torch.float32).float()
                return dx, dw, None, None

        return Product.apply


def _norm(x: Any) -> Any:
    return x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
