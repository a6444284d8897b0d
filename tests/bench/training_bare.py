"""The same training as the acceptance test's, as anybody would write it: started by torchrun, DDP, nothing measured
but steps. Prints one JSON object from rank 0."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

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
    model = torch.nn.parallel.DistributedDataParallel(llama.build(torch, size, 1, device=torch.device("cpu")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times: list[float] = []
    begun_cpu = time.process_time()
    for step in range(task["warm"] + task["steps"]):
        begun = time.monotonic()
        batches = [llama.tokens_of(torch, size, seed_of(rank, step, micro)) for micro in range(task["micro"])]
        with model.no_sync():
            for batch in batches[:-1]:
                (model(batch) / task["micro"]).backward()
        (model(batches[-1]) / task["micro"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - begun)
    cpu = torch.tensor([(time.process_time() - begun_cpu) / len(times)])
    dist.all_reduce(cpu)
    if rank == 0:
        p50 = statistics.median(times[task["warm"] :])
        print(json.dumps({"p50": p50, "cpu": float(cpu) / dist.get_world_size()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
