"""A decoder trained by all devices of a block together: the acceptance test of a cluster.

First every device runs the same micro-batches from the same weights, twice, and reports digests of activations and
local gradients before anything is exchanged: a device that differs is found by comparing, while after an all-reduce all
would hold the corruption; after the load once more. Then each node trains alone and the block together, by PyTorch's
own DDP or FSDP2: throughput, scaling, and each rank's compute and exposed communication. The straggler computes longest
and waits least. Last come checkpoints through the path that the nodes share, and, on request, a run with faults.
"""

from __future__ import annotations

import functools

from muster_node.cluster.rendezvous.member import PeerGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.cluster.rendezvous.session import METRICS, PARAMS, join_block
from muster_node.cluster.storage.checkpoint import tidy_up
from muster_node.cluster.training.acceptance import Acceptance, preload
from muster_node.cluster.training.faults import fault_run
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.golden_key import keep_workspace
from muster_node.workloads.models import llama

ALL, ONE = "all", "one"


class ClusterTraining(Probe):
    """Digests before any exchange, then training alone and together, checkpoints and faults."""

    name = "cluster_training"
    stage = "cluster_validation"
    doc = (
        "The same batch on all nodes compared bit by bit, then a training with its stragglers, scaling and checkpoints"
    )
    params = {
        **PARAMS,
        "gpus": Param(ALL, "all: a rank for every GPU of the node; one"),
        "ranks": Param(1, "ranks on a node without GPUs; the same batch runs on all its cores in any case"),
        "same_steps": Param(4, "micro-batches that every device runs, twice each"),
        "model": Param(None, "size of the model ({}); None: the largest that fits".format(", ".join(llama.SIZES))),
        "layers": Param(None, "layers of the model; None: as many as its size has"),
        "layout": Param(None, "ddp or fsdp; None: ddp where the model fits on one device"),
        "compile": Param(False, "whether the layers are compiled by torch.compile, but for simulated GPUs"),
        "warm_steps": Param(2, "steps before those that are timed, alone and together"),
        "alone_steps": Param(5, "timed steps of each node alone"),
        "steps": Param(10, "timed steps of the block"),
        "step_s": Param(1.0, "real seconds of compute in a step: long against the jitter of hosts and networks"),
        "tokens": Param(None, "tokens each device trains on in a step; None: as many as take step_s"),
        "path_mib": Param(4, "MiB that each rank sends to its neighbour on the next node"),
        "shared_path": Param(None, "folder that all nodes share, for checkpoints; None: they are not tested"),
        "checkpoints": Param(5, "times that the training is saved and loaded"),
        "path_s": Param(600.0, "real seconds that all saves and loads may take; where few fit, fewer are made"),
        "shared_mib": Param(64, "MiB that each node writes and reads there, one node alone and all at once"),
        "fault_steps": Param(0, "steps of a run in which a rank is killed at one third and two thirds; 0: none"),
    }
    metrics = {
        **METRICS,
        "step_digest": Metric(
            "text", "digest of what a step, or several, gave before any exchange; of the first step by kind and layer"
        ),
        "self_mismatches": Metric(
            "count", "digests that differ between two runs of the same batch on one device; samples: those compared"
        ),
        "digest_key": Metric(
            "text", "what must be equal for digests to be comparable: models, driver, libraries, settings, sizes"
        ),
        "pace_key": Metric("text", "what must be equal for times to be comparable: device model, PyTorch, sizes"),
        "training_devices": Metric("count", "ranks of this node that took part"),
        "training_recipe": Metric("text", "the model, its parameters, sequence length, layout and number format"),
        "flop_per_token": Metric("FLOP", "6 N + 6 L d s of the model: N without the embedding, d its width, s tokens"),
        "gemm_best": Metric("FLOP/s", "best rate of products of the model's shapes on this device, before the load"),
        "tokens_per_s": Metric("1/s", "tokens in a median step over its time; scope node: alone, block: all together"),
        "share_of_gemm": Metric("%", "FLOP/s of the training on each device against its gemm_best, by scope"),
        "scaling": Metric("1", "tokens_per_s of the block against the sum of its nodes alone"),
        "step_time": Metric("s", "time of a step, by scope and statistic (p50, p95)"),
        "step_p95_to_p50": Metric("1", "p95 of the block's step times over their median, this node's slowest rank"),
        "step_compute": Metric("s", "compute time of a step up to its last gradient; of a node: its slowest rank's"),
        "step_wait": Metric("s", "exposed communication of a step: from the last gradient until all sums were there"),
        "step_clock": Metric("MHz", "mean clock of a GPU in one step of the block, by which a straggler may be slow"),
        "step_input": Metric("s", "time that a step waits for its batch"),
        "step_update": Metric("s", "time of the optimizer in a step"),
        "loss": Metric("nat", "mean cross-entropy on this node's own batches, first and last step"),
        "weights_digest": Metric("text", "digest of a rank's weights after the last step; shard: which part they are"),
        "path_rate": Metric("GB/s", "rate at which messages of a rank's neighbour on another node (sender) arrive"),
        "checkpoint_save": Metric("s", "time to save the training through the shared path, by statistic (p50, p95)"),
        "checkpoint_load": Metric("s", "time to load it, by statistic (p50, p95)"),
        "checkpoint_rate": Metric("GB/s", "size of a checkpoint over its median time, by direction (save, load)"),
        "checkpoint_bytes": Metric("bytes", "size of a checkpoint"),
        "resume_equal": Metric("bool", "whether weights, moments and loss are to the last bit those that were saved"),
        "checkpoint_own": Metric("s", "median time of a rank's own saves, of which the slowest is checkpoint_save"),
        "shared_rate": Metric("GB/s", "large file in the shared path, by direction, one node alone or all at once"),
        "shared_fio": Metric("GB/s", "the same by fio, all nodes at once, by direction; the note says why not"),
        "small_files": Metric("1/s", "operations on small files in the shared path, by op, one node or all at once"),
        "shared_path": Metric(
            "bool",
            "whether this node could use the shared path; the note says why not; answers (yes, no): whether it could "
            "write a small file there while a save or a load did not end",
        ),
        "fault_detect": Metric("s", "from a rank's death until another rank was told, in the run with faults"),
        "fault_restart": Metric("s", "from a rank's death until the first step after the restart"),
        "fault_lost_work": Metric("s", "training since the last checkpoint that a rank's death cost"),
        "fault_run": Metric("bool", "whether the run with faults came to its end; the note says why not"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Take part in the block's training. Raises Skip where PyTorch lacks the backend or no device computes."""
        keep_workspace()
        path, session = context.params["shared_path"], context.params["session"]
        try:
            join_block(type(self), context, functools.partial(_work, context))
        finally:  # its ranks are killed where a member is lost
            if path and context.params["rank"] == 0:
                tidy_up(path, session)


def _work(context: Context, group: PeerGroup) -> None:
    """This node's part."""
    group.begin("prepare")
    params = context.params
    preload(require_torch())
    ranks, others = _devices(context)
    work = Acceptance(params, context.seed, others)
    Ranks(group, ranks, context).run(work)
    if params["fault_steps"]:
        group.begin("fault_run")
        fault_run(context, group, len(ranks))
    group.begin("finish")
    group.gather()


def _devices(context: Context) -> tuple[list[Device], list[Device]]:
    """Devices with a rank, and all that run the same batch."""
    gpus, count = context.params["gpus"], context.params["ranks"]
    if gpus not in (ALL, ONE):
        raise ValueError(f"gpus must be {ALL!r} or {ONE!r}, not {gpus!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"ranks must be a number from 1, not {count!r}")
    hardware = context.hardware
    found = hardware.devices("gpu")
    if found:
        found = found if gpus == ALL else found[:1]
        return found, found
    cores = hardware.devices("core")
    if not cores:
        raise Skip("this machine offers no device to compute on")
    # More ranks than cores share them: what is tested then is the way of the training, not the cores' speed.
    return [cores[number % len(cores)] for number in range(count)], cores if gpus == ALL else cores[:1]
