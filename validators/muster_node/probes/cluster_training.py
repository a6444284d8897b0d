"""A tiny transformer trained by all nodes of a block together, to find the node whose GPU corrupts or holds others up.

First every device of every node runs the same micro-batches from the same weights, and reports digests of activations
and local gradients before anything is exchanged: a device that differs is found by comparing, while after an all-reduce
all would hold the corruption. Every micro-batch is run twice, so a device that differs from itself fails alone. Then
the nodes train in parallel, and each reports how long it computed and how long it waited: the straggler is the node
that computes longest and waits least.
"""

from __future__ import annotations

import os
from typing import Any

from muster_node.cluster.fabric import open_fabric
from muster_node.cluster.member import PeerGroup
from muster_node.cluster.session import METRICS, PARAMS, join_block
from muster_node.cluster.training import Parallel, StepTimes, replica, same_batch
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import median, spread
from muster_node.workloads.transformer import Shape, Transformer

SHAPES = {
    "cpu": Shape(layers=2, d_model=64, head_dim=32, seq=32, batch=4, vocab=64),
    "gpu": Shape(layers=4, d_model=4096, head_dim=128, seq=2048, batch=4, vocab=256),
}
FIRST_TOKENS = {"cpu": 1024, "gpu": 1 << 17}
"""Tokens of the untimed first step, from which the number for a step of the requested length follows."""

DTYPES = {"cpu": "float32", "gpu": "bfloat16"}
ALL, ONE = "all", "one"


class ClusterTraining(Probe):
    """Digests before any exchange, then step times of data-parallel training."""

    name = "cluster_training"
    stage = "cluster_validation"
    doc = "The same batch on all nodes compared bit by bit, then data-parallel training with its stragglers"
    params = {
        **PARAMS,
        "gpus": Param(
            ALL, "all: every GPU of the node (of CPUs: every core for the same batch, one for training); one"
        ),
        "same_steps": Param(4, "micro-batches that every device runs, twice each"),
        "steps": Param(10, "timed steps of parallel training"),
        "step_s": Param(1.0, "real seconds of compute in a step: long against the jitter of hosts and networks"),
        "tokens": Param(None, "tokens each device trains on in a step; None: as many as take step_s"),
        "layers": Param(None, "layers of the model; None: as suits the kind of device"),
    }
    metrics = {
        **METRICS,
        "step_digest": Metric("text", "digest of what a step gave before any exchange, by step, kind and layer"),
        "self_mismatches": Metric("count", "digests that differ between two runs of the same batch on one device"),
        "digest_key": Metric("text", "what must be equal for digests to be comparable: device model, library, sizes"),
        "training_devices": Metric("count", "devices of this node that took part"),
        "step_compute": Metric("s", "compute time of a step before the exchange; of a node: its slowest device's"),
        "step_wait": Metric("s", "time from the end of a step's compute until all others were ready too"),
        "step_reduce": Metric("s", "time to add up the gradients of all nodes"),
        "loss": Metric("nat", "mean cross-entropy on this node's own batches, first and last step"),
        "weights_digest": Metric("text", "digest of the weights after the last step, the same on all nodes"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Take part in the block's training. Raises Skip where PyTorch lacks the backend or no device computes."""
        # Read when the first GPU product is made, so it has to stand before PyTorch is even imported.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        join_block(type(self), context, _Work(context))


class _Work:
    """This rank's part."""

    def __init__(self, context: Context) -> None:
        self._context, self._hardware = context, context.hardware

    def __call__(self, group: PeerGroup) -> None:
        group.begin("prepare")
        torch = require_torch()
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        devices = self._devices()
        kind = devices[0].kind
        group.agree(f"{kind}, {self._shape(devices[0])}")
        group.begin("same_batch")
        for device in devices:
            self._same_batch(torch, group, device)
        group.gather()
        group.begin("rendezvous")
        training = devices if kind == "gpu" else devices[:1]
        models = [self._replica(torch, device) for device in training]
        on_device = models[0].compute.torch_device
        with open_fabric(torch, group, on_device) as fabric:
            group.begin("calibration")
            parallel = Parallel(torch, self._hardware, models, fabric, group, self._context.seed)
            tokens = self._tokens(group, parallel, kind)
            group.begin("training")
            steps = [parallel.step(number, tokens) for number in range(1, self._context.params["steps"] + 1)]
            self._report(steps, parallel.weights_digest(), len(devices))
            group.gather()
            group.begin("finish")
            group.gather()

    def _devices(self) -> list[Device]:
        gpus = self._context.params["gpus"]
        if gpus not in (ALL, ONE):
            raise ValueError(f"gpus must be {ALL!r} or {ONE!r}, not {gpus!r}")
        devices = self._hardware.devices("gpu") or self._hardware.devices("core")
        if not devices:
            raise Skip("this machine offers no device to compute on")
        return devices if gpus == ALL else devices[:1]

    def _tokens(self, group: PeerGroup, parallel: Parallel, kind: str) -> int:
        """Runs the first step, which also warms everything up; the members agree on the tokens of all others."""
        clock, real, tokens = self._hardware.clock, self._hardware.host_clock, FIRST_TOKENS[kind]
        begun, really_begun = clock.now(), real.now()
        first = parallel.step(0, tokens)
        # A simulated clock runs faster, and what takes long there passes in a moment here.
        speed = (clock.now() - begun) / max(real.now() - really_begun, 1e-6)
        wanted = tokens * self._context.params["step_s"] * speed / max(first.compute, 1e-9)
        wishes = sorted(group.gather(wanted).values())
        return int(self._context.params["tokens"] or max(1.0, wishes[len(wishes) // 2]))

    def _shape(self, device: Device) -> Shape:
        shape, layers = SHAPES[device.kind], self._context.params["layers"]
        return Shape(**{**vars(shape), "layers": layers}) if layers else shape

    def _replica(self, torch: Any, device: Device) -> Transformer:
        shape, seed = self._shape(device), self._context.seed
        return replica(torch, self._hardware, device, shape, DTYPES[device.kind], seed)

    def _same_batch(self, torch: Any, group: PeerGroup, device: Device) -> None:
        emit, context = self._context.emit, self._context
        model = self._replica(torch, device)
        emit("digest_key", device.id, text=self._key(torch, model))
        differing: list[str] = []
        steps = context.params["same_steps"]
        for step in range(steps):
            trial = same_batch(torch, model, context.seed, step, group)
            for (kind, layer), text in trial.digests.items():
                emit(
                    "step_digest",
                    device.id,
                    text=text,
                    labels={"step": str(step), "kind": kind, "layer": layer},
                    samples=2,
                )
            differing += [f"step {step} {kind} of layer {layer}" for kind, layer in trial.differing]
        note = f"the first is {differing[0]}" if differing else ""
        emit("self_mismatches", device.id, value=len(differing), samples=steps, note=note)

    def _key(self, torch: Any, model: Transformer) -> str:
        device = model.compute.device
        wanted = {"gpu": ("gpu_model", device.id), "cpu": ("cpu_model", "node")}[device.kind]
        named = [f.text for f in self._hardware.inventory() if (f.name, f.device) == wanted and f.text]
        capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
        on_gpu = model.compute.torch_device.type == "cuda"
        libraries = f"CUDA {torch.version.cuda}" if on_gpu else f"CPU kernels for {capability}"
        sizes = f"{DTYPES[device.kind]}, {model.shape.layers}×{model.tokens}×{model.d}"
        return "{}; PyTorch {}, {}; {}".format(named[0] if named else "unknown", torch.__version__, libraries, sizes)

    def _report(self, steps: list[StepTimes], weights: str, devices: int) -> None:
        emit = self._context.emit

        def emit_times(metric: str, device: str, values: list[float]) -> None:
            emit(metric, device, value=median(values), samples=len(values), spread=spread(values))

        emit("training_devices", "node", value=devices)
        emit_times("step_compute", "node", [step.compute for step in steps])
        emit_times("step_wait", "node", [step.wait for step in steps])
        emit_times("step_reduce", "node", [step.reduce for step in steps])
        by_device: dict[str, list[float]] = {}
        for step in steps:
            for device, seconds in step.by_device.items():
                by_device.setdefault(device, []).append(seconds)
        for device, values in by_device.items():
            emit_times("step_compute", device, values)
        for name, step in (("first", steps[0]), ("last", steps[-1])):
            emit("loss", "node", value=step.loss, labels={"step": name})
        emit("weights_digest", "node", text=weights)
