"""Which errors of a rank's work another rank may be the reason of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from muster_node.cluster.rendezvous.rank import of_a_collective

pytestmark = pytest.mark.needs_torch

PEER_GOES = """
import datetime, threading, torch
from torch.distributed import HashStore, ProcessGroupGloo
from muster_node.cluster.rendezvous.rank import of_a_collective

store, groups = HashStore(), {}
def join(rank):
    groups[rank] = ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=20))
threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
del groups[1]
try:
    groups[0].allreduce([torch.ones(4)]).wait()
except RuntimeError as error:
    print(type(error).__name__, of_a_collective(error), flush=True)
"""


def test_gloos_error_after_a_peer_has_gone_is_a_collectives() -> None:
    # In a process of its own: torch ends it badly where a group of another thread is left.
    done = subprocess.run([sys.executable, "-c", PEER_GOES], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["RuntimeError", "True"], done.stderr


def test_nccls_errors_are_a_collectives_but_for_cuda_errors_of_the_device() -> None:
    # https://github.com/pytorch/pytorch/blob/v2.8.0/torch/csrc/distributed/c10d/NCCLUtils.cpp gives these words.
    from torch.distributed import DistBackendError

    remote = DistBackendError("NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error")
    own = DistBackendError(
        "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error, ncclUnhandledCudaError: Call to CUDA"
    )
    assert (of_a_collective(remote), of_a_collective(own)) == (True, False)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: uncorrectable ECC error"), ValueError("/gloo/"), OSError("x")]
)
def test_what_is_not_a_collectives_stays_the_ranks_own(error: Exception) -> None:
    assert not of_a_collective(error)
