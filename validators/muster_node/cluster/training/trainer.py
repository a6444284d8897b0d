"""Training of the decoder by PyTorch's own parallelism: DDP, or fully_shard (FSDP2) over a DeviceMesh of the ranks.

Muster only adds the timing. ``scope`` is what trains together: the ranks of one node, or of the whole block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from muster_node.cluster.training.pace import HostPace, StepTimes, pace_of, traced
from muster_node.hardware.seam import Compute
from muster_node.workloads.common import seed_of
from muster_node.workloads.digest import digest
from muster_node.workloads.models import llama

if TYPE_CHECKING:
    from muster_node.cluster.collectives.fabric import Fabric
    from muster_node.cluster.rendezvous.rank import RankGroup

NODE, BLOCK = "node", "block"
RATE = 1e-3
_GRADIENTS = "the sums of gradients"
_BUCKETS_MIB = 25
_ONE_BUCKET_MIB = 4096


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is trained and how: the size by its name, the layout (DDP or FSDP), the number format of products, and
    whether its layers are compiled.
    """

    name: str
    size: llama.Size
    layout: str
    dtype: str
    compiled: bool = False


@dataclasses.dataclass(frozen=True)
class Work:
    """One rank's work in a step: micro-batches, and the tokens that they represent."""

    micro: int
    tokens: int


class Trainer:
    """One rank's part in one training. Weights depend on the seed only, batches on rank and step too."""

    def __init__(
        self, torch: Any, group: RankGroup, compute: Compute, recipe: Recipe, groups: Any, scope: str, seed: int
    ) -> None:
        self._torch, self._group, self._compute, self._scope, self._seed = torch, group, compute, scope, seed
        self.recipe, self.size = recipe, llama.cut_down(recipe.size, compute.physical)
        self._device = compute.torch_device
        self._clock = group.hardware.clock
        self._pace = pace_of(torch, compute, self._clock)
        self._nominal_tokens = self.size.tokens
        simulated = group.hardware.simulated
        product = self._seam_product() if simulated else llama.plain_product(torch)
        plain = llama.build(
            torch,
            self.size,
            seed_of(seed, "llama"),
            device=self._device,
            nominal=recipe.size,
            product=product,
            mark=group.mark,
        )
        if recipe.compiled:
            for layer in plain.layers:
                layer.compile()
        self.ranks = group.world if scope == BLOCK else group.per_node
        self.model = (
            self._sharded(plain, groups) if recipe.layout == llama.FSDP else self._copied(plain, groups, simulated)
        )
        fused = {"fused": True} if self._device.type == "cuda" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, **fused)

    def step(self, number: int, work: Work) -> StepTimes:
        """One step."""
        group, clock = self._group, self._clock
        self._nominal_tokens = work.tokens // work.micro
        group.mark(f"step {number}, {self._scope}")
        begun = clock.now()
        batches = [self._batch(number, micro) for micro in range(work.micro)]
        given = clock.now()
        self._pace.begin()
        loss = 0.0
        for micro, batch in enumerate(batches):
            last = micro == work.micro - 1
            # DDP reads in the forward pass whether gradients are summed, FSDP in the backward pass.
            with self._unsynchronised() if not last else contextlib.nullcontext():
                with self._precision():
                    value = self.model(batch) / work.micro
                if last and self.recipe.layout == llama.FSDP:
                    group.wait(_GRADIENTS)  # it also waits for others in layers before, and does not tell when
                value.backward()
            loss += value.detach()
        compute, exposed = self._pace.end()
        summed = clock.now()
        group.work()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._settle()
        ended = clock.now()
        return StepTimes(ended - begun, given - begun, compute, exposed, ended - summed, float(loss))

    def split(self, number: int, work: Work) -> tuple[float, float] | None:
        """(compute, exposed communication) of one step where PyTorch tells neither: FSDP on GPUs, by a trace."""
        if self.recipe.layout != llama.FSDP or self._device.type != "cuda":
            return None
        return traced(self._torch, self._group.gather, lambda: self.step(number, work))

    def clock_mhz(self, number: int, work: Work) -> float | None:
        """Mean clock of the device in one further step, None where it does not tell."""
        if isinstance(self._pace, HostPace):
            self.step(number, work)
            return self._pace.clock_mhz
        with self._compute.timer() as timing:
            self.step(number, work)
        return timing.mean_clock_mhz

    def loss_of(self, number: int) -> float:
        """The loss of a batch without training on it."""
        with self._torch.no_grad(), self._precision(), self._group.waiting("loss"):
            loss = float(self.model(self._batch(number, 0)))
        if self.recipe.layout == llama.FSDP:
            self.model.reshard()  # no backward pass follows, after which the root's weights would be sharded again
        return loss

    def weights_digest(self) -> str:
        """The digest of this rank's weights: with DDP the same on all ranks, with FSDP of its shard."""
        return digest(self._torch, (_local(p) for p in self.model.parameters()))

    def _batch(self, number: int, micro: int) -> Any:
        seed = seed_of(self._seed, "share", self._scope, self._group.rank, number, micro)
        return llama.tokens_of(self._torch, self.size, seed).to(self._device)

    def _copied(self, plain: Any, node: Any, simulated: bool) -> Any:
        torch, pace, group = self._torch, self._pace, self._group
        process_group = None if self._scope == BLOCK else node
        # With one bucket a simulated device's work is over before anything is exchanged.
        bucket = _ONE_BUCKET_MIB if simulated else _BUCKETS_MIB
        ids = [self._device] if self._device.type == "cuda" else None
        with self._group.waiting("the same weights"):
            ddp = torch.nn.parallel.DistributedDataParallel
            model = ddp(plain, device_ids=ids, process_group=process_group, bucket_cap_mb=bucket, **own_buffers(ddp))
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def told(state: Any, bucket: Any) -> Any:
            if bucket.is_last():
                pace.gradients_ready()
                group.wait(_GRADIENTS)
            return allreduce_hook(state, bucket)

        told.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(process_group or torch.distributed.group.WORLD, told)
        return model

    def _sharded(self, plain: Any, mesh: Any) -> Any:
        """Shards between the devices of a node, with whole copies on each node (HSDP), as each node alone has.

        Layers are recomputed in the backward pass: for long sequences their activations take more than their weights.
        """
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        except ImportError:  # PyTorch before 2.6
            from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

        torch = self._torch
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, self.recipe.dtype), reduce_dtype=torch.float32)
        over = mesh if self._scope == BLOCK else mesh[_DEVICES]
        with self._group.waiting("the shards of the weights"):
            for layer in plain.layers:
                layer.recompute = True
                fully_shard(layer, mesh=over, mp_policy=policy)
            return fully_shard(plain, mesh=over, mp_policy=policy)

    @contextlib.contextmanager
    def _unsynchronised(self) -> Any:
        if self.recipe.layout == llama.FSDP:  # between the devices of a node all the same: whole gradients do not fit
            self.model.set_requires_all_reduce(False)
            yield
            self.model.set_requires_all_reduce(True)
        else:
            with self.model.no_sync():
                yield

    def _precision(self) -> Any:
        if self._device.type == "cuda" and self.recipe.layout == llama.DDP:
            return self._torch.autocast("cuda", getattr(self._torch, self.recipe.dtype))
        return contextlib.nullcontext()

    def _settle(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def _seam_product(self) -> llama.Product:
        """Products by the simulated device, which accounts for them and whose faults meet them."""
        torch, compute, trainer = self._torch, self._compute, self
        dtype = getattr(torch, self.recipe.dtype)

        class Seam(torch.autograd.Function):  # type: ignore[misc, name-defined]  # torch is not typed
            """x @ weight.T, forwards and backwards."""

            @staticmethod
            def forward(context: Any, x: Any, weight: Any, nominal: tuple[int, int]) -> Any:
                x, weight = x.to(dtype), weight.to(dtype)
                context.save_for_backward(x, weight)
                k, n = nominal
                context.nominal = (trainer._nominal_tokens, n, k)
                return compute.matmul(x, weight.t(), nominal=context.nominal, out_dtype=torch.float32)

            @staticmethod
            def backward(context: Any, gradient: Any) -> Any:
                x, weight = context.saved_tensors
                m, n, k = context.nominal
                gradient = gradient.to(dtype).contiguous()
                dx = compute.matmul(gradient, weight, nominal=(m, k, n), out_dtype=torch.float32)
                dw = compute.matmul(gradient.t(), x, nominal=(n, k, m), out_dtype=torch.float32)
                return dx, dw, None

        product: llama.Product = Seam.apply
        return product


_NODES, _DEVICES = "nodes", "devices"


def groups_of(torch: Any, fabric: Fabric, group: RankGroup, layout: str) -> Any:
    """What FSDP divides and copies over: the DeviceMesh of the block, nodes × devices. For DDP: the node's group."""
    dist, per_node = torch.distributed, group.per_node
    with group.waiting("the groups of ranks"):
        if layout == llama.DDP:
            return dist.new_subgroups(per_node)[0]
        names = (_NODES, _DEVICES)
        return dist.device_mesh.init_device_mesh(fabric.device.type, (len(group.names), per_node), mesh_dim_names=names)


def own_buffers(ddp: type[Any]) -> dict[str, bool]:
    """The argument by which each rank keeps its buffers, which are constants.

    PyTorch 2.11 knows the older name only; 2.13 knows both, and warns of the older one.
    """
    named = "forward_sync_buffers" in inspect.signature(ddp.__init__).parameters
    return {"forward_sync_buffers" if named else "broadcast_buffers": False}


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
