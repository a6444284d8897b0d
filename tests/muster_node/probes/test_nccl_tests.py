"""nccl-tests: no rate without proof of what carried it. What is read of their rows: ``test_recordings``.

The stand-in writes as the programs do: each row in two parts, NCCL's log between them, or to ``NCCL_DEBUG_FILE``.
"""

import pytest

from muster_node.probes.nccl_tests import NcclTests
from tests.muster_node.probes.cooling_machine import Machine

SIZE = 8589934592
HEAD = """#  Rank  0 Group  0 Pid   4711 on     node-1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4711 on     node-1 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
"""
VIA = "node-1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
CHOICE = f"node-1:4711:4720 [0] NCCL INFO AllReduce: {SIZE} Bytes -> Algo %s proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
PROGRAM = """printf '%s' '{head}'
log() {{ if [ "$NCCL_DEBUG_FILE" ]; then echo "$1" >> "$NCCL_DEBUG_FILE"; else echo "$1"; fi; }}
log '{via}'
printf '  {size}    2147483648     float     sum      -1'
log '{choice}'
printf '    31550  272.26  476.46      0    31560  272.18  476.31      0\\n'
echo '# Out of bounds values : 0 OK'
echo '# Avg bus bandwidth    : 476.4'
exit 0
"""


@pytest.fixture
def nccl_run(run_probe, tool):
    """Runs the probe for one operation against the stand-in, whose log has these lines."""

    def run(op="all_reduce", program="all_reduce_perf", via=VIA, choice=CHOICE % "NVLS", head=HEAD):
        tool(program, script=PROGRAM.format(head=head, via=via, choice=choice, size=SIZE) + "#")
        return run_probe(NcclTests, Machine(), ops=[op])

    return run


def test_the_log_goes_to_a_file_and_leaves_the_rows_whole(nccl_run):
    run = nccl_run()
    rate = run.one("nccl_busbw", op="all_reduce", nvls="on")
    assert (rate.value, rate.note.split(";")[0]) == (476.46, "NVLS/SIMPLE, 2 GPUs")
    assert run.one("nccl_absent_gpus").value == 0


def test_a_gpu_that_takes_no_part_is_counted(nccl_run):
    run = nccl_run(head=HEAD.splitlines()[0] + "\n")
    assert run.one("nccl_absent_gpus").value == 1
    assert run.one("nccl_busbw").value is None, "one GPU alone has no bus bandwidth"


def test_a_ring_is_labelled_apart_from_what_the_switches_reduce(nccl_run):
    run = nccl_run(choice=CHOICE % "RING")
    rate = run.one("nccl_busbw")
    assert (rate.value, rate.labels) == (476.46, {"op": "all_reduce", "nvls": "off"})
    assert rate.note.split(";")[0] == "RING/SIMPLE over P2P/CUMEM, 2 GPUs"


@pytest.mark.parametrize(
    ("op", "program", "log"),
    [
        ("all_reduce", "all_reduce_perf", {"choice": CHOICE % "RING", "via": ""}),
        ("all_reduce", "all_reduce_perf", {"choice": (CHOICE % "RING").replace(str(SIZE), "8")}),
        ("all_gather", "all_gather_perf", {"choice": CHOICE % "RING"}),
        ("sendrecv", "sendrecv_perf", {"via": ""}),
    ],
)
def test_a_rate_without_proof_of_what_carried_it_is_no_measurement(nccl_run, tool, op, program, log):
    run = nccl_run(op, program, **log)
    rate = run.one("nccl_busbw")
    assert (rate.value, rate.labels) == (None, {"op": op})
    assert rate.note.startswith("what carried it is not proven: ")
    assert run.one("nccl_mismatches").value == 0


def test_sends_have_no_algorithm_to_prove(nccl_run):
    run = nccl_run("sendrecv", "sendrecv_perf", choice="")
    rate = run.one("nccl_busbw", op="sendrecv", nvls="off")
    assert (rate.value, rate.note.split(";")[0]) == (476.46, "point to point over P2P/CUMEM, 2 GPUs")
