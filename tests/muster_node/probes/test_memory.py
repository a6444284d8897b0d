"""Memory patterns and bandwidth on this machine, and corrupted memory on purpose."""

from types import SimpleNamespace

import pytest

from muster_node.hardware import open_hardware
from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Device, Fact
from muster_node.probe import Skip
from muster_node.probes import memory_bandwidth, memory_pattern
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.workloads import patterns
from muster_node.workloads.common import beyond_caches
from muster_node.workloads.patterns import PATTERNS, Region, described, sequences
from muster_simulator import create_machine, open_simulated
from tests.support.injector import KINDS, Injector, OneDevice

pytestmark = pytest.mark.needs_torch

SMALL = {"max_gib": 1 / 32}
TINY = {"max_gib": 1 / 64}
"""The least that is tested. Enough where a word, row or block is damaged: the pattern finds it, not the size."""


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tests take as little memory as they ask for, whatever this machine's caches hold."""
    monkeypatch.setattr(memory_pattern, "beyond_caches", lambda hardware: 0.0)


def test_this_machine_keeps_what_is_written(run_probe):
    run = run_probe(MemoryPattern, **SMALL)
    assert [m.labels["pattern"] for m in run.all("memory_mismatches")] == list(PATTERNS)
    assert all(m.value == 0 and m.device == "memory" for m in run.all("memory_mismatches"))
    assert run.one("memory_tested", "memory").value == pytest.approx(1 / 32, rel=1e-3)
    assert run.all("memory_rerun") == [], "nothing was wrong, so nothing is run again"


def test_coverage_is_the_share_of_the_free_memory(run_probe, monkeypatch):
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: 2**26)
    run = run_probe(MemoryPattern, fraction=0.25)
    covered = run.one("memory_coverage", "memory")
    assert covered.value == pytest.approx(25.0, rel=1e-3)
    assert covered.note.startswith("0.01562 of 0.0625 GiB")


@pytest.mark.parametrize(("free_gib", "tested_gib"), [(64, 1 / 16), (1 / 16, 1 / 32)])
def test_a_hosts_caches_do_not_answer_for_its_memory(run_probe, monkeypatch, free_gib, tested_gib):
    """Four times what they hold is tested whatever the cap, half of what is free at most."""
    monkeypatch.setattr(memory_pattern, "beyond_caches", beyond_caches)
    monkeypatch.setattr(HostHardware, "inventory", lambda self: [Fact("cpu_llc", "node", "MiB", 16.0)])
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: int(free_gib * 2**30))
    run = run_probe(MemoryPattern, patterns=["own_address"], **TINY)
    assert run.one("memory_tested", "memory").value == pytest.approx(tested_gib, rel=1e-3)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_stuck_bit_is_found_by_every_pattern(run_probe, cpus, monkeypatch, pattern):
    """One cell whose bit 11 flips whenever the buffer has been written."""

    def stuck(self, tensor, *, nominal_bytes):
        if self.device.id == cpus[0]:
            tensor[4321] ^= 1 << 11
        return tensor

    monkeypatch.setattr(CpuCompute, "touch", stuck)
    run = run_probe(MemoryPattern, patterns=[pattern], **TINY)
    found = run.one("memory_mismatches", "memory", pattern=pattern)
    assert found.value >= 1
    if pattern == "block_move":  # it was spoilt before it was moved
        assert found.note.endswith(", moved there from word 4321")
    else:
        assert f"word 4321 (offset 0x{4321 * 8:x}): wrote 0x" in found.note
    assert "1 bit 1→0" in found.note or "1 bit 0→1" in found.note
    again = run.one("memory_rerun", "memory", pattern=pattern, on=cpus[0])
    assert (again.value, again.samples) == (3, 3)


def test_a_word_that_is_wrong_at_its_first_reading_alone_counts(monkeypatch):
    """Words are counted at a second reading: an error on the way to the first one must not be lost."""
    torch = pytest.importorskip("torch")
    real, readings = patterns._Laid.differs, []

    def once(self, lines, low):
        different = real(self, lines, low)
        different[0, 0] |= not readings
        readings.append(low)
        return different

    monkeypatch.setattr(patterns._Laid, "differs", once)
    hardware = open_hardware()
    region = Region(torch, hardware.compute(hardware.devices("core")[0]), 2**20, 2**20)
    wrong, examples = region.run("random", next(sequences(torch, "random", 7, 1)))
    assert (wrong, len(examples)) == (1, 1)
    assert examples[0].endswith("differed when they were read, and not when read again")


def test_a_wrong_word_is_noted_with_written_and_read_values_and_flip_directions():
    assert described(63, 0b1110, 0b0011) == (
        "word 63 (offset 0x1f8): wrote 0x000000000000000e, read 0x0000000000000003, 2 bits 1→0 and 1 bit 0→1"
    )
    assert described(0, -1, -2).endswith("wrote 0xffffffffffffffff, read 0xfffffffffffffffe, 1 bit 1→0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_finds_every_kind_of_damage_to_what_was_written(run_probe, pattern, kind):
    injector = Injector(kind, "touch", among=1, seed=3)
    run = run_probe(MemoryPattern, OneDevice(open_hardware(), injector), patterns=[pattern], reruns=1, **TINY)
    found = run.one("memory_mismatches", "memory", pattern=pattern)
    assert (found.value > 0) == injector.changed
    assert injector.changed or (pattern, kind) == ("moving_inversions", "shifted"), "a constant shifted is the same"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "repeatable"])
def test_damage_by_a_move_of_blocks_is_found(run_probe, kind):
    injector = Injector(kind, "copy", among=8, seed=5)
    run = run_probe(MemoryPattern, OneDevice(open_hardware(), injector), patterns=["block_move"], reruns=1, **TINY)
    assert injector.changed
    assert run.one("memory_mismatches", "memory", pattern="block_move").value > 0


def test_blocks_that_were_not_moved_are_found(run_probe, monkeypatch):
    """A device that acknowledges copies and does not make them: no pattern without a move can see it."""
    monkeypatch.setattr(CpuCompute, "copy", lambda self, target, source, *, nominal_bytes: None)
    run = run_probe(MemoryPattern, **SMALL)
    assert {m.labels["pattern"] for m in run.all("memory_mismatches") if m.value} == {"block_move"}


@pytest.fixture
def gpus(tmp_path):
    create_machine(tmp_path / "node", seed=4)
    return open_simulated(tmp_path / "node")


def test_simulated_gpus_account_for_nearly_all_of_their_memory(run_probe, gpus):
    run = run_probe(MemoryPattern, gpus, fraction=0.97)
    assert gpus.simulated, "and everything that comes from there is marked so"
    for found in run.all("memory_coverage"):
        assert found.value == pytest.approx(97.0, abs=0.01)
        assert "GiB" in found.note


def test_a_wrong_product_runs_again_there_and_on_two_siblings(run_probe, gpus):
    compute = type(gpus.compute(gpus.devices("gpu")[0]))

    def stuck(self, tensor, *, nominal_bytes):
        if self.device.id == "gpu6":
            tensor[77] ^= 1 << 11
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "touch", stuck)
        run = run_probe(MemoryPattern, gpus, patterns=["own_address", "random"], reruns=2)
    again = {(m.labels["pattern"], m.labels["on"]): (m.value, m.samples) for m in run.all("memory_rerun")}
    assert {m.device for m in run.all("memory_rerun")} == {"gpu6"}
    assert again == {
        ("own_address", "gpu6"): (2, 2), ("own_address", "gpu7"): (0, 1), ("own_address", "gpu0"): (0, 1),
        ("random", "gpu6"): (2, 2), ("random", "gpu7"): (0, 1), ("random", "gpu0"): (0, 1),
    }  # fmt: skip


def test_mismatches_are_counted_exactly(run_probe, cpus, monkeypatch):
    def torn(self, tensor, *, nominal_bytes):
        if self.device.id == cpus[0]:
            tensor[1000:1005] = tensor[1000:1005] + 1
        return tensor

    monkeypatch.setattr(CpuCompute, "touch", torn)
    run = run_probe(MemoryPattern, patterns=["random"], **TINY)
    assert run.one("memory_mismatches", "memory", pattern="random").value == 5


def test_walking_bits_put_every_cell_through_every_bit():
    import torch

    index = torch.arange(64)
    seen = torch.zeros(64, dtype=torch.int64)
    for (fill,) in sequences(torch, "walking_ones", 5, 64):
        words = fill.at(index, period=24)
        assert all(bin(word & (2**64 - 1)).count("1") == 1 for word in words.tolist())
        seen |= words
    assert set(seen.tolist()) == {-1}


def test_random_words_put_every_bit_to_both_values():
    import torch

    (fills,) = sequences(torch, "random", 5, 1)
    words = fills[0].words(torch.arange(4096))
    ever, never = 0, 0
    for word in words.tolist():
        ever, never = ever | word & 2**64 - 1, never | ~word & 2**64 - 1
    assert ever == never == 2**64 - 1


def test_no_two_cells_share_an_address_word():
    import torch

    index = torch.arange(100_000)
    (fills,) = sequences(torch, "own_address", 99, 1)
    for fill in fills:
        assert fill.at(index, period=4096).unique().numel() == index.numel()


def test_cells_one_address_line_apart_never_hold_the_same_random_word():
    """Cells whose numbers differ by a power of two, in one row or in several."""
    import torch

    (fills,) = sequences(torch, "random", 99, 1)
    index = torch.arange(2**18)
    words = fills[0].at(index, period=2**12)
    for line in range(18):
        assert (words != words[index ^ (1 << line)]).all(), line


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_cell_holds_what_its_pattern_says(pattern):
    """The buffer, filled row by row from a template, against the same words worked out cell by cell."""
    import torch

    compute = SimpleNamespace(
        device=Device("cpu0", "cpu", 0),
        torch_device="cpu",
        physical=lambda *shape: shape,
        touch=lambda tensor, *, nominal_bytes: seen.append(tensor.clone()) or tensor,
        copy=lambda target, source, *, nominal_bytes: target.copy_(source),
    )
    region = Region(torch, compute, 8 * 70_000, block_bytes=8 * 20_000)
    index = torch.arange(region.words.numel())
    for fills in sequences(torch, pattern, 12345, 2):
        seen = []
        assert region.run(pattern, fills) == (0, [])
        assert torch.equal(seen[0], fills[0].at(index, region.period))


@pytest.mark.parametrize("params", [{"fraction": 1.5}, {"patterns": ["rowhammer"]}])
def test_bad_parameters(run_probe, params):
    with pytest.raises(ValueError):
        run_probe(MemoryPattern, **params)


def test_too_little_memory_is_skipped(run_probe, monkeypatch):
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: 2**20)
    with pytest.raises(Skip):
        run_probe(MemoryPattern)
    with pytest.raises(Skip):
        run_probe(MemoryBandwidth)


def test_bandwidth(run_probe):
    run = run_probe(MemoryBandwidth, seconds=0.2, array_mib=64)
    for op in ("copy", "triad"):
        rate = run.one("memory_bandwidth", "memory", op=op)
        assert 0.5 < rate.value < 5000
        assert rate.samples >= 5


@pytest.mark.parametrize(("gib", "mib"), [([80.0, 80.0], 4096), ([39.4, 39.4], 4096), ([22.5, 80.0], None), ([], 4096)])
def test_the_arrays_of_a_small_gpu_fit_into_it(gib, mib):
    facts = [Fact("hbm_total", f"gpu{slot}", "GiB", each) for slot, each in enumerate(gib)]
    context = SimpleNamespace(hardware=SimpleNamespace(inventory=lambda: facts))
    actual = memory_bandwidth._array_mib(context, "gpu")
    assert actual == mib if mib else 3000 < actual < 22.5 * 1024 / 6


class GpuThatIsACpu(HostHardware):
    """The machine, whose first CPU passes for a GPU too."""

    def devices(self, kind):
        return [Device("gpu0", "gpu", 0)] if kind == "gpu" else super().devices(kind)

    def compute(self, device):
        return super().compute(super().devices("cpu")[0] if device.kind == "gpu" else device)


def test_a_node_with_gpus_has_memory_of_its_own_too(run_probe):
    run = run_probe(MemoryBandwidth, GpuThatIsACpu(), seconds=0.1, array_mib=64)
    assert {row.device for row in run.all("memory_bandwidth")} == {"gpu0", "memory"}
    assert all(row.value > 0.5 for row in run.all("memory_bandwidth"))


def test_host_memory_that_cannot_be_measured_costs_no_gpu_its_figure(run_probe, monkeypatch):
    def full(context, torch, devices):
        if devices[0].kind == "cpu":
            raise Skip("half of the free memory is too little")
        return measure(context, torch, devices)

    measure = memory_bandwidth._measure
    monkeypatch.setattr(memory_bandwidth, "_measure", full)
    run = run_probe(MemoryBandwidth, GpuThatIsACpu(), seconds=0.1, array_mib=64)
    assert run.one("memory_bandwidth", "gpu0", op="copy").value > 0.5
    measured = run.one("memory_bandwidth", "memory", op="copy")
    assert measured.value is None
    assert measured.note


def test_bandwidth_counts_what_really_moves(run_probe, monkeypatch):
    """A copy done three times over must show a third of the rate."""
    honest = run_probe(MemoryBandwidth, seconds=0.3, array_mib=64).one("memory_bandwidth", op="copy").value

    def thrice(self, target, source, *, nominal_bytes):
        for _ in range(3):
            target.copy_(source)

    monkeypatch.setattr(CpuCompute, "copy", thrice)
    slow = run_probe(MemoryBandwidth, seconds=0.3, array_mib=64).one("memory_bandwidth", op="copy").value
    assert slow < 0.6 * honest
