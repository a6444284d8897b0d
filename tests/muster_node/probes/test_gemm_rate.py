"""GEMM rates on this machine's cores."""

import pytest

from muster_node.probes import gemm_rate
from muster_node.probes.gemm_rate import GemmRate

pytestmark = pytest.mark.needs_torch


@pytest.fixture(scope="module")
def quick():
    return {"size": 256, "seconds": 0.1, "warmup_s": 0.05}


def test_rates_alone_and_together(run_probe, cpus, quick):
    run = run_probe(GemmRate, dtypes=["fp32"], **quick)
    alone = [run.one("gemm_rate", cpu, dtype="fp32") for cpu in cpus]
    node = run.one("gemm_rate", "node", dtype="fp32")
    assert all(rate.value > 0.5 and rate.samples >= 5 and rate.spread >= 0 for rate in alone)
    scaling = run.one("gemm_scaling", "node", dtype="fp32").value
    assert scaling == pytest.approx(100.0 * node.value / sum(rate.value for rate in alone))
    assert 10.0 < scaling < 200.0


def test_share_of_peak_is_rate_over_clock_and_width(run_probe, cpus, quick):
    run = run_probe(GemmRate, dtypes=["fp64"], **quick)
    from muster_node.hardware import open_hardware

    facts = {fact.name: fact.value for fact in open_hardware().inventory()}
    peak = facts["cpu_max_clock"] / 1000 * facts["cpu_vector_width"] / 64 * 2 * 2
    for cpu in cpus:
        share = run.one("gemm_peak_share", cpu, dtype="fp64")
        assert share.value == pytest.approx(100 * run.one("gemm_rate", cpu, dtype="fp64").value / peak)


def test_formats_beyond_the_vector_units_have_no_share(run_probe, cpus, quick):
    run = run_probe(GemmRate, dtypes=["bf16"], **quick)
    share = run.one("gemm_peak_share", cpus[0], dtype="bf16")
    assert share.value is None
    assert share.note


def test_nothing_to_multiply_is_skipped(run_probe, quick):
    from muster_node.probe import Skip

    with pytest.raises(Skip):
        run_probe(GemmRate, dtypes=["fp8"], **quick)


def test_a_slow_core_shows(run_probe, cpus, quick, monkeypatch):
    """Half the work thrown away on one core must halve its rate: the figure follows the hardware."""
    from muster_node.hardware.host.cpu_compute import CpuCompute

    honest = CpuCompute.matmul

    def slow(self, a, b, **nominal):
        if self.device.id == cpus[-1]:
            for _ in range(3):
                honest(self, a, b, **nominal)
        return honest(self, a, b, **nominal)

    monkeypatch.setattr(CpuCompute, "matmul", slow)
    run = run_probe(GemmRate, dtypes=["fp32"], **quick)
    assert run.one("gemm_rate", cpus[-1]).value < 0.5 * run.one("gemm_rate", cpus[0]).value


def test_units_by_device():
    assert GemmRate.metrics["gemm_rate"].unit_on("cpu3") == "GFLOPS"
    assert GemmRate.metrics["gemm_rate"].unit_on("node") == "GFLOPS"
    assert GemmRate.metrics["gemm_rate"].unit_on("gpu0") == "TFLOPS"
    assert gemm_rate._GIGA == {"cpu": 1e9, "gpu": 1e12}
