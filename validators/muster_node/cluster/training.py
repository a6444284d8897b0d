"""The two halves of the training test: the same batch on every device, then one batch shared between all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from muster_node.cluster.digest import digest
from muster_node.cluster.fabric import Fabric
from muster_node.cluster.member import PeerGroup
from muster_node.hardware.seam import Device, Hardware, Worker
from muster_node.workloads.common import seed_of
from muster_node.workloads.transformer import Shape, Transformer

RATE = 0.05
"""Learning rate. It only has to move the weights, not to train well."""


Part = tuple[str, str]
"""Kind ("activations", "gradients") and layer."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One micro-batch on one device: digest by (kind, layer), and what the second run gave otherwise."""

    step: int
    digests: dict[Part, str]
    differing: list[Part]


def same_batch(torch: Any, model: Transformer, seed: int, step: int, group: PeerGroup) -> Trial:
    """Runs the step's micro-batch twice from the same weights, before any all-reduce: a mismatch is this device's own.

    Every rank and device has the same batch, so every digest has to be the same everywhere, and twice here.
    """
    batch = model.batch(seed_of(seed, "same", step), model.shape.batch * model.shape.seq)
    runs = []
    for run in (1, 2):
        group.mark(f"step {step}, run {run} on {model.compute.device.id}")
        seen: dict[Part, list[Any]] = {}
        model.tape = functools.partial(_remember, seen)
        model.gradients(batch)
        runs.append({part: digest(torch, tensors) for part, tensors in seen.items()})
    return Trial(step, runs[0], [part for part in runs[0] if runs[0][part] != runs[1][part]])


def _remember(seen: dict[Part, list[Any]], kind: str, layer: str, tensor: Any) -> None:
    seen.setdefault((kind, layer), []).append(tensor)


@dataclasses.dataclass
class StepTimes:
    """One step, in seconds of the machine's clock; ``compute`` is device time, by device and of the slowest."""

    by_device: dict[str, float]
    compute: float
    wait: float
    reduce: float
    loss: float


class Parallel:
    """Data-parallel training: each device of the node a share of the node's batch, each node a share of the block's."""

    def __init__(
        self, torch: Any, hardware: Hardware, models: Sequence[Transformer], fabric: Fabric, group: PeerGroup, seed: int
    ) -> None:
        self._torch, self._hardware, self._fabric, self._group, self._seed = torch, hardware, fabric, group, seed
        self._models = {model.compute.device.id: model for model in models}
        self._first = models[0]

    def step(self, number: int, tokens: int) -> StepTimes:
        """One step with ``tokens`` nominal tokens on each device: compute, wait for the others, sum up, update."""
        torch, clock, group = self._torch, self._hardware.clock, self._group
        shares = self._compute(number, tokens)
        gradient = sum(share["gradient"].to(self._fabric.device) for share in shares)
        self._fabric.settle()
        with group.waiting(f"step {number}, waiting for the others"):
            ready = clock.now()
            self._fabric.barrier()
            met = clock.now()
            group.mark(f"step {number}, sum of gradients")
            torch.distributed.all_reduce(gradient)
            self._fabric.settle()
            summed = clock.now()
        self._update(gradient / (len(shares) * len(group.block.members)))
        seconds = {share["device"]: share["seconds"] for share in shares}
        loss = sum(share["loss"] for share in shares) / len(shares)
        return StepTimes(seconds, max(seconds.values()), met - ready, summed - met, loss)

    def weights_digest(self) -> str:
        """The digest of the node's current weights: the same on all nodes, since all have added the same sums."""
        return digest(self._torch, self._first.weights)

    def _compute(self, number: int, tokens: int) -> list[dict[str, Any]]:
        """Local gradients of every device, all devices at once."""
        devices: list[Device] = [model.compute.device for model in self._models.values()]

        def work(worker: Worker) -> dict[str, Any]:
            return self._share(self._models[worker.device.id], number, tokens, worker)

        if len(devices) == 1:
            return [work(Worker(devices[0], 0, 1, lambda: None))]
        return self._hardware.at_once(devices, work)

    def _share(self, model: Transformer, number: int, tokens: int, worker: Worker) -> dict[str, Any]:
        compute = model.compute
        micro_batches = max(1, compute.physical(tokens, model.shape.d_model)[0] // model.tokens)
        total: list[Any] = []
        losses = []
        worker.ready()
        with compute.timer() as timing:
            for micro in range(micro_batches):
                self._group.mark(f"step {number}, micro-batch {micro} on {compute.device.id}")
                seed = seed_of(self._seed, "share", self._group.block.rank, worker.index, number, micro)
                loss, gradients = model.gradients(model.batch(seed, tokens // micro_batches))
                losses.append(loss)
                total = [a + b for a, b in zip(total, gradients)] if total else gradients
        flat = self._torch.cat([gradient.reshape(-1) for gradient in total]) / micro_batches
        loss = float(sum(losses)) / micro_batches
        return {"device": compute.device.id, "seconds": timing.seconds, "gradient": flat, "loss": loss}

    def _update(self, gradient: Any) -> None:
        with self._torch.no_grad():
            for model in self._models.values():
                local = gradient.to(model.compute.torch_device)
                at = 0
                for weight in model.weights:
                    weight -= RATE * local[at : at + weight.numel()].view(weight.shape)
                    at += weight.numel()


def replica(torch: Any, hardware: Hardware, device: Device, shape: Shape, dtype: str, seed: int) -> Transformer:
    """The block's model on one device. On a CPU the calling thread is pinned to it."""
    return Transformer(torch, hardware.compute(device), shape, dtype, seed_of(seed, "weights"))
