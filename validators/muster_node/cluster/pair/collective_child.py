"""One side of a transfer by torch.distributed, as a process of its own: NCCL and gloo choose their NIC only once.

It sees no GPU but that of the rail.

Run as ``python -c SOURCE JOB``. Rank 0 receives, compares every element and prints {"gbits", "wrong"} as last line.
"""

import datetime
import json
import sys
from timeit import default_timer as timer
from typing import Any

WARM = 2


def main(job: dict[str, Any]) -> None:
    """Sends for the given seconds, in rounds whose length rank 0 decides, so that both sides end with the same one."""
    import torch
    import torch.distributed as dist

    on_gpu = job["library"] == "nccl"
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    host = "[{}]".format(job["address"]) if ":" in job["address"] else job["address"]
    dist.init_process_group(
        job["library"],
        init_method="tcp://{}:{}".format(host, job["port"]),
        rank=job["rank"],
        world_size=2,
        timeout=datetime.timedelta(seconds=job["limit_s"]),
    )
    elements = job["mib"] * (1 << 20) // 4
    places = torch.arange(elements, dtype=torch.int64, device=device)
    right = ((places * 1664525 + job["seed"]) % 2147483647).to(torch.int32)
    came = torch.empty_like(right)
    go_on = torch.ones(1, dtype=torch.int32, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    begun, taken, messages, number = timer(), 0.0, 0, 0
    while True:
        before = timer()
        if job["rank"] == 0:
            came.zero_()
            dist.recv(came, 1)
        else:
            dist.send(right, 0)
        if on_gpu:
            torch.cuda.synchronize(device)
        now = timer()
        wrong += (came != right).sum() if job["rank"] == 0 else 0
        number += 1
        if number > WARM and now - begun > job["warmup_s"]:
            taken, messages = taken + now - before, messages + 1
        if job["rank"] == 0:
            go_on.fill_(int(now - begun < job["warmup_s"] + job["seconds"] or not messages))
            dist.send(go_on, 1)
        else:
            dist.recv(go_on, 0)
        if not int(go_on):
            break
    gbits = 8e-9 * messages * elements * 4 / max(taken, 1e-9)
    print(json.dumps({"gbits": gbits, "wrong": int(wrong)}))


main(json.loads(sys.argv[1]))
