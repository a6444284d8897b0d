"""The decoder, its count of FLOP, what fits, and what a step's time goes into."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_node.cluster.storage import replaceable
from muster_node.cluster.storage.checkpoint import folders_of, same_loss, sentence_of, trouble_at
from muster_node.cluster.training.acceptance import turns_of
from muster_node.cluster.training.faults import measured
from muster_node.cluster.training.pace import HostPace, exposed_of
from muster_node.cluster.training.trainer import BLOCK, Recipe, Trainer, Work, groups_of, own_buffers
from muster_node.hardware.seam import RealClock
from muster_node.workloads.models import llama

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
TINY = llama.Size(layers=2, width=32, heads=4, kv_heads=2, ff=64, vocab=64, seq=16, batch=2)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (2.5, 2.5, True),
        (2.5, 2.5000000000000004, False),
        (float("nan"), float("nan"), True),
        (2.5, float("nan"), False),
    ],
)
def test_a_loss_is_the_same_after_a_load_also_where_another_rank_has_made_it_nan(
    before: float, after: float, same: bool
) -> None:
    assert same_loss(before, after) is same


def test_flop_are_counted_as_nvidia_counts_them() -> None:
    """Megatron-Bridge's performance summary 25.11: 744 TFLOPS at 14,451 tokens/s are 51.5 GFLOP a token."""
    assert llama.SIZES["8b"].flop_per_token == pytest.approx(744e12 / 14_451, rel=0.002)
    assert llama.SIZES["8b"].parameters == pytest.approx(8.03e9, rel=0.001)


@pytest.mark.parametrize("nodes", range(2, 10))
def test_no_node_of_a_ring_sends_and_receives_in_one_turn(nodes: int) -> None:
    turns = turns_of(nodes)
    assert all(turns[node] != turns[node - 1] for node in range(nodes))
    assert len(turns) == nodes
    assert set(turns) <= {0, 1, 2}


def test_buffers_stay_each_rank_s_own_by_the_name_that_pytorch_knows() -> None:
    class Older:
        def __init__(self, module: object, broadcast_buffers: bool = True) -> None: ...

    class Newer:
        def __init__(
            self, module: object, broadcast_buffers: object = None, forward_sync_buffers: bool = True
        ) -> None: ...

    assert own_buffers(Older) == {"broadcast_buffers": False}
    assert own_buffers(Newer) == {"forward_sync_buffers": False}
    assert own_buffers(torch.nn.parallel.DistributedDataParallel) == {"forward_sync_buffers": False}


@pytest.mark.parametrize("name", ["1m", "125m"])
def test_parameters_are_those_of_the_model(name: str) -> None:
    size = llama.SIZES[name]
    with torch.device("meta"):
        model = llama._kinds(torch).Llama(size, size, llama.plain_product(torch))
    assert sum(each.numel() for each in model.parameters()) == size.parameters


@pytest.mark.parametrize("name", llama.SIZES)
def test_layers_keep_as_much_as_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tensors that two layers save more than one, in bf16 as FSDP computes, with flash attention as on GPUs."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    attention = lambda q, k, v, is_causal: flash(q, k, v, 0.0, is_causal)[0]  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    one, two = (dataclasses.replace(llama.SIZES[name], layers=layers) for layers in (1, 2))
    assert saved_bytes(two) - saved_bytes(one) == pytest.approx(one.layer_bytes, rel=0.01)


@pytest.mark.parametrize("name", llama.SIZES)
def test_a_layer_that_is_computed_again_keeps_its_input_alone(name: str) -> None:
    one, two = (dataclasses.replace(llama.SIZES[name], layers=layers) for layers in (1, 2))
    kept = [saved_bytes(size, recompute=True) for size in (one, two)]
    assert 0 < kept[1] - kept[0] <= one.input_bytes


def test_computed_again_or_not_the_gradients_are_the_same() -> None:
    tokens, found = llama.tokens_of(torch, TINY, 1), []
    for recompute in (False, True):
        model = llama.build(torch, TINY, 3, device=torch.device("cpu"))
        for layer in model.layers:
            layer.recompute = recompute
        model(tokens).backward()
        found.append([each.grad for each in model.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))


def saved_bytes(size: llama.Size, *, recompute: bool = False) -> int:
    """What autograd keeps of a forward pass, the weights left out."""
    with torch.device("meta"):
        model = llama._kinds(torch).Llama(size, size, llama.plain_product(torch)).to(torch.bfloat16)
        tokens = torch.zeros(size.batch, size.seq + 1, dtype=torch.long)
    for layer in model.layers:
        layer.recompute = recompute
    weights = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens)
    return sum(each.untyped_storage().nbytes() for storage, each in kept.items() if storage not in weights)


def test_the_largest_model_that_fits_is_chosen_and_divided_only_where_it_must_be() -> None:
    assert llama.choose_size(183e9, 8) == ("8b", llama.FSDP)
    assert llama.choose_size(80e9, 8) == ("8b", llama.FSDP)
    assert llama.choose_size(40e9, 8) == ("3b", llama.FSDP)
    assert llama.choose_size(80e9, 1) == ("1b", llama.DDP)
    assert llama.choose_size(1e6, 8) == (llama.CPU_SIZE, llama.DDP)


def test_the_decoder_learns_and_the_same_seed_gives_the_same_model() -> None:
    model = llama.build(torch, TINY, 3, device=torch.device("cpu"))
    again = llama.build(torch, TINY, 3, device=torch.device("cpu"))
    tokens = llama.tokens_of(torch, TINY, 1)
    assert torch.equal(model(tokens), again(tokens))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_the_decoder_trains_with_a_pytorch_that_has_no_rms_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.3 and before."""
    tokens = llama.tokens_of(torch, TINY, 1)
    usual = llama.build(torch, TINY, 3, device=torch.device("cpu"))(tokens)
    monkeypatch.delattr(torch.nn.functional, "rms_norm")
    llama._kinds.cache_clear()
    try:
        model = llama.build(torch, TINY, 3, device=torch.device("cpu"))
        loss = model(tokens)
        loss.backward()
    finally:
        llama._kinds.cache_clear()
    assert float(loss.detach()) == pytest.approx(float(usual.detach()))
    assert all(bool(each.grad.isfinite().all()) for each in model.parameters())


def test_no_place_sees_a_later_token() -> None:
    model = llama.build(torch, TINY, 3, device=torch.device("cpu"))
    seen: list[Any] = []
    model.head.register_forward_hook(lambda module, given, out: seen.append(out))
    tokens = llama.tokens_of(torch, TINY, 1)
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocab
    model(tokens)
    model(other)
    assert torch.equal(seen[0][:, :10], seen[1][:, :10])
    assert not torch.equal(seen[0][:, 10:], seen[1][:, 10:])


@given(st.integers(16, 96))
def test_a_model_cut_down_is_still_a_model(edge: int) -> None:
    size = llama.cut_down(llama.SIZES["8b"], lambda *shape: tuple(min(extent, edge) for extent in shape))
    assert size.width == size.heads * size.head
    assert size.heads % size.kv_heads == 0
    assert size.head % 2 == 0
    assert max(size.width, size.ff, size.vocab, size.seq) <= edge


def test_waiting_for_others_is_no_compute() -> None:
    class Thread:
        def timer(self) -> Any:
            from muster_node.hardware.host.cpu_compute import CpuCompute

            return CpuCompute.timer(self)  # type: ignore[arg-type]

        def _clock_mhz(self) -> None:
            return None

    pace = HostPace(Thread(), RealClock())  # type: ignore[arg-type]
    pace.begin()
    sum(range(1_000_000))
    pace.gradients_ready()
    time.sleep(0.2)
    compute, exposed = pace.end()
    assert exposed >= 0.2 > compute > 0


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda each: (each[0], sum(each))), max_size=12)


@given(spans, spans)
def test_exposed_communication_is_what_no_compute_hides(compute: Any, communication: Any) -> None:
    busy = {tick for begin, end in compute for tick in range(begin, end)}
    sent = {tick for begin, end in communication for tick in range(begin, end)}
    assert exposed_of(compute, communication) == (len(busy), len(sent - busy))


def test_a_traced_step_begins_once_all_ranks_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time for which another rank still reads its trace is this one's communication."""
    order: list[str] = []

    @contextlib.contextmanager
    def profile(**given: Any) -> Iterator[Any]:
        order.append("profiler")
        yield SimpleNamespace(events=list)

    made: Any = object.__new__(Trainer)
    made.recipe, made._device = SimpleNamespace(layout=llama.FSDP), SimpleNamespace(type="cuda")
    made._group = SimpleNamespace(gather=lambda: order.append("all there"))
    activity = SimpleNamespace(CUDA="cuda")
    made._torch = SimpleNamespace(profiler=SimpleNamespace(profile=profile, ProfilerActivity=activity))
    monkeypatch.setattr(Trainer, "step", lambda *given: order.append("step"))
    assert made.split(3, Work(1, 1)) == (0, 0)
    assert order == ["profiler", "all there", "step"]


def test_a_path_that_cannot_be_used_is_one_sentence(tmp_path: Any) -> None:
    assert trouble_at(tmp_path, 1000) == ""
    assert "not there" in trouble_at(tmp_path / "absent", 1000)
    assert "full" in trouble_at(tmp_path, 1 << 60)
    sentences = [sentence_of(tmp_path, OSError(number, "x")) for number in (30, 28, 13, 5)]
    assert len({*sentences}) == 4
    assert all(str(tmp_path) in sentence and "\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("mode", "parent", "usable"),
    [(0o755, 0o755, True), (0o1777, 0o755, True), (0o777, 0o755, False), (0o775, 0o755, True), (0o755, 0o777, False),
     (0o755, 0o1777, True), (0o770, 0o775, True)],
)  # fmt: skip
def test_a_path_in_which_others_may_replace_a_checkpoint_is_not_used(
    tmp_path: Any, mode: int, parent: int, usable: bool
) -> None:
    path = tmp_path / "scratch" / "shared"
    path.mkdir(parents=True)
    path.parent.chmod(parent)
    path.chmod(mode)
    assert (trouble_at(path, 1000) == "") is usable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize("at", ["shared", "."])
@pytest.mark.parametrize(
    ("owner", "group", "mode", "usable"),
    [(40002, 0, 0o755, False), (40002, 0, 0o1777, False), (0, 40002, 0o775, False), (0, 40002, 0o1775, True),
     (40001, 0, 0o755, True)],
)  # fmt: skip
def test_a_path_that_another_user_owns_is_not_used(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, at: str, owner: int, group: int, mode: int, usable: bool
) -> None:
    """40001 is the login, which docker's root inside is not."""
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    (scratch / "shared").mkdir(parents=True)
    work.mkdir()
    os.chown(work, 40001, 0)
    monkeypatch.setenv("MUSTER_WORK", str(work))
    os.chown(scratch / at, owner, group)
    (scratch / at).chmod(mode)
    why = trouble_at(scratch / "shared", 1000)
    assert (why == "") is usable
    assert usable or str((scratch / at).resolve()) in why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize(("uids", "usable"), [("0 0 4294967295", False), ("1000 1000 1", True)])
def test_where_a_container_hides_root_its_folders_may_be_used(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, uids: str, usable: bool
) -> None:
    (tmp_path / "uid_map").write_text(f"  {uids}\n")
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", 65534, 65534)
    monkeypatch.setattr(replaceable, "UID_MAP", tmp_path / "uid_map")
    assert (trouble_at(tmp_path / "shared", 1000) == "") is usable


def test_from_the_folder_of_one_part_nobody_can_tell_the_others() -> None:
    """In a sticky path, who makes a folder first owns it."""
    first, second = (folder.name.rpartition("-")[2] for folder in folders_of("/shared", "0f" * 16))
    assert first != second


def event(at: float, kind: str, step: int = -1, node: str = "n1") -> dict[str, Any]:
    return {"at": at, "kind": kind, "rank": 0, "step": step, "node": node}


def test_times_of_a_death_are_read_from_what_the_ranks_wrote() -> None:
    events = [
        event(0.0, "begun", 0), event(1.0, "step", 0), event(2.0, "step", 1), event(3.0, "step", 2),
        event(3.5, "killed", 3), event(3.8, "asked"), event(9.0, "resumed", 2), event(10.0, "step", 2),
    ]  # fmt: skip
    assert measured(events) == {"fault_detect": [pytest.approx(0.3)], "fault_restart": [6.5], "fault_lost_work": [1.5]}
    assert measured(events[:4]) == {}


@pytest.mark.parametrize("ahead_s", [-60.0, -4.0, 4.0, 60.0])
def test_the_clock_of_another_node_changes_no_time_of_a_death(ahead_s: float) -> None:
    events = [
        event(1.0, "step", 0), event(2.0, "step", 1), event(3.0, "step", 2), event(3.5, "killed", 3),
        event(9.0, "resumed", 2), event(10.0, "step", 2), event(11.0, "step", 3),
    ]  # fmt: skip
    theirs = [{**each, "at": each["at"] + ahead_s, "node": "n0"} for each in events if each["kind"] != "killed"]
    every = sorted([*events, *theirs, event(3.8 + ahead_s, "asked", node="n0")], key=lambda each: each["at"])
    found = measured(every)
    assert (found["fault_restart"], found["fault_lost_work"]) == ([6.5], [1.5])
    assert all(0 < each < 5.5 for each in found.get("fault_detect", ()))
    here = measured(sorted([*every, event(3.9, "asked")], key=lambda each: each["at"]))
    assert here["fault_detect"] == [pytest.approx(0.4)]


class Rank:
    """The first of four ranks on two nodes. The others are PyTorch's fake ones, which answer at once."""

    rank, world, per_node, names = 0, 4, 2, ("n0", "n1")
    hardware = SimpleNamespace(clock=RealClock(), simulated=False)

    def mark(self, activity: str) -> None: ...

    def wait(self, what: str) -> None: ...

    def work(self) -> None: ...

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        yield


@pytest.fixture
def others() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=Rank.world)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("micro", [1, 4])
def test_nodes_exchange_gradients_once_a_step(micro: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By FSDP, once for each layer and once for what stands outside of them."""
    device, sums, original = torch.device("cpu"), [], torch.distributed.all_reduce

    def counted(*args: Any, **kwargs: Any) -> Any:
        sums.append(args)
        return original(*args, **kwargs)

    group: Any = Rank()
    timer = lambda: contextlib.nullcontext(SimpleNamespace(seconds=0.0, mean_clock_mhz=None))  # noqa: E731
    compute: Any = SimpleNamespace(physical=lambda *extents: extents, torch_device=device, timer=timer)
    mesh = groups_of(torch, SimpleNamespace(device=device), group, llama.FSDP)  # type: ignore[arg-type]
    trainer = Trainer(torch, group, compute, Recipe("tiny", TINY, llama.FSDP, "float32"), mesh, BLOCK, 1)
    monkeypatch.setattr(torch.distributed, "all_reduce", counted)
    trainer.step(0, Work(micro, micro * TINY.tokens))
    assert len(sums) == TINY.layers + 1
