"""A decoder in the manner of Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783) in plain PyTorch, for training tests.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases, untied embedding. Tokens are synthetic and of a
fixed length, so that every rank has the same work in every step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable

_THETA = 500_000.0
_EPSILON = 1e-5
_STATE_BYTES = 16
"""Bytes a parameter while it is trained: fp32 weight, gradient and both of Adam's moments."""

_COPY_BYTES = 6
"""What a whole copy on each device adds to that: DDP's buckets of fp32 gradients, autocast's 16-bit weights."""

_WIDTH_BYTES = 30
"""Bytes a token, layer and unit of width that a 16-bit layer keeps for its backward pass, counted as in Korthikanti et
al. 2022 (arXiv:2205.05198, section 4.1): each of two norms its result (2) and, up to PyTorch 2.8, two fp32 copies (8);
the attention q, repeated k and v, its result and that turned for the next product (10). Its scores are computed again.
"""

_FF_BYTES = 8
"""The same a unit of the feed-forward width: SwiGLU keeps gate, up, silu and their product."""

_LOGIT_BYTES = 12
"""Bytes a logit: fp32 value, its log-softmax and its gradient."""

_GATHERED_BYTES = 10
"""Bytes a parameter of the layer that FSDP gathers, and of what lies outside the layers: its 16-bit weights and those
of the next, fetched ahead, the 16-bit gradient, and the fp32 one that is summed."""

_USABLE = 0.8


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a model: ``heads`` of queries share ``kv_heads`` of keys and values; ``seq`` tokens a sequence,
    ``batch`` sequences a micro-batch."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ff: int
    vocab: int
    seq: int
    batch: int

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """All parameters, the input embedding among them."""
        return self.vocab * self.width + self.computed

    @property
    def computed(self) -> int:
        """N of ``flop_per_token``: the parameters that every token is multiplied with, so without the embedding."""
        return self.layers * self.layer_parameters + self.width + self.vocab * self.width

    @property
    def layer_parameters(self) -> int:
        """Those of one layer."""
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_heads * self.head
        return attention + 3 * self.width * self.ff + 2 * self.width

    @property
    def flop_per_token(self) -> float:
        """FLOP a token of one training step: 6 N + 6 L d s.

        PaLM's count (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) with causal attention counted once.
        """
        return 6.0 * self.computed + 6.0 * self.layers * self.width * self.seq

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.seq * self.batch

    @property
    def layer_bytes(self) -> int:
        """What one layer keeps of a micro-batch for its backward pass."""
        return self.tokens * (_WIDTH_BYTES * self.width + _FF_BYTES * self.ff)

    @property
    def input_bytes(self) -> int:
        """One layer's 16-bit input, which is all that it keeps where it is computed again."""
        return 2 * self.tokens * self.width


SIZES = {
    "1m": Size(4, 128, 4, 2, 384, 1024, 128, 8),
    "125m": Size(12, 768, 12, 4, 2048, 32_000, 2048, 8),
    "1b": Size(16, 2048, 32, 8, 8192, 128_256, 4096, 2),
    "3b": Size(28, 3072, 24, 8, 8192, 128_256, 4096, 1),
    "8b": Size(32, 4096, 32, 8, 14_336, 128_256, 8192, 1),
}
"""By name; 1b, 3b and 8b have the sizes that Meta published for Llama 3.1 and 3.2."""

CPU_SIZE = "1m"
DDP, FSDP = "ddp", "fsdp"


def choose_size(free_bytes: float, ranks: int) -> tuple[str, str]:
    """The largest model that fits, and how it is laid out: (name, DDP or FSDP).

    ``free_bytes``: memory of each device; ``ranks``: devices of a node, between which FSDP divides the model's state,
    and whose layers are computed again in the backward pass. A whole copy on each device is preferred where it fits,
    since it exchanges and computes less.
    """
    room = _USABLE * free_bytes
    fitting = [(CPU_SIZE, DDP)]
    for name, size in SIZES.items():
        logits, state = _LOGIT_BYTES * size.tokens * size.vocab, _STATE_BYTES * size.parameters
        whole = state + _COPY_BYTES * size.parameters + size.layers * size.layer_bytes
        gathered = _GATHERED_BYTES * (size.parameters - (size.layers - 1) * size.layer_parameters)
        divided = state / ranks + gathered + size.layers * size.input_bytes + size.layer_bytes
        if whole + logits <= room:
            fitting.append((name, DDP))
        elif ranks > 1 and divided + logits <= room:
            fitting.append((name, FSDP))
    return fitting[-1]


def cut_down(size: Size, physical: Callable[..., tuple[int, ...]]) -> Size:
    """The size as a device really holds it: simulated ones cap every extent, and the head stays whole."""
    width, ff, vocab, seq = physical(size.width, size.ff, size.vocab, size.seq)
    head = min(size.head, width) // 2 * 2
    heads = max(1, width // head)
    kv_heads = max(1, heads * size.kv_heads // size.heads)
    while heads % kv_heads:
        kv_heads -= 1
    (tokens,) = physical(size.tokens, 1)[:1]
    return dataclasses.replace(
        size,
        width=heads * head,
        heads=heads,
        kv_heads=kv_heads,
        ff=ff,
        vocab=vocab,
        seq=seq,
        batch=max(1, tokens // seq),
    )


Product = Callable[[Any, Any, tuple[int, int]], Any]
"""(x, weight, nominal (in, out)) → x @ weight.T for x of tokens × in."""


def plain_product(torch: Any) -> Product:
    """PyTorch's own."""
    linear = torch.nn.functional.linear
    return lambda x, weight, nominal: linear(x, weight)


def build(
    torch: Any,
    size: Size,
    seed: int,
    *,
    device: Any,
    nominal: Size | None = None,
    product: Any = None,
    mark: Callable[[str], None] = lambda name: None,
) -> Any:
    """The model on a device; its weights depend on the seed only. ``nominal``: sizes that products account for.

    ``mark`` gets the name of each weight before it is drawn: billions of them take minutes.
    """
    kinds = _kinds(torch)
    generator = torch.Generator().manual_seed(seed)
    model = kinds.Llama(size, nominal or size, product or plain_product(torch))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mark(name)
            if parameter.dim() > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * (0.02 if "embed" in name else 1.0 / math.sqrt(parameter.shape[1])))
    return model.to(device)


def tokens_of(torch: Any, size: Size, seed: int) -> Any:
    """A micro-batch of synthetic tokens (batch × seq + 1) on the host: uniform, from the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, size.vocab, (size.batch, size.seq + 1), generator=generator)


@functools.cache
def _kinds(torch: Any) -> Any:
    """The modules, defined once PyTorch is there: this package imports without it."""
    nn, functional = torch.nn, torch.nn.functional
    rms_norm = getattr(functional, "rms_norm", _rms_norm)  # from PyTorch 2.4 on, and in one kernel later

    class Linear(nn.Module):  # type: ignore[misc, name-defined]  # torch is not typed
        """Without a bias, through the product of the device."""

        def __init__(self, width: int, out: int, nominal: tuple[int, int], product: Product) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(out, width))
            self.nominal, self.product = nominal, product

        def forward(self, x: Any) -> Any:
            flat = self.product(x.reshape(-1, x.shape[-1]), self.weight, self.nominal)
            return flat.view(*x.shape[:-1], -1)

    class Norm(nn.Module):  # type: ignore[misc, name-defined]
        """RMSNorm."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Any) -> Any:
            return rms_norm(x, x.shape[-1:], self.weight, _EPSILON)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """One layer; with ``recompute`` it keeps its input alone, and computes the rest again in the backward pass."""

        recompute = False

        def __init__(self, size: Size, nominal: Size, product: Product) -> None:
            super().__init__()
            self.heads, self.kv_heads, self.head = size.heads, size.kv_heads, size.head
            kv, wide, wide_kv = size.kv_heads * size.head, nominal.width, nominal.kv_heads * nominal.head
            self.norm_attention, self.norm_feed = Norm(size.width), Norm(size.width)
            self.query = Linear(size.width, size.width, (wide, wide), product)
            self.key = Linear(size.width, kv, (wide, wide_kv), product)
            self.value = Linear(size.width, kv, (wide, wide_kv), product)
            self.out = Linear(size.width, size.width, (wide, wide), product)
            self.gate = Linear(size.width, size.ff, (wide, nominal.ff), product)
            self.up = Linear(size.width, size.ff, (wide, nominal.ff), product)
            self.down = Linear(size.ff, size.width, (nominal.ff, wide), product)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            if self.recompute:
                again = torch.utils.checkpoint.checkpoint  # no state of random numbers is kept: nothing here is random
                return again(self.layer, x, cos, sin, use_reentrant=False, preserve_rng_state=False)
            return self.layer(x, cos, sin)

        def layer(self, x: Any, cos: Any, sin: Any) -> Any:
            x = x + self.attend(self.norm_attention(x), cos, sin)
            y = self.norm_feed(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

        def attend(self, x: Any, cos: Any, sin: Any) -> Any:
            batch, seq, width = x.shape
            q = self.query(x).view(batch, seq, self.heads, self.head).transpose(1, 2)
            k = self.key(x).view(batch, seq, self.kv_heads, self.head).transpose(1, 2)
            v = self.value(x).view(batch, seq, self.kv_heads, self.head).transpose(1, 2)
            groups = self.heads // self.kv_heads
            k, v = (each.repeat_interleave(groups, 1) for each in (_rotate(torch, k, cos, sin), v))
            q = _rotate(torch, q, cos, sin)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    class Llama(nn.Module):  # type: ignore[misc, name-defined]
        """Takes tokens (batch × seq + 1), returns the mean cross-entropy in nats."""

        def __init__(self, size: Size, nominal: Size, product: Product) -> None:
            super().__init__()
            self.embed = nn.Embedding(size.vocab, size.width)
            self.layers = nn.ModuleList(Block(size, nominal, product) for _ in range(size.layers))
            self.norm = Norm(size.width)
            self.head = Linear(size.width, size.vocab, (nominal.width, nominal.vocab), product)
            half = torch.arange(0, size.head, 2).float() / size.head
            angles = torch.outer(torch.arange(size.seq).float(), _THETA**-half)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens[:, :-1])
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            logits = self.head(self.norm(x)).float()
            return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return type("Kinds", (), {"Llama": Llama, "Block": Block})


def _rms_norm(x: Any, shape: Any, weight: Any, epsilon: float) -> Any:
    """``torch.nn.functional.rms_norm`` over the last extent."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight).type_as(x)


def _rotate(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864): pairs of half-width neighbours turned by the place."""
    one, other = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)
