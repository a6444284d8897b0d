"""The burn: rates over time, and what happened to the counters meanwhile."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Fact
from muster_node.probe import Skip
from muster_node.probes import cpu_burn
from muster_node.probes.cpu_burn import CpuBurn
from muster_node.workloads.host_load import HostBurn, emit_checks
from muster_node.workloads.rerun import Rerun

pytestmark = pytest.mark.needs_torch

SHORT = {"seconds": 0.6, "memory_gib": 0.02}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tests take as little memory as they ask for, whatever this machine's caches hold."""
    monkeypatch.setattr(cpu_burn, "beyond_caches", lambda hardware: 0.0)


@dataclasses.dataclass
class Burning(HostHardware):
    """This machine, with counters that change while it burns."""

    counts: list

    def __post_init__(self):
        super().__init__()

    def counters(self):
        checks, corrected, uncorrected = self.counts.pop(0)
        yield Fact("machine_checks", "node", "count", checks, note="" if checks is not None else "not supported")
        yield Fact("edac_corrected", "node", "count", corrected)
        yield Fact("edac_uncorrected", "node", "count", uncorrected)


def test_a_healthy_burn(run_probe, cpus):
    run = run_probe(CpuBurn, **SHORT)
    for cpu in cpus:
        rate = run.one("burn_rate", cpu)
        assert rate.value > 0.1
        assert rate.samples >= 1
        run.one("burn_rate_drop", cpu)
    assert run.one("memory_burn_mismatches", "memory").value == 0
    assert not run.all("memory_burn_rerun")
    assert 0 < run.one("memory_burn_tested", "memory").value <= 0.02
    assert run.one("host_product_mismatches", "node").value == 0


def test_counters_are_reported_as_differences_over_the_burn(run_probe):
    run = run_probe(CpuBurn, Burning([(1, 5, 0), (3, 5, 1)]), **SHORT)
    assert run.one("machine_checks").value == 2
    assert run.one("edac_corrected").value == 0
    assert run.one("edac_uncorrected").value == 1


def test_unreadable_values_are_not_zero(run_probe):
    run = run_probe(CpuBurn, Burning([(None, 0, 0), (None, 0, 0)]), **SHORT)
    assert run.one("machine_checks").value is None


def test_memory_that_loses_a_word_during_the_burn(run_probe, cpus, monkeypatch):
    def torn(self, tensor, *, nominal_bytes):
        if self.device.id == cpus[0]:
            tensor[17] ^= 4
        return tensor

    monkeypatch.setattr(CpuCompute, "touch", torn)
    run = run_probe(CpuBurn, **SHORT)
    found = run.one("memory_burn_mismatches")
    assert found.value >= 1
    again = run.one("memory_burn_rerun", "memory", on=cpus[0])
    assert (again.value, again.samples) == (3, 3)
    assert found.note.startswith("word 17 (offset 0x88): wrote 0x")


def test_a_core_that_multiplies_otherwise_during_the_burn(run_probe, cpus, monkeypatch):
    multiply, done = CpuCompute.matmul, itertools.count()

    def flips(self, a, b, **sizes):
        product = multiply(self, a, b, **sizes)
        if self.device.id == cpus[0] and next(done) == 1:
            product[5, 7] += 1.0
        return product

    monkeypatch.setattr(CpuCompute, "matmul", flips)
    found = run_probe(CpuBurn, **SHORT).one("host_product_mismatches", "node")
    assert found.value == 1
    assert found.note.startswith(f"{cpus[0]}: 1 of ")


def test_a_core_that_is_wrong_in_every_product_differs_from_the_others():
    """Of which each product has the bits of its first: only other cores tell."""

    def burn(cpu, first):
        return HostBurn([1.0], 0, [], cpu, 10, 0, first, 2**20, Rerun())

    emitted = []
    context = SimpleNamespace(emit=lambda metric, device, **fields: emitted.append((metric, fields)))
    emit_checks(context, [burn("cpu0", "a"), burn("cpu1", "a"), burn("cpu2", "b")])
    found = dict(emitted)["host_product_mismatches"]
    assert found["value"] == 1
    assert found["note"].startswith("cpu2: ")


def test_all_cores_multiply_the_same_operands(run_probe, cpus, monkeypatch):
    """So a core that always halves one element is found, though it agrees with itself."""
    multiply = CpuCompute.matmul

    def halves(self, a, b, **sizes):
        product = multiply(self, a, b, **sizes)
        if self.device.id == cpus[0]:
            product[5, 7] /= 2
        return product

    assert run_probe(CpuBurn, **SHORT).one("host_product_mismatches", "node").value == 0
    monkeypatch.setattr(CpuCompute, "matmul", halves)
    found = run_probe(CpuBurn, **SHORT).one("host_product_mismatches", "node")
    assert found.value == (len(cpus) if len(cpus) == 2 else min(1, len(cpus) - 1))  # two have no majority


@pytest.mark.parametrize(("free", "tested_gib"), [(2**36, 1 / 16), (2**26, 1 / 32)])
def test_a_hosts_caches_do_not_answer_for_the_memory_burnt(run_probe, monkeypatch, free, tested_gib):
    monkeypatch.setattr(cpu_burn, "beyond_caches", lambda hardware: 2.0**26)
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: free)
    assert run_probe(CpuBurn, **SHORT).one("memory_burn_tested", "memory").value == pytest.approx(tested_gib, rel=1e-2)


def test_no_memory_to_burn_is_skipped(run_probe):
    with pytest.raises(Skip):
        run_probe(CpuBurn, seconds=0.1, memory_gib=1e6)
