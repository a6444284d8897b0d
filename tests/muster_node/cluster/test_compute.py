"""What members compute: digests that change with any bit, payloads with one correct value, correct gradients."""

from __future__ import annotations

import functools
import itertools
import operator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from muster_node.cluster.collectives.exchange import ANYBODY, OPS, PERIOD, RANKS_MAX, Exchange, Payload, busbw_factor
from muster_node.cluster.rendezvous.block import PARAMS, block_of
from muster_node.cluster.training.bitwise import same_batch
from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Compute
from muster_node.probe import Probe, resolve_params
from muster_node.workloads.digest import digest
from muster_node.workloads.models.transformer import Shape, Transformer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
SHAPE = Shape(layers=2, d_model=32, head_dim=16, seq=8, batch=2, vocab=16)


class Plain(Compute):
    """A device that computes on the CPU and, with ``flip``, flips a bit of that product."""

    def __init__(self, flip: int | None = None) -> None:
        self.device = open_hardware().devices("cpu")[0]
        self.torch_device = torch.device("cpu")
        self.flip, self.products = flip, 0

    def physical(self, *shape: int) -> tuple[int, ...]:
        return shape

    def matmul(self, a: Any, b: Any, *, nominal: tuple[int, int, int], out_dtype: Any = None) -> Any:
        product = torch.mm(a, b)
        assert (a.shape[0], b.shape[1], a.shape[1]) == nominal
        if self.products == self.flip:
            product.view(-1).view(torch.int32)[5] ^= 1
        self.products += 1
        return product

    def copy(self, target: Any, source: Any, *, nominal_bytes: int) -> None:
        raise NotImplementedError

    def touch(self, tensor: Any, *, nominal_bytes: int) -> Any:
        raise NotImplementedError

    def timer(self) -> Any:
        raise NotImplementedError

    def free_memory(self) -> int:
        raise NotImplementedError


class Silent:
    """A group without other members."""

    def mark(self, activity: str) -> None:
        pass


def model(flip: int | None = None, dtype: str = "float32") -> Transformer:
    return Transformer(torch, Plain(flip), SHAPE, dtype, seed=3)


def trial(flip: int | None = None, step: int = 0) -> Any:
    return same_batch(torch, model(flip), 7, step, Silent().mark)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 31)), min_size=1, max_size=6, unique=True))
def test_any_flipped_bits_change_the_digest(flips: list[tuple[int, int]]) -> None:
    before = torch.arange(64).float()
    after = before.clone()
    for place, bit in flips:
        after.view(torch.int32)[place] ^= -(1 << 31) if bit == 31 else 1 << bit
    assert digest(torch, [after]) != digest(torch, [before])


@pytest.mark.parametrize("stride", [1, 2, 8])
def test_four_elements_altered_by_the_same_mask_do_not_cancel(stride: int) -> None:
    """What real faults do. Exclusive or misses it always, evenly growing weights where the signs run + − − +."""
    before = torch.zeros(100, dtype=torch.int32)
    places = torch.arange(10, 10 + 4 * stride, stride)
    before[places] = torch.tensor([0, 1, 1, 0], dtype=torch.int32) << 20
    after = before.clone()
    after[places] ^= 1 << 20
    evenly = 2 * torch.arange(100) + 1
    assert int((before * evenly).sum()) == int((after * evenly).sum())
    assert digest(torch, [after]) != digest(torch, [before])


@pytest.mark.parametrize("flips", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_an_even_number_of_flips_of_the_topmost_bit_does_not_cancel(dtype: Any, flips: int) -> None:
    before = torch.arange(1, 101).to(dtype)
    after = before.clone()
    words = after.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[before.element_size()])
    words[10 : 10 + 8 * flips : 8] ^= torch.iinfo(words.dtype).min
    assert digest(torch, [after]) != digest(torch, [before])


def test_places_and_tensors_count() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert digest(torch, [one]) != digest(torch, [two])
    assert digest(torch, [one, two]) != digest(torch, [two, one])
    assert digest(torch, [torch.tensor([0.0])]) != digest(torch, [torch.tensor([-0.0])])
    assert len(digest(torch, [torch.randn(99).bfloat16()])) == 32


def test_a_digest_does_not_depend_on_how_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(1000)
    expected = digest(torch, [whole])
    monkeypatch.setattr("muster_node.workloads.digest._CHUNK", 7)
    assert digest(torch, [whole]) == digest(torch, [whole[:10], whole[10:]]) == expected


SEED = 5
CPU = torch.device("cpu")
SUMS = ("all_reduce", "reduce_scatter")
COPIES = tuple(op for op in OPS if op not in SUMS)


def bits_of(buffer: Any) -> list[int]:
    words: list[int] = buffer.view(torch.int32).tolist()
    return words


def brute(op: str, ranks: int, rank: int, elements: int) -> list[float]:
    """The right answer, from the definition of the collective alone; sums by exact fractions."""
    of = Payload(torch, op, ranks, CPU, SEED)
    buffers = [of.of(each, 0, elements).tolist() for each in range(ranks)]
    share = elements // ranks
    sums = [float(sum(map(Fraction, column))) for column in zip(*buffers, strict=True)] if op in SUMS else []
    mine = slice(rank * share, (rank + 1) * share)
    return {
        "all_reduce": sums,
        "all_gather": list(itertools.chain(*(buffer[:share] for buffer in buffers))),
        "reduce_scatter": sums[mine],
        "all_to_all": list(itertools.chain(*(buffer[mine] for buffer in buffers))),
        "send_recv": buffers[rank - 1],
    }[op]


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element_is_attributed_to_its_sender(op: str) -> None:
    ranks, elements = 3, 15_000  # parts are longer than a period
    for rank in range(ranks):
        exchange = Exchange(torch, op, rank, ranks, elements, CPU, SEED)
        answer = torch.tensor(brute(op, ranks, rank, elements))
        exchange.result.copy_(answer)
        assert exchange.wrong() == {}
        exchange.result.view(torch.int32)[7_500 % answer.numel()] ^= 1
        sender = {"all_gather": 1, "all_to_all": 1, "send_recv": (rank - 1) % ranks}.get(op, ANYBODY)
        assert exchange.wrong() == {sender: 1}
        exchange.reset()
        assert sum(exchange.wrong().values()) > answer.numel() // 2


def constant_bits(buffers: list[Any]) -> int:
    """Bits of a word that are the same in all words."""
    words = [word & 0xFFFFFFFF for buffer in buffers for word in bits_of(buffer)]
    return 0xFFFFFFFF ^ functools.reduce(operator.or_, words) | functools.reduce(operator.and_, words)


@pytest.mark.parametrize("op", OPS)
def test_no_bit_of_what_is_exchanged_is_constant(op: str) -> None:
    of = Payload(torch, op, 8, CPU, SEED)
    parts = [of.of(rank, 0, PERIOD) for rank in range(8)]
    assert constant_bits(parts) == (0b111 if op in SUMS else 0)  # eight parts need three bits more for their sum
    if op in SUMS:
        assert constant_bits([of.total(0, PERIOD)]) == 0


@pytest.mark.parametrize("op", OPS)
def test_another_seed_gives_another_payload(op: str) -> None:
    first, other = (Payload(torch, op, 4, CPU, seed).of(2, 100, 500) for seed in (1, 2))
    assert int((first != other).sum()) > 450


@pytest.mark.parametrize("ranks", [2, 8, 104, RANKS_MAX])
def test_sums_are_exact_in_any_order(ranks: int) -> None:
    """Also in rings that begin at any rank, and in trees of partial sums."""
    of = Payload(torch, "all_reduce", ranks, CPU, SEED)
    parts = torch.stack([of.of(rank, 1000, 64) for rank in range(ranks)])
    wanted = bits_of(of.total(1000, 64))
    for start in (0, ranks // 3):
        ring = parts.roll(start, 0)
        partial = ring[0].clone()
        for part in ring[1:]:
            partial += part
        assert bits_of(partial) == wanted
    while len(parts) > 1:
        half = len(parts) // 2
        parts = torch.cat([parts[:half] + parts[half : 2 * half], parts[2 * half :]])
    assert bits_of(parts[0]) == wanted


@pytest.mark.parametrize("op", OPS)
def test_what_never_arrived_is_wrong_everywhere(op: str) -> None:
    exchange = Exchange(torch, op, 0, 2, 6000, CPU, SEED)
    if op != "all_reduce":  # which begins with its own part in the place of the sum
        assert sum(exchange.wrong().values()) == exchange.clear(exchange.result).numel()


@pytest.mark.parametrize("op", OPS)
def test_a_flipped_sign_is_wrong(op: str) -> None:
    exchange = Exchange(torch, op, 0, 2, 6000, CPU, SEED)
    exchange.result.copy_(exchange._expected)
    exchange.result.view(torch.int32)[77] ^= -(1 << 31)
    assert sum(exchange.wrong().values()) == 1


@pytest.mark.parametrize("op", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("others", [(0, 97), (0, 1), (96, 97)])
def test_swapped_and_reversed_parts_are_wrong_for_all_ranks_of_a_large_block(op: str, others: tuple[int, int]) -> None:
    exchange = Exchange(torch, op, 5, 104, 104 * 1024, CPU, SEED)
    good = exchange._expected.clone()
    first, second = (exchange.span(rank) for rank in others)
    exchange.result.copy_(good)
    exchange.result[first], exchange.result[second] = good[second].clone(), good[first].clone()
    assert set(exchange.wrong()) == set(others)
    exchange.result.copy_(good)
    exchange.result[second] = good[second].flip(0)
    assert set(exchange.wrong()) == {others[1]}


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_payloads_of_as_many_ranks_as_there_may_be_differ(op: str) -> None:
    of = Payload(torch, op, RANKS_MAX, CPU, SEED)
    parts = [of.of(rank, 0, 64) for rank in range(1024)]
    assert len({tuple(part.tolist()) for part in parts}) == 1024
    assert all(len(part.unique()) > 1 for part in parts)


@pytest.mark.parametrize("op", OPS)
def test_the_right_answer_takes_one_period_of_each_rank(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not its buffer: of a large block this would be minutes on a CPU, without a sign of progress."""
    real, computed, marks = torch.arange, list[int](), list[str]()

    def counted(low: int, end: int, **keys: Any) -> Any:
        computed.append(end - low)
        return real(low, end, **keys)

    monkeypatch.setattr(torch, "arange", counted)
    ranks, elements = 64, 16 * 2**20 // 4
    Exchange(torch, op, 1, ranks, elements, CPU, SEED, mark=marks.append)
    assert sum(computed) <= (ranks + 2) * PERIOD
    assert len(marks) == 2


@pytest.mark.parametrize(("op", "ranks"), [("broadcats", 2), ("all_reduce", RANKS_MAX + 1)])
def test_an_unknown_collective_and_too_many_ranks_are_refused(op: str, ranks: int) -> None:
    with pytest.raises(ValueError):
        Exchange(torch, op, 0, ranks, ranks, CPU, SEED)


def test_bus_bandwidth_is_counted_as_nccl_tests_count_it() -> None:
    factors = {op: busbw_factor(op, 4) for op in OPS}
    shares = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), 0.75)
    assert factors == {"all_reduce": 1.5, "send_recv": 1.0, **shares}


def test_gradients_are_those_of_plain_pytorch() -> None:
    ours = model()
    batch = ours.batch(1, ours.tokens)
    _, gradients = ours.gradients(batch)
    plain = model()
    plain._product = lambda x, w, nominal, layer: x @ w
    loss = plain.loss(plain.batch(1, plain.tokens))
    expected = torch.autograd.grad(loss, plain.weights)
    for name, one, other in zip(ours.names, gradients, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6), name
        assert one.abs().max() > 0, name


def test_the_same_seed_gives_the_same_digests_and_every_step_its_own() -> None:
    first, again, other = trial(), trial(), trial(step=1)
    assert first.digests == again.digests
    assert first.differing == []
    assert all(first.digests[key] != other.digests[key] for key in first.digests)
    layers = {"embed", "0", "1", "head"}
    assert set(first.digests) == set(itertools.product(("activations", "gradients"), layers))


@pytest.fixture(scope="module")
def right() -> Any:
    """A trial without a flip."""
    return trial()


@pytest.mark.parametrize("flip", range(10 + 19))
def test_one_flipped_bit_in_any_product_shows_where_it_happened(flip: int, right: Any) -> None:
    """Ten products forwards, and backwards two for each but the embedding, whose input needs no gradient.

    The lowest bit: what it changes is often rounded away by the next step, and has to be seen before.
    """
    spoilt = trial(flip)
    changed = {part for part in right.digests if spoilt.digests[part] != right.digests[part]}
    assert changed == set(spoilt.differing)
    order = ["embed", *["0"] * 4, *["1"] * 4, "head"]
    if flip < 10:
        assert ("activations", order[flip]) in changed
    else:
        backwards = [layer for layer in order[:0:-1] for _ in range(2)] + ["embed"]
        assert ("gradients", backwards[flip - 10]) in changed
        assert {kind for kind, _ in changed} == {"gradients"}


def test_training_moves_the_loss_down() -> None:
    trained = model()
    batch = trained.batch(1, trained.tokens)
    losses = []
    for _ in range(5):
        loss, gradients = trained.gradients(batch)
        losses.append(float(loss))
        with torch.no_grad():
            for weight, gradient in zip(trained.weights, gradients, strict=True):
                weight -= 0.05 * gradient
    assert losses == sorted(losses, reverse=True)


class Fake(Probe):
    name = "fake"
    params = PARAMS


GOOD = {"rank": 1, "members": ["a", "b"], "master_addr": "a", "master_ports": [29500], "session": "s"}


BAD: list[dict[str, Any]] = [
    {"members": "a,b"},
    {"members": ["a", "b/\u2028"]},
    {"members": ["a"]},
    {"members": ["a", "a"]},
    {"rank": 2},
    {"rank": True},
    {"master_ports": [0]},
    {"session": ""},
    {"master_addr": None},
    {"stall_timeout_s": 0},
]


def test_wording_of_parameters_that_do_not_fit(snapshot: SnapshotAssertion) -> None:
    sentences = []
    for changed in BAD:
        with pytest.raises(ValueError) as refused:
            block_of("fake", resolve_params(Fake, {**GOOD, **changed}), 1)
        sentences.append(str(refused.value))
    assert sentences == snapshot


def test_members_agree_on_everything_but_their_rank() -> None:
    def terms(seed: int = 1, **changed: Any) -> str:
        return block_of("fake", resolve_params(Fake, {**GOOD, **changed}), seed).terms

    assert terms() == terms(rank=0)
    others = [terms(seed=2), terms(master_ports=[1]), terms(members=["b", "a"]), terms(join_timeout_s=1.0)]
    assert len({terms(), *others}) == 5
