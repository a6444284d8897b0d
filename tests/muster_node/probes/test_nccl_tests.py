"""nccl-tests: output read as they write it, and no rate without a checked payload and proof of what carried it."""

from __future__ import annotations

import pytest

from muster_node.probes.nccl_tests import NcclTests, parse_nccl_tests
from muster_node.tools.run import BadOutput
from tests.muster_node.probes.cooling_machine import Machine

NCCL_HEAD = """# nThread 1 nGpus 2 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on     node-1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4711 on     node-1 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
node-1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
NCCL_ROWS = """  8           2     float     sum      -1    21.35    0.00    0.00      0    21.10    0.00    0.00      0
  4294967296    1073741824     float     sum      -1    16000  268.44  469.77      0    16010  268.27  469.47      0
node-1:4711:4720 [0] NCCL INFO AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
  8589934592    2147483648     float     sum      -1    31550  272.26  476.46      0    31560  272.18  476.31      0
"""
NCCL_TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 68.4048\n#\n"
# Before 2.12 nccl-tests had no column "root", and wrote the error where the number of wrong values stands now.
NCCL_OLD = (
    "#   Rank  0 Pid 11 on localhost device  0 [0x00] A100-SXM4-40GB\n"
    "#   Rank  1 Pid 11 on localhost device  1 [0x00] A100-SXM4-40GB\n"
    "           0             0   float     sum    35.20    0.00    0.00  0e+00    34.05    0.00    0.00    N/A\n"
    "  1073741824     268435456   float     sum   8159.5  131.59  230.29  0e+00   8176.5  131.32  229.81    N/A\n"
) + NCCL_TAIL
NCCL_SETTINGS = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: %d\n"
)
VIA = "node-1:4711:4720 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


def test_nccl_tests_are_read_with_what_carried_the_bytes():
    run = parse_nccl_tests(NCCL_HEAD + NCCL_ROWS + NCCL_TAIL)
    assert run.busbw == {8: 0.0, 4294967296: 469.77, 8589934592: 476.46}
    assert (run.wrong, run.ranks, run.proof("all_reduce").carried) == (0, 2, "NVLS/SIMPLE, 2 GPUs")


def test_older_nccl_tests_are_read_too():
    """In place nothing is checked where an operation has no such form."""
    run = parse_nccl_tests(NCCL_SETTINGS % 1 + NCCL_OLD)
    assert (run.busbw, run.wrong, run.ranks) == ({1073741824: 230.29}, 0, 2)
    assert run.proof("all_reduce").why_not == "NCCL does not say by which algorithm all_reduce of 1073741824 bytes ran"


@pytest.mark.parametrize("text", [NCCL_SETTINGS % 0 + NCCL_OLD, NCCL_OLD.replace("230.29  0e+00", "230.29    N/A")])
def test_no_values_out_of_bounds_where_none_was_looked_at_is_no_result(text):
    with pytest.raises(BadOutput, match="it did not check its payload"):
        parse_nccl_tests(text)


def test_wrong_values_are_counted():
    text = NCCL_HEAD + NCCL_ROWS + NCCL_TAIL.replace("0 OK", "3 FAILED")
    assert parse_nccl_tests(text).wrong == 3
    assert parse_nccl_tests(text.replace("3 FAILED", "0 FAILED")).wrong == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no line of results"),
        ("node-1: Test NCCL failure all_reduce.cu:44 'unhandled system error'", "no line of results"),
        (NCCL_HEAD + NCCL_ROWS, "it breaks off after 3 sizes"),
        (NCCL_HEAD + NCCL_ROWS + "# Avg bus bandwidth    : 68.4\n", "it did not check its payload"),
        (NCCL_ROWS + NCCL_TAIL, "it does not tell which GPUs took part"),
        (NCCL_HEAD + NCCL_ROWS.replace("476.46", "four") + NCCL_TAIL.replace("68.4048", "?"), "it breaks off"),
    ],
)
def test_broken_nccl_output_is_refused(text, sentence):
    with pytest.raises(BadOutput, match=sentence):
        parse_nccl_tests(text)


def test_nccl_tests_report_rate_proof_and_absent_gpus(run_probe, tool):
    tool("all_reduce_perf", NCCL_HEAD + NCCL_ROWS + NCCL_TAIL)
    run = run_probe(NcclTests, Machine(), ops=["all_reduce"])
    assert run.one("nccl_busbw", op="all_reduce", nvls="on").value == 476.46
    assert run.one("nccl_transport").text == "NVLS/SIMPLE, 2 GPUs"
    assert run.one("nccl_absent_gpus").value == 0
    tool(
        "all_reduce_perf",
        "\n".join(line for line in (NCCL_HEAD + NCCL_ROWS + NCCL_TAIL).splitlines() if "Rank  1" not in line),
    )
    assert run_probe(NcclTests, Machine(), ops=["all_reduce"]).one("nccl_absent_gpus").value == 1


NCCL_RING = (NCCL_HEAD + NCCL_ROWS + NCCL_TAIL).replace("NVLS", "RING")


def test_a_ring_is_told_from_what_the_switches_reduce(run_probe, tool):
    tool("all_reduce_perf", NCCL_RING)
    run = run_probe(NcclTests, Machine(), ops=["all_reduce"])
    rate = run.one("nccl_busbw")
    assert (rate.value, rate.labels) == (476.46, {"op": "all_reduce", "nvls": "off"})
    assert run.one("nccl_transport").text == "RING/SIMPLE over P2P/CUMEM, 2 GPUs"


@pytest.mark.parametrize(
    ("op", "program", "output", "why_not"),
    [
        ("all_reduce", "all_reduce_perf", NCCL_RING.replace(VIA, ""),
         "NCCL does not say over which transport all_reduce of 8589934592 bytes ran"),
        ("all_reduce", "all_reduce_perf", NCCL_RING.replace("AllReduce: 8589934592 Bytes", "AllReduce: 8 Bytes"),
         "NCCL does not say by which algorithm all_reduce of 8589934592 bytes ran"),
        ("all_gather", "all_gather_perf", NCCL_RING,
         "NCCL does not say by which algorithm all_gather of 8589934592 bytes ran"),
        ("sendrecv", "sendrecv_perf", NCCL_RING.replace(VIA, ""),
         "NCCL does not say over which transport send_recv of 8589934592 bytes ran"),
    ],
)  # fmt: skip
def test_a_rate_without_proof_of_what_carried_it_is_no_measurement(run_probe, tool, op, program, output, why_not):
    tool(program, output)
    run = run_probe(NcclTests, Machine(), ops=[op])
    rate = run.one("nccl_busbw")
    note = f"what carried it is not proven: {why_not}; 8589934592 bytes, 2 GPUs"
    assert (rate.value, rate.labels, rate.note) == (None, {"op": op}, note)
    assert (run.one("nccl_transport").text, run.one("nccl_transport").note) == (None, why_not)
    assert run.one("nccl_mismatches").value == 0


def test_sends_have_no_algorithm_to_prove(run_probe, tool):
    tool("sendrecv_perf", NCCL_RING)
    run = run_probe(NcclTests, Machine(), ops=["sendrecv"])
    assert run.one("nccl_busbw", op="sendrecv", nvls="off").value == 476.46
    assert run.one("nccl_transport").text == "point to point over P2P/CUMEM, 2 GPUs"
