"""One rank of the run with faults, as torchrun starts it: trains, saves, dies at its step, and resumes.

`python -m muster_node.cluster.training.elastic JSON` with {"folder", "node", "steps", "seed"}; torchrun sets the rest.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import threading
from typing import Any

from muster_node.cluster.training.faults import SAVE_EVERY
from muster_node.hardware.seam import RealClock
from muster_node.workloads.common import seed_of
from muster_node.workloads.models import llama


def main() -> None:
    """Runs to the last step, unless it is this rank's turn to die."""
    task = json.loads(sys.argv[1])
    # Before PyTorch's threads begin, which inherit it. While a GPU is waited for no handler would run.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    rank, local = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
    folder = pathlib.Path(task["folder"])
    folder.mkdir(exist_ok=True)
    log = Log(folder, rank, task["node"])
    threading.Thread(target=_end_when_told, args=(log,), daemon=True).start()
    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    size = llama.SIZES["125m" if on_gpu else llama.CPU_SIZE]
    plain = llama.build(torch, size, seed_of(task["seed"], "faults"), device=device)
    model = torch.nn.parallel.DistributedDataParallel(plain, device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if (folder / "last").exists():
        first = int((folder / "last").read_text())
        weights, moments = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=str(folder / f"step-{first}"))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    died = len(list(folder.glob("killed-*")))
    log.write("resumed" if died else "begun", first)
    deaths = [task["steps"] // 3, 2 * task["steps"] // 3]
    for step in range(first, task["steps"]):
        if rank == dist.get_world_size() - 1 and died < len(deaths) and step == deaths[died]:
            (folder / f"killed-{died}").touch()
            log.write("killed", step)
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = llama.tokens_of(torch, size, seed_of(task["seed"], rank, step)).to(device)
        try:
            model(tokens).backward()
        except RuntimeError:  # a collective whose partner has died: this is how the others learn first
            log.write("asked", step)
            raise
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize(device)
        log.write("step", step)
        if (step + 1) % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / f"step-{step + 1}"))
            if rank == 0:  # the name of the last whole checkpoint changes in one act
                (folder / "last.new").write_text(str(step + 1))
                (folder / "last.new").replace(folder / "last")
            dist.barrier()
    dist.destroy_process_group()


def _end_when_told(log: Log) -> None:
    signal.sigwait({signal.SIGTERM})
    log.end("asked")


class Log:
    """What one rank did when: a file of its own, since no lock reaches across nodes, and a line as a sign of life."""

    def __init__(self, folder: pathlib.Path, rank: int, node: str) -> None:
        self._of = {"rank": rank, "node": node}
        self._file = (folder / f"events-{rank}-{os.getpid()}.jsonl").open("a", encoding="utf-8")

    def write(self, kind: str, step: int = -1) -> None:
        """Writes an event; it is in the file when this returns."""
        line = json.dumps({"at": RealClock().wall(), "kind": kind, "step": step, **self._of})
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)

    def end(self, kind: str) -> None:
        """Writes an event and ends the process, as a rank does that is asked to."""
        self.write(kind)
        os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
