"""Collectives between real processes, over gloo; and, beside a stand-in for NCCL, what becomes of an unproven rate."""

import os

import pytest

from muster_node.cluster.collectives.exchange import OPS, Exchange
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Device, Fact
from muster_node.probe import Skip
from muster_node.probes import collectives
from muster_node.probes.collectives import Collectives

pytestmark = pytest.mark.needs_torch

CALLS = {
    "all_reduce": ("AllReduce", "AllReduce"),
    "all_gather": ("AllGather", "AllGather"),
    "reduce_scatter": ("ReduceScatter", "ReduceScatter"),
    "all_to_all": ("Send", ""),
    "send_recv": ("Send", ""),
}


def test_every_operation_between_three_processes(run_probe):
    run = run_probe(Collectives, sizes=[262144], repeats=3, ranks=3)
    for op in OPS:
        assert run.one("collective_mismatches", "node", op=op).value == 0
        rate = run.one("collective_busbw", "node", op=op)
        assert 0 < rate.value < 1000
        assert rate.samples == 3
        # the buffer is cut to a multiple of the ranks
        assert int(rate.labels["bytes"]) == 262144 // 4 // 3 * 3 * 4


def test_a_buffer_of_a_few_bytes_has_an_element_for_each_rank(run_probe):
    run = run_probe(Collectives, sizes=[8], repeats=1, ranks=3, ops=["all_reduce"])
    assert run.one("collective_busbw").labels["bytes"] == "12"


def test_sizes_that_do_not_fit_are_reported_and_left_out_by_all_ranks(run_probe):
    run = run_probe(Collectives, sizes=[4096, 2**50], repeats=1, ranks=2, ops=["all_gather"])
    small, large = run.all("collective_busbw")
    assert small.value > 0
    assert (large.value, large.labels["bytes"]) == (None, str(2**50))
    assert "does not fit" in large.note


@pytest.mark.parametrize("op", OPS)
def test_a_rank_that_corrupts_is_found(run_probe, monkeypatch, op):
    class Tampered(Exchange):
        def __init__(self, torch, name, rank, *rest):
            super().__init__(torch, name, rank, *rest)
            honest = self.run

            def corrupt():
                honest()
                self.result[3] += 1

            if name == op and rank == 1:
                self.run = corrupt

    monkeypatch.setattr(collectives, "Exchange", Tampered)
    run = run_probe(Collectives, sizes=[100000], repeats=1, ranks=2, ops=[op])
    assert run.one("collective_mismatches", op=op).value == 3  # once for each pass, warm-up included


class Logging(Exchange):
    """An exchange that writes what NCCL would write, into the file that NCCL_DEBUG_FILE names."""

    silent: tuple = ()

    def __init__(self, torch, op, rank, ranks, elements, *rest):
        super().__init__(torch, op, rank, ranks, elements, *rest)
        honest, (call, choice) = self.run, CALLS[op]
        with_switch = os.environ.get("NCCL_NVLS_ENABLE") != "0"
        head = f"node:{rank}:{rank} [{rank}] NCCL INFO "
        joined = [
            f"comm 0x55 rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId 1000 commId 0x1 - Init COMPLETE",
            f"NVLS multicast support is {'' if with_switch else 'not '}available on dev {rank}",
            f"Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] via P2P/CUMEM",
        ]

        def run():
            bytes_ = elements * 4
            lines = [*joined, f"{call}: opCount 1 sendbuff 0x1 recvbuff 0x2 count {elements} datatype 7 op 0 root 0 "
                     f"comm 0x55 [nranks={ranks}] stream 0x1"]  # fmt: skip
            if choice and rank == 0:
                algorithm = "NVLS" if with_switch else "RING"
                lines.append(f"{choice}: {bytes_} Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..15}}")
            with open(os.environ["NCCL_DEBUG_FILE"], "a", encoding="utf-8") as log:
                log.writelines(head + line + "\n" for line in lines if not any(word in line for word in self.silent))
            honest()

        self.run = run


class TwoGpus(HostHardware):
    """This machine with two GPUs that are its CPU in truth."""

    def devices(self, kind):
        return [Device(f"gpu{slot}", "gpu", slot) for slot in (0, 1)] if kind == "gpu" else super().devices(kind)

    def compute(self, device):
        return super().compute(self.devices("cpu")[0])


@pytest.fixture
def on_gpus(run_probe, monkeypatch):
    """``on_gpus(*silent, ops=…)``: collectives on stand-ins, whose log lacks lines with any of the words ``silent``."""
    monkeypatch.setattr(collectives, "BACKENDS", {"cpu": "gloo", "gpu": "gloo"})
    monkeypatch.setattr(collectives, "_BATCH", 2)

    def run(*silent, ops=OPS):
        monkeypatch.setattr(collectives, "Exchange", type("Silent", (Logging,), {"silent": silent}))
        return run_probe(Collectives, TwoGpus(), sizes=[4096, 65536], repeats=2, ops=list(ops))

    return run


@pytest.mark.parametrize(("gib", "rows"), [(40.0, 1), (2.0**30, 2), (None, 2)])
def test_a_size_beyond_the_gpus_memory_is_not_missing_but_one_that_did_not_fit_is(run_probe, monkeypatch, gib, rows):
    class Small(TwoGpus):
        def inventory(self):
            return [Fact("hbm_total", gpu.id, "GiB", gib, note="" if gib else "refused") for gpu in self.devices("gpu")]

    monkeypatch.setattr(collectives, "BACKENDS", {"cpu": "gloo", "gpu": "gloo"})
    monkeypatch.setattr(collectives, "Exchange", Logging)
    run = run_probe(Collectives, Small(), sizes=[4096, 2**50], repeats=1, ops=["send_recv"])
    found = run.all("collective_busbw", nvls="off")
    assert len(found) == rows
    assert [row.labels["bytes"] for row in found if row.value is None] == [str(2**50)] * (rows - 1)


def test_a_rate_between_gpus_comes_with_what_carried_it_with_nvls_and_without(on_gpus):
    run = on_gpus()
    assert run.one("nvls").value == 1.0
    for op in OPS:
        how = {"on": "NVLS/SIMPLE", "off": "RING/SIMPLE over P2P/CUMEM"}
        if op in ("all_to_all", "send_recv"):
            how = dict.fromkeys(how, "point to point over P2P/CUMEM")
        for nvls, carried in how.items():
            for size in ("4096", "65536"):
                rate = run.one("collective_busbw", op=op, nvls=nvls, bytes=size)
                assert rate.value > 0
                assert rate.note == carried + ", 2 GPUs"
            assert run.one("collective_mismatches", op=op, nvls=nvls).value == 0


@pytest.mark.parametrize("silent", ["Init COMPLETE", "opCount", "Algo"])
def test_a_rate_whose_transport_is_not_proven_is_withheld(on_gpus, silent):
    rate = on_gpus(silent, ops=["all_reduce"]).one("collective_busbw", nvls="on", bytes="4096")
    assert rate.value is None
    assert "not proven" in rate.note


def test_without_reduction_in_switches_there_is_nothing_to_switch_off(on_gpus):
    run = on_gpus("multicast", ops=["send_recv"])
    assert {rate.labels["nvls"] for rate in run.all("collective_busbw")} == {"off"}
    fact = run.one("nvls")
    assert (fact.device, fact.value) == ("node", 0.0)
    assert {gpu for gpu in ("gpu0", "gpu1") if gpu in fact.note} == {"gpu0", "gpu1"}


def test_one_gpu_alone_exchanges_nothing(run_probe, monkeypatch):
    monkeypatch.setattr(collectives, "BACKENDS", {"cpu": "gloo", "gpu": "gloo"})
    hardware = TwoGpus()
    real = hardware.devices
    monkeypatch.setattr(hardware, "devices", lambda kind: real(kind)[:1])
    with pytest.raises(Skip):
        run_probe(Collectives, hardware)


def test_a_rank_that_breaks_is_named_while_the_others_wait_for_it(on_gpus, monkeypatch):
    """As NCCL: the other ranks wait in the collective and return long after the failed one has reported."""
    real = Logging.__init__

    def breaks(self, torch, op, rank, *rest):
        if rank == 1:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        real(self, torch, op, rank, *rest)

    monkeypatch.setattr(Logging, "__init__", breaks)
    run = on_gpus(ops=["all_reduce"])
    for metric in ("collective_busbw", "collective_mismatches"):
        (row,) = run.all(metric)
        assert row.value is None
        assert "gpu1: CUDA error" in row.note
