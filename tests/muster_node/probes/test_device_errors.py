"""An error that PyTorch raises on one GPU is that GPU's entry: the others are measured."""

import pytest

from muster_node.probes.collectives import Collectives
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.probes.full_entropy import FullEntropy
from muster_node.probes.gemm_rate import GemmRate
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.probes.thermal_soak import ThermalSoak
from muster_node.probes.transfers import Transfers
from muster_simulator import SimulatedHardware, create_machine
from tests.muster_simulator.winding import WoundClock

pytestmark = pytest.mark.needs_torch

REASON = "CUDA error: uncorrectable ECC error encountered"
GPUS = [f"gpu{slot}" for slot in range(8)]


@pytest.fixture
def broken_gpu4(tmp_path):
    """Eight GPUs; every kernel on gpu4 fails, in the words and with the advice of PyTorch."""
    create_machine(tmp_path / "node", "h100-sxm-8", 1, ())
    hardware = SimulatedHardware(tmp_path / "node", WoundClock())
    real = hardware.compute

    def fails(*_, **__):
        raise RuntimeError(f"{REASON}\nCUDA kernel errors might be asynchronously reported at some other API call")

    def compute(device):
        made = real(device)
        if device.id == "gpu4":
            made.matmul = made.copy = made.touch = made.transfer = fails
        elif hasattr(made, "transfer"):
            honest = made.transfer
            made.transfer = lambda all_of, **size: (
                fails() if any(one.peer and one.peer.id == "gpu4" for one in all_of) else honest(all_of, **size)
            )
        return made

    hardware.compute = compute
    return hardware


@pytest.mark.parametrize(
    ("probe", "params", "metric"),
    [
        (ThermalSoak, {"seconds": 2.0}, "soak_rate"),
        (GemmRate, {"dtypes": ["bf16"], "seconds": 0.2, "warmup_s": 0.0}, "gemm_rate"),
        (MemoryBandwidth, {"seconds": 0.01}, "memory_bandwidth"),
        (MemoryPattern, {"max_gib": 1 / 16, "patterns": ["own_address"]}, "memory_mismatches"),
        (ExactGemm, {"dtypes": ["bf16"], "rounds": 1, "modes": ["together"]}, "gemm_mismatches"),
        (FullEntropy, {"dtypes": ["bf16"], "repeats": 2}, "full_entropy_mismatches"),
    ],
)
def test_one_gpus_error_costs_that_gpu_only(run_probe, broken_gpu4, probe, params, metric):
    run = run_probe(probe, broken_gpu4, **params)
    rows = [row for row in run.all(metric) if row.device in GPUS]
    assert {row.device for row in rows if row.value is not None} == set(GPUS) - {"gpu4"}
    assert {(row.value, row.note) for row in rows if row.device == "gpu4"} == {(None, REASON)}


def test_mismatches_found_before_an_error_remain_a_finding(run_probe, broken_gpu4, monkeypatch):
    """The device computes wrongly, and then its context breaks."""
    from muster_node.workloads.products.exact_vector import Vector

    real = Vector.check_first

    def wrong_then_broken(self, reruns, finding):
        broken = self._compute.device.id == "gpu2"
        self._first[0, 0] += broken
        real(self, reruns, finding)
        if broken:
            raise RuntimeError(REASON)

    monkeypatch.setattr(Vector, "check_first", wrong_then_broken)
    run = run_probe(ExactGemm, broken_gpu4, dtypes=["bf16"], rounds=1, modes=["together"])
    assert run.one("gemm_mismatches", "gpu2").value == 1
    assert run.one("gemm_mismatches", "gpu1").value == 0


@pytest.mark.parametrize("broken", ["host_buffer", "physical", "transfer"])
def test_copies_of_the_other_gpus_are_measured_and_judged_without_it(run_probe, broken_gpu4, broken):
    """It breaks while buffers are made for the host, for any copy, or in the copies themselves."""
    made = broken_gpu4.compute

    def fails(*_, **__):
        raise RuntimeError(REASON)

    def compute(device):
        one = made(device)
        if device.id == "gpu4":
            setattr(one, broken, fails)
        return one

    broken_gpu4.compute = compute
    run = run_probe(Transfers, broken_gpu4, mib=1, peer_mib=1, repeats=3)
    for metric in ("pcie_bandwidth", "pcie_bandwidth_together", "peer_bandwidth", "transfer_mismatches"):
        rows = run.all(metric)
        assert {row.device for row in rows} == set(GPUS)
        for row in rows:
            assert (row.value is None) is (row.device == "gpu4"), row
            assert (REASON in row.note) is (row.device == "gpu4"), row


def test_a_collective_without_one_of_its_gpus_has_entries_that_name_it(run_probe, broken_gpu4):
    run = run_probe(Collectives, broken_gpu4, sizes=[4096], repeats=1, ops=["all_reduce", "all_gather"])
    for metric in ("collective_busbw", "collective_mismatches"):
        rows = run.all(metric)
        assert {row.labels["op"] for row in rows} == {"all_reduce", "all_gather"}
        assert {(row.value, REASON in row.note) for row in rows} == {(None, True)}
