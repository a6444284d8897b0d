"""The same training as the acceptance test's, as anybody would write it: started by torchrun, DDP, nothing measured.

Prints a line from rank 0 when its first step begins, and trains until it is killed. The same on purpose: model,
batches, gradient sums, update, the loss that is read after each step, buffers that DDP does not send, and the core of
each rank. What the acceptance test does beyond that is its overhead: agents, heartbeats, and the times of each step's
parts, for which DDP has a hook in Python.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys

import torch
import torch.distributed as dist

from muster_node.cluster.training.trainer import RATE, own_buffers
from muster_node.workloads.common import seed_of
from muster_node.workloads.models import llama


def main() -> None:
    task = json.loads(sys.argv[1])
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[local % task["per_node"] % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = llama.SIZES[llama.CPU_SIZE]
    ddp = torch.nn.parallel.DistributedDataParallel
    model = ddp(llama.build(torch, size, 1, device=torch.device("cpu")), **own_buffers(ddp))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    dist.barrier()
    if rank == 0:
        print("begun", flush=True)
    for step in itertools.count():
        batches = [llama.tokens_of(torch, size, seed_of(rank, step, micro)) for micro in range(task["micro"])]
        loss = 0.0
        for micro, batch in enumerate(batches):
            with contextlib.nullcontext() if micro == task["micro"] - 1 else model.no_sync():
                value = model(batch) / task["micro"]
                value.backward()
            loss += value.detach()
        optimizer.step()
        optimizer.zero_grad()
        float(loss)


if __name__ == "__main__":
    main()
