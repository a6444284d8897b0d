"""The training acceptance in one rank, phase by phase; what it measures goes to the node's process."""

from __future__ import annotations

import dataclasses
import gc
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from muster_node.cluster.collectives.fabric import Fabric, open_fabric
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.storage.checkpoint_phase import checkpoint_phase
from muster_node.cluster.training.bitwise import PART_ROWS, replica, rows_of, same_batch, spans_of
from muster_node.cluster.training.pace import StepTimes
from muster_node.cluster.training.trainer import BLOCK, NODE, Recipe, Trainer, Work, groups_of
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device
from muster_node.workloads.common import MIB, median, quantile, spread
from muster_node.workloads.golden_key import facts_of, golden_key, pace_key
from muster_node.workloads.models import llama
from muster_node.workloads.models.transformer import Shape, Transformer

SHAPES = {
    "cpu": Shape(layers=2, d_model=64, head_dim=32, seq=32, batch=4, vocab=64),
    "gpu": Shape(layers=4, d_model=4096, head_dim=128, seq=2048, batch=4, vocab=256),
}
"""Of the bitwise test, by kind of device."""

DTYPES = {"cpu": "float32", "gpu": "bfloat16"}
_SQUARE = {"cpu": 512, "gpu": 8192}
_GEMM_REPEATS = 5
_PATH_REPEATS = 5
_TURNS = 3
_MICRO_MAX = 256
_TRACED_STEPS = 20
"""So many further steps are traced with FSDP on GPUs, where only a trace tells compute and exposed communication apart;
fewer where fewer were timed. Each costs a step of ``step_s``, and its profiler.
"""
AFTER = "after"
"""The label of the step that repeats the bitwise test after the load."""


def turns_of(nodes: int) -> list[int]:
    """By node of a ring of at least two: the turn in which it sends to the next, so that no node does both in one.

    >>> turns_of(4), turns_of(5)
    ([0, 1, 0, 1], [0, 1, 0, 1, 2])
    """
    return [_TURNS - 1 if nodes % 2 and node == nodes - 1 else node % 2 for node in range(nodes)]


def preload(torch: Any) -> None:
    """Has PyTorch import, before the ranks are forked, what each would otherwise import itself in seconds."""
    importlib.import_module("torch.distributed.checkpoint.state_dict")
    importlib.import_module("torch.distributed.fsdp")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.use_deterministic_algorithms(False)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])


class Acceptance:
    """Callable in each rank's process. ``all_devices``: those of the node that run the same batch."""

    def __init__(self, params: Mapping[str, Any], seed: int, all_devices: Sequence[Device]) -> None:
        self._params, self._seed, self._all = params, seed, all_devices

    def __call__(self, group: RankGroup) -> None:
        """Runs all phases."""
        self._group, self._kind = group, group.device.kind
        self._torch = torch = require_torch()
        torch.set_num_threads(1)
        group.agree(f"{self._kind}, {self._shape()}")
        self._most = max(group.gather(len(self._all)))
        group.begin("same_batch")
        mine = self._all[group.local :: group.per_node]
        spans = spans_of(self._params["same_steps"], self._most)
        self._same_batches(mine, {f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]): span for span in spans})
        group.gather()
        group.begin("rendezvous")
        compute = group.hardware.compute(group.device)
        recipe = self._recipe(compute)
        with open_fabric(torch, group, compute.torch_device) as fabric:
            groups = groups_of(torch, fabric, group, recipe.layout)
            work = self._alone(compute, recipe, groups)
            if recipe.layout == llama.DDP and compute.torch_device.type == "cpu":
                # DDP of all ranks does not need it, and threads of an idle gloo group wake 100 times a second.
                gc.collect()  # its trainer refers to itself
                torch.distributed.destroy_process_group(groups)
                groups = None
            trainer = self._together(compute, recipe, groups, work)
            self._paths(fabric)
            group.begin("same_batch_again")
            self._same_batches(mine, {AFTER: range(1)})
            group.gather()
            group.begin("checkpoint")
            checkpoint_phase(torch, group, trainer, self._params)
            group.gather()

    def _shape(self) -> Shape:
        shape, layers = SHAPES[self._kind], self._params["layers"]
        return dataclasses.replace(shape, layers=layers) if layers else shape

    def _same_batches(self, devices: Sequence[Device], spans: Mapping[str, range]) -> None:
        """``spans``: {label: the steps that a row of digests stands for}."""
        self._torch.use_deterministic_algorithms(True, warn_only=True)
        for device in devices:
            self._same_batch(device, spans)
        self._torch.use_deterministic_algorithms(False)
        self._give_back()

    def _give_back(self) -> None:
        """Frees the memory of models that are done with: they refer to themselves, so that a collection alone does."""
        if self._kind == "gpu" and self._torch.cuda.is_available():
            gc.collect()
            self._torch.cuda.empty_cache()

    def _same_batch(self, device: Device, spans: Mapping[str, range]) -> None:
        group, emit = self._group, self._group.emit
        shape, dtype = self._shape(), DTYPES[device.kind]
        model = replica(self._torch, group.hardware, device, shape, dtype, self._seed)
        when = AFTER if AFTER in spans else "before"
        if when != AFTER:
            for metric, text in self._keys(model).items():
                emit(metric, device.id, text=text)
        differing: list[str] = []
        compared = 0
        for label, steps in spans.items():
            trials = [same_batch(self._torch, model, self._seed, number, group.mark) for number in steps]
            parts = len(trials[0].digests)
            # Of the first step each part is reported, since what always fails shows there; of the others all at once.
            each_part = 0 in steps and self._most * parts <= PART_ROWS
            for labels, text in rows_of(label, trials, each_part=each_part):
                emit("step_digest", device.id, text=text, labels=labels, samples=2)
            compared += parts * len(trials)
            for trial in trials:
                step = label if len(trials) == 1 else str(trial.step)
                differing += [f"step {step} {kind} of layer {layer}" for kind, layer in trial.differing]
                if trial.differing:
                    emit("self_mismatches", device.id, value=len(differing), labels={"when": when}, so_far=True)
        note = f"the first is {differing[0]}" if differing else ""
        emit("self_mismatches", device.id, value=len(differing), samples=compared, note=note, labels={"when": when})

    def _keys(self, model: Transformer) -> dict[str, str]:
        """By metric: what must be equal for a device's digests, or its times, to be comparable."""
        shape, facts = model.shape, facts_of(self._group.hardware)
        sizes = f"{DTYPES[model.compute.device.kind]}, {shape.layers}×{model.tokens}×{model.d}"
        keys = {"digest_key": golden_key, "pace_key": pace_key}
        return {metric: key(self._torch, model.compute, facts, sizes=sizes) for metric, key in keys.items()}

    def _recipe(self, compute: Compute) -> Recipe:
        """The recipe, the same on all ranks: what fits on the device with the least memory."""
        group, params = self._group, self._params
        chosen = (llama.CPU_SIZE, llama.DDP)
        if self._kind == "gpu":
            chosen = llama.choose_size(compute.free_memory(), group.per_node)
        order = list(llama.SIZES)
        # Of two layouts of one size, FSDP needs less memory.
        name, layout = min(group.gather(list(chosen)), key=lambda each: (order.index(each[0]), each[1] != llama.FSDP))
        if group.hardware.simulated:
            name, layout = "1b", llama.DDP  # only products are modelled; what memory holds is not
        name, layout = params["model"] or name, params["layout"] or layout
        if name not in llama.SIZES or layout not in (llama.DDP, llama.FSDP):
            raise ValueError(f"there is no model {name!r} as {layout!r}: it is one of {', '.join(order)}, ddp or fsdp")
        size = llama.SIZES[name]
        if params["layers"]:
            size = dataclasses.replace(size, layers=params["layers"])
        compiled = bool(params["compile"]) and not group.hardware.simulated
        return Recipe(name, size, layout, DTYPES[self._kind], compiled)

    def _alone(self, compute: Compute, recipe: Recipe, groups: Any) -> Work:
        """Each node by itself, all nodes at once; returns the work of a step, on which all agree."""
        group, params = self._group, self._params
        group.begin("calibration")
        best = self._gemm_best(compute, recipe)
        trainer = Trainer(self._torch, group, compute, recipe, groups, NODE, self._seed)
        work = self._work(trainer)
        group.begin("alone")
        steps = self._train(trainer, work, params["alone_steps"])
        self._rates(NODE, recipe, work, steps, best)
        group.gather()
        del trainer
        self._give_back()
        return work

    def _together(self, compute: Compute, recipe: Recipe, groups: Any, work: Work) -> Trainer:
        group, size = self._group, recipe.size
        alone = self._rate_alone
        trainer = Trainer(self._torch, group, compute, recipe, groups, BLOCK, self._seed)
        group.begin("training")
        steps = self._train(trainer, work, self._params["steps"])
        together = self._rates(BLOCK, recipe, work, steps, self._best)
        sums = group.gather([alone, together])
        nodes = [each[0] for each in sums[:: group.per_node]]
        if group.local == 0:
            group.emit("scaling", "node", value=min(each[1] for each in sums) / sum(nodes), samples=len(steps))
            group.emit("training_devices", "node", value=group.per_node)
            note = (
                f"{recipe.name}: N = {size.computed:,} without the embedding, L = {size.layers}, d = {size.width}, "
                f"s = {size.seq}, {recipe.dtype}, {recipe.layout}{', compiled' if recipe.compiled else ''}"
            )
            group.emit("training_recipe", "node", text=note)
            group.emit("flop_per_token", "node", value=size.flop_per_token, note="6 N + 6 L d s")
        self._report(steps, trainer, work)
        return trainer

    def _train(self, trainer: Trainer, work: Work, count: int) -> list[StepTimes]:
        warm = self._params["warm_steps"]
        for number in range(warm):
            trainer.step(number, work)
        return [trainer.step(number, work) for number in range(warm, warm + max(1, count))]

    def _work(self, trainer: Trainer) -> Work:
        """As many tokens as take ``step_s``; the first steps warm everything up and measure the speed."""
        group, size, hardware = self._group, trainer.recipe.size, self._group.hardware
        capped = trainer.size.tokens < size.tokens
        trainer.step(0, Work(1, size.tokens))
        clock, real = hardware.clock, hardware.host_clock
        begun, really_begun = clock.now(), real.now()
        first = trainer.step(0, Work(1, size.tokens))
        # A simulated clock runs faster, and what takes long there passes in a moment here.
        speed = (clock.now() - begun) / max(real.now() - really_begun, 1e-6)
        wanted = size.tokens * self._params["step_s"] * speed / max(first.compute, 1e-9)
        wishes = sorted(group.gather(wanted))
        tokens = int(self._params["tokens"] or max(1.0, wishes[len(wishes) // 2]))
        if capped:
            return Work(1, tokens)
        micro = min(_MICRO_MAX, max(1, round(tokens / size.tokens)))
        return Work(micro, micro * size.tokens)

    def _gemm_best(self, compute: Compute, recipe: Recipe) -> float:
        """FLOP/s of the best product of the model's shapes."""
        torch, size, side = self._torch, recipe.size, _SQUARE[self._kind]
        dtype = getattr(torch, recipe.dtype)
        best = 0.0
        for m, n, k in ((side, side, side), (size.tokens, size.ff, size.width), (size.tokens, size.vocab, size.width)):
            self._group.mark(f"product {m}×{n}×{k}")
            rows, columns, depth = compute.physical(m, n, k)
            a = torch.randn(rows, depth, device=compute.torch_device).to(dtype)
            b = torch.randn(depth, columns, device=compute.torch_device).to(dtype)
            compute.matmul(a, b, nominal=(m, n, k))
            for _ in range(_GEMM_REPEATS):
                with compute.timer() as timing:
                    compute.matmul(a, b, nominal=(m, n, k))
                best = max(best, 2.0 * m * n * k / max(timing.seconds, 1e-9))
        self._best = best
        self._group.emit("gemm_best", self._group.device.id, value=best, samples=3 * _GEMM_REPEATS)
        return best

    def _rates(self, scope: str, recipe: Recipe, work: Work, steps: Sequence[StepTimes], best: float) -> float:
        """Emits the throughput of a scope; returns its tokens a second."""
        group, times = self._group, [step.whole for step in steps]
        ranks = group.per_node if scope == NODE else group.world
        rate = work.tokens * ranks / median(times)
        if scope == NODE:
            self._rate_alone = min(group.gather(rate)[group.rank - group.local :][: group.per_node])
            rate = self._rate_alone
        share = 100.0 * rate / ranks * recipe.size.flop_per_token / best
        group.emit("share_of_gemm", group.device.id, value=share, labels={"scope": scope}, samples=len(steps))
        if group.local == 0:
            # Not in the recipe: how many they are depends on the speed, and blocks are compared by their recipe.
            note = f"{work.tokens:,} tokens a rank and step"
            group.emit("tokens_per_s", "node", value=rate, labels={"scope": scope}, samples=len(steps), note=note)
            for stat, value in (("p50", median(times)), ("p95", quantile(times, 0.95))):
                group.emit("step_time", "node", value=value, labels={"scope": scope, "stat": stat}, samples=len(steps))
        return rate

    def _report(self, steps: Sequence[StepTimes], trainer: Trainer, work: Work) -> None:
        group, device = self._group, self._group.device.id
        compute, exposed = [step.compute for step in steps], [step.exposed for step in steps]
        further = range(len(steps), len(steps) + min(len(steps), _TRACED_STEPS))
        traces = [trace for number in further if (trace := trainer.split(number, work))]
        if traces:
            compute, exposed = ([trace[part] for trace in traces] for part in (0, 1))
        parts = {
            "step_compute": compute, "step_wait": exposed,
            "step_input": [step.input for step in steps], "step_update": [step.update for step in steps],
        }  # fmt: skip
        for metric, values in parts.items():
            group.emit(metric, device, value=median(values), samples=len(values), spread=spread(values))
        if self._kind == "gpu":  # of a CPU the kernel tells the clock of a moment only
            clock = trainer.clock_mhz(further.stop, work)
            note = "" if clock else "the device does not tell its clock"
            group.emit("step_clock", device, value=clock, note=note)
        times = [step.whole for step in steps]
        weights = trainer.weights_digest()
        shard = "all" if trainer.recipe.layout == llama.DDP else str(group.local)
        group.emit("weights_digest", device, text=weights, labels={"shard": shard})
        summary = [median(compute), median(exposed), spread(compute) or 0.0, quantile(times, 0.95) / median(times)]
        here = group.gather(summary)[group.rank - group.local :][: group.per_node]
        if group.local == 0:
            group.emit("weights_digest", "node", text=weights, note="of its first rank")
            slowest = max(here)
            group.emit("step_compute", "node", value=slowest[0], samples=len(compute), spread=slowest[2])
            group.emit("step_wait", "node", value=slowest[1], samples=len(exposed))
            group.emit("step_p95_to_p50", "node", value=max(each[3] for each in here), samples=len(steps))
            for name, step in (("first", steps[0]), ("last", steps[-1])):
                group.emit("loss", "node", value=step.loss, labels={"step": name})

    def _paths(self, fabric: Fabric) -> None:
        """Each rank sends to the same device of the next node, every other node at a time: each path by itself.

        No rank has two messages under way: NCCL would wait for ever for the second, or take one for the other.
        """
        group, torch, dist = self._group, self._torch, self._torch.distributed
        group.begin("paths")
        ahead, behind = (group.rank + group.per_node) % group.world, (group.rank - group.per_node) % group.world
        mine, before = (turns_of(len(group.names))[rank // group.per_node] for rank in (group.rank, behind))
        elements = max(1, int(self._params["path_mib"] * MIB) // 4)
        sent, got = torch.ones(elements, device=fabric.device), torch.empty(elements, device=fabric.device)
        clock, rates = group.hardware.host_clock, []
        for repeat in range(1 + _PATH_REPEATS):
            for turn in range(_TURNS):
                with group.waiting(f"message {repeat} of {group.node_of(behind)}"):
                    fabric.barrier()
                    begun = clock.now()
                    if turn == mine:
                        dist.send(sent, ahead)
                    elif turn == before:
                        dist.recv(got, behind)
                    fabric.settle()
                if turn == before and repeat:
                    rates.append(4.0 * elements / max(clock.now() - begun, 1e-9) / 1e9)
        labels = {"sender": group.node_of(behind)}
        group.emit(
            "path_rate", group.device.id, value=median(rates), labels=labels, samples=len(rates), spread=spread(rates)
        )
        group.gather()
