"""Memory patterns and bandwidth on this machine, and corrupted memory on purpose."""

import pytest

from muster_node.hardware.cpu_compute import CpuCompute
from muster_node.probe import Skip
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.memory_pattern import MemoryPattern, sequences

pytestmark = pytest.mark.needs_torch

PATTERNS = MemoryPattern.params["patterns"].default
SMALL = {"max_gib": 1 / 32}


def test_this_machine_keeps_what_is_written(run_probe):
    run = run_probe(MemoryPattern, **SMALL)
    assert [m.labels["pattern"] for m in run.all("memory_mismatches")] == PATTERNS
    assert all(m.value == 0 and m.device == "memory" for m in run.all("memory_mismatches"))
    assert run.one("memory_tested", "memory").value == pytest.approx(1 / 32, rel=1e-3)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_stuck_bit_is_found_by_every_pattern(run_probe, cpus, monkeypatch, pattern):
    """One cell whose bit 11 flips whenever the buffer has been written."""

    def stuck(self, tensor, *, nominal_bytes):
        if self.device.id == cpus[0]:
            tensor[4321] ^= 1 << 11
        return tensor

    monkeypatch.setattr(CpuCompute, "touch", stuck)
    run = run_probe(MemoryPattern, patterns=[pattern], **SMALL)
    found = run.one("memory_mismatches", "memory", pattern=pattern)
    assert found.value >= 1
    assert f"offset 0x{4321 * 8:x} differs in bits 0x{1 << 11:016x}" in found.note


def test_mismatches_are_counted_exactly(run_probe, cpus, monkeypatch):
    def torn(self, tensor, *, nominal_bytes):
        if self.device.id == cpus[0]:
            tensor[1000:1005] = tensor[1000:1005] + 1
        return tensor

    monkeypatch.setattr(CpuCompute, "touch", torn)
    run = run_probe(MemoryPattern, patterns=["random"], **SMALL)
    assert run.one("memory_mismatches", "memory", pattern="random").value == 5


def test_walking_bits_put_every_cell_through_every_bit():
    import torch

    index = torch.arange(64)
    seen = torch.zeros(64, dtype=torch.int64)
    for (fill,) in sequences(torch, "walking_ones", 5, 64):
        words = fill(index)
        assert all(bin(word & (2**64 - 1)).count("1") == 1 for word in words.tolist())
        seen |= words
    assert set(seen.tolist()) == {-1}


def test_no_two_cells_share_an_address_word_or_a_random_word():
    import torch

    index = torch.arange(100_000)
    for pattern in ("own_address", "random"):
        (fills,) = sequences(torch, pattern, 99, 1)
        assert fills[0](index).unique().numel() == index.numel()


@pytest.mark.parametrize(
    ("params", "message"), [({"fraction": 1.5}, "fraction"), ({"patterns": ["rowhammer"]}, "rowhammer")]
)
def test_bad_parameters(run_probe, params, message):
    with pytest.raises(ValueError, match=message):
        run_probe(MemoryPattern, **params)


def test_too_little_memory_is_skipped(run_probe, monkeypatch):
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: 2**20)
    with pytest.raises(Skip, match="MiB"):
        run_probe(MemoryPattern)
    with pytest.raises(Skip, match="half of the free memory"):
        run_probe(MemoryBandwidth)


def test_bandwidth(run_probe):
    run = run_probe(MemoryBandwidth, seconds=0.2, array_mib=64)
    for op in ("copy", "triad"):
        rate = run.one("memory_bandwidth", "memory", op=op)
        assert 0.5 < rate.value < 5000
        assert rate.samples >= 5


def test_bandwidth_counts_what_really_moves(run_probe, monkeypatch):
    """A copy done three times over must show a third of the rate."""
    honest = run_probe(MemoryBandwidth, seconds=0.3, array_mib=64).one("memory_bandwidth", op="copy").value

    def thrice(self, target, source, *, nominal_bytes):
        for _ in range(3):
            target.copy_(source)

    monkeypatch.setattr(CpuCompute, "copy", thrice)
    slow = run_probe(MemoryBandwidth, seconds=0.3, array_mib=64).one("memory_bandwidth", op="copy").value
    assert slow < 0.6 * honest
