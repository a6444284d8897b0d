"""NCCL's log in the forms of its versions, and what proves which algorithm and transport carried the bytes.

The lines follow the formats in NCCL's source and public logs; none of them was recorded on hardware of this project.
"""

import pytest

from muster_node.tools.nccl_log import Proof, parse_nccl_log, prove

GIB = 2**30


def joined(rank, ranks=8, word="comm"):
    return (
        f"node-1:4711:{4720 + rank} [{rank}] NCCL INFO {word} 0x55d1 rank {rank} nranks {ranks} cudaDev {rank} nvmlDev "
        f"{rank} busId {rank}b000 commId 0x96e3 - Init COMPLETE\n"
    )


def channel(rank, how="P2P/CUMEM", ranks=8):
    other = (rank + 1) % ranks
    return f"node-1:4711:{4720 + rank} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {other}[{other}] via {how}\n"


def called(call, ranks=8):
    return (
        f"node-1:4711:4711 [0] NCCL INFO {call}: opCount 2a sendbuff 0x7f10 recvbuff 0x7f20 count 268435456 datatype 7 "
        f"op 0 root 0 comm 0x55d1 [nranks={ranks}] stream 0x5a00\n"
    )


def chose(call, size, algorithm, protocol):
    return (
        f"node-1:4711:4711 [0] NCCL INFO {call}: {size} Bytes -> Algo {algorithm} proto {protocol} "
        "channel{Lo..Hi}={0..15}\n"
    )


def proof(op, size, during, heads=None, ranks=8):
    texts = heads or [joined(rank) + channel(rank) for rank in range(ranks)]
    until = [parse_nccl_log(text) for text in [texts[0] + during, *texts[1:]]]
    return prove(op, size, ranks, parse_nccl_log(during), until)


def test_names_of_new_versions_and_numbers_of_old_ones_agree():
    new = parse_nccl_log(chose("AllReduce", GIB, "RING", "LL128") + chose("AllReduce", 8, "Tree", "Simple"))
    assert new.choices == {("AllReduce", GIB): ("RING/LL128",), ("AllReduce", 8): ("TREE/SIMPLE",)}
    old = "host:1:2 [0] NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008\n"
    older = "host:1:2 [0] NCCL INFO 805306368 Bytes -> Algo 4 proto 2 time 3970.683594\n"
    assert parse_nccl_log(old + older).choices == {
        ("AllGather", 37756928): ("RING/SIMPLE",),
        ("", 805306368): ("NVLS/SIMPLE",),
    }
    assert parse_nccl_log(older.replace("Algo 4", "Algo 9")).choices == {("", 805306368): ("9/SIMPLE",)}


def test_channels_name_their_transports():
    text = "".join(
        [
            channel(0, "P2P/CUMEM/read"),
            channel(1, "P2P/direct pointer"),
            channel(2, "SHM/direct/direct"),
            "a:1:2 [0] NCCL INFO Channel 04/1 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA\n",
            "a:1:2 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[3d000] via P2P/IPC\n",
            "a:1:2 [0] NCCL INFO Channel 00/16 :    0   7   6   5   4   3   2   1\n",
        ]
    )
    assert parse_nccl_log(text).transports == (
        "NET/IB/0/GDRDMA", "P2P/CUMEM/read", "P2P/IPC", "P2P/direct pointer", "SHM/direct/direct"
    )  # fmt: skip


def test_switches_that_can_reduce_are_noted():
    line = "a:1:2 [3] NCCL INFO NVLS multicast support is %savailable on dev 3\n"
    assert parse_nccl_log(line % "").nvls
    assert not parse_nccl_log(line % "not ").nvls
    assert not parse_nccl_log("").nvls


def test_a_proof_names_algorithm_protocol_transport_and_how_many_took_part():
    assert proof("all_reduce", GIB, called("AllReduce") + chose("AllReduce", GIB, "RING", "SIMPLE")) == Proof(
        "RING/SIMPLE over P2P/CUMEM, 8 GPUs"
    )
    assert proof("send_recv", GIB, called("Send") + called("Recv")) == Proof("point to point over P2P/CUMEM, 8 GPUs")
    assert proof("all_to_all", GIB, called("AlltoAll")).carried


def test_reduction_in_switches_needs_no_channels():
    heads = [joined(rank, word="ncclCommInitRankConfig comm") for rank in range(8)]
    nvls = called("AllReduce") + chose("AllReduce", GIB, "NVLS", "SIMPLE")
    assert proof("all_reduce", GIB, nvls, heads) == Proof("NVLS/SIMPLE, 8 GPUs", in_switch=True)
    mixed = nvls + chose("AllReduce", GIB, "RING", "SIMPLE")
    assert not proof("all_reduce", GIB, mixed).in_switch
    ring = called("AllReduce") + chose("AllReduce", GIB, "RING", "SIMPLE")
    assert proof("all_reduce", GIB, ring, heads).code == "no transport"


def test_gathers_are_logged_whole_or_by_rank():
    for size in (GIB, GIB // 8):
        assert proof("all_gather", GIB, called("AllGather") + chose("AllGather", size, "RING", "SIMPLE")).carried
    assert proof("all_gather", GIB, called("AllGather") + chose("AllGather", GIB // 4, "RING", "SIMPLE")).why_not


@pytest.mark.parametrize(
    ("during", "code"),
    [
        ("", "not called"),
        (called("AllReduce", 7), "not called"),
        (called("AllGather"), "not called"),
        (called("AllReduce"), "no algorithm"),
        # the barrier before it, which is a sum of one element
        (called("AllReduce") + chose("AllReduce", 4, "TREE", "LL"), "no algorithm"),
    ],
)
def test_an_incomplete_log_is_no_proof(during, code):
    found = proof("all_reduce", GIB, during)
    assert (found.carried, found.code) == ("", code)


def test_a_rank_that_did_not_join_or_names_no_transport_spoils_the_proof():
    during = called("AllReduce") + chose("AllReduce", GIB, "RING", "SIMPLE")
    heads = [joined(rank) + channel(rank) for rank in range(7)]
    assert proof("all_reduce", GIB, during, [*heads, channel(7)]).code == "not joined"
    assert proof("all_reduce", GIB, during, [*heads, joined(7)]).code == "no transport"
    assert proof("all_reduce", GIB, during, [*heads, joined(7, 4)]).code == "not joined"
