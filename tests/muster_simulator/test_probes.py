"""The unchanged probes on a simulated machine: every defect that they cover shows, on its GPU alone."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.sku_files.programme import needs
from muster_criteria.sku_files.skus import load_sku
from muster_node.agent.gpu_watch import PROBE, GpuWatch
from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Probe, Skip, resolve_params
from muster_node.probes.disk import Disk
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.probes.gemm_rate import GemmRate
from muster_node.probes.gpu_burn import GpuBurn
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.probes.thermal_soak import ThermalSoak
from muster_node.workloads.under_load import counters
from muster_node.workloads.under_load.gpus import DELTAS
from muster_simulator import create_machine, open_simulated
from tests.muster_simulator.conftest import Build

pytestmark = [pytest.mark.needs_torch, pytest.mark.early(17)]

Values = dict[tuple[str, str], dict[str, Any]]
FAULTY = (
    {"kind": "sdc", "gpu": 1, "rate": 1.0},
    {"kind": "throttle", "gpu": 3},
    {"kind": "missing_gpu", "gpu": 4},
    {"kind": "slow_gemm", "gpu": 6},
)


def measure(hardware: Hardware, probe: type[Probe], scratch: Path, **params: Any) -> Values:
    """(metric, first label's value or "") -> device -> value, all by running the probe as the agent does."""
    values: Values = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        assert metric in probe.metrics
        variant = next(iter((fields.get("labels") or {}).values()), "")
        values.setdefault((metric, variant), {})[device] = fields.get("value")

    probe().run(Context(hardware, resolve_params(probe, params), 11, scratch, emit, lambda sentence: None))
    return values


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Hardware]:
    create_machine(tmp_path / "node", seed=4, faults=FAULTY)
    return open_simulated(tmp_path / "node")


@pytest.fixture
def healthy(tmp_path: Path) -> Hardware:
    create_machine(tmp_path / "node", seed=4)
    return open_simulated(tmp_path / "node")


def test_exact_gemm_names_the_gpu_that_corrupts(faulty: Hardware, tmp_path: Path) -> None:
    values = measure(faulty, ExactGemm, tmp_path, dtypes=["bf16", "fp64", "fp8"], rounds=1)
    for dtype in ("bf16", "fp64", "fp8"):
        mismatches = values["gemm_mismatches", dtype]
        assert set(mismatches) == {"gpu0", "gpu1", "gpu2", "gpu3", "gpu5", "gpu6", "gpu7"}
        assert [device for device, count in mismatches.items() if count] == ["gpu1"]
        assert mismatches["gpu1"] % 4 == 0
        assert set(values["gemm_checked_fraction", dtype].values()) == {100.0}


def test_exact_gemm_clears_a_healthy_node(healthy: Hardware, tmp_path: Path) -> None:
    values = measure(healthy, ExactGemm, tmp_path, rounds=2)
    counts = [count for (metric, _), found in values.items() for count in found.values() if metric == "gemm_mismatches"]
    assert len(counts) == 7 * 8
    assert set(counts) == {0}


def test_gemm_rate_names_the_gpu_with_lanes_off(faulty: Hardware, tmp_path: Path) -> None:
    values = measure(faulty, GemmRate, tmp_path, dtypes=["bf16"], seconds=0.2, warmup_s=0.02)
    per_clock = values["gemm_rate_per_clock", "bf16"]
    siblings = statistics.median(per_clock.values())
    off = {device: value / siblings for device, value in per_clock.items() if abs(value / siblings - 1) > 0.02}
    assert off == {"gpu6": pytest.approx(0.80, abs=0.01)}


def test_thermal_soak_names_the_gpu_that_throttles(faulty: Hardware, tmp_path: Path) -> None:
    values = measure(faulty, ThermalSoak, tmp_path, seconds=400.0)
    hot = {fact.device: fact.value or 0.0 for fact in faulty.counters() if fact.labels == {"reason": "hw_thermal"}}
    assert [device for device, seconds in hot.items() if seconds] == ["gpu3"]
    assert hot["gpu3"] > 30
    resistance = dict(values["thermal_resistance", ""])
    assert resistance.pop("gpu3") > 1.3 * max(resistance.values())
    assert 20 < values["inlet_temperature", ""]["node"] < 28
    margin = dict(values["thermal_margin", ""])
    assert margin.pop("gpu3") < 5 < 15 < min(margin.values())
    assert set(values["temperature_max", ""]) == set(values["hbm_temperature_max", ""]) == set(hot)


@pytest.mark.parametrize("faults", [[], [{"kind": "throttle", "gpu": 3, "factor": 1.6}]])
def test_a_loose_heat_sink_shows_without_an_inlet_sensor(build: Build, tmp_path: Path, faults: list[Any]) -> None:
    hardware = build(4, *faults)
    hardware.machine = dataclasses.replace(hardware.machine, reads_inlet=False)
    values = measure(hardware, ThermalSoak, tmp_path, seconds=500.0, settle=0.5, cooldown_s=120.0)
    resistance = values["thermal_resistance", "cool-down"]
    (limit,) = [each for each in load_sku("h100-sxm-8").all_limits if each.metric == "thermal_resistance"]
    worst = limit.value * statistics.median(resistance.values())
    assert [device for device, value in resistance.items() if value > worst] == ["gpu3"] * len(faults)


def test_thermal_soak_reports_how_each_gpu_settles_and_cools(build: Build, tmp_path: Path) -> None:
    """Against the machine as built: its time constant, and each memory's offset from its core."""
    healthy = build(4)
    values = measure(healthy, ThermalSoak, tmp_path, seconds=500.0, settle=0.6, cooldown_s=150.0)
    model, built = healthy.machine.model, {f"gpu{gpu.slot}": gpu for gpu in healthy.machine.gpus}
    # Two sensors that report whole degrees: half a degree each.
    offsets = {device: pytest.approx(gpu.hbm_offset_c, abs=1.0) for device, gpu in built.items()}
    assert values["hbm_gradient", ""] == offsets
    constants, settling = values["cooldown_constant", ""], values["time_to_steady", ""]
    assert constants == dict.fromkeys(built, pytest.approx(model.core_seconds, rel=0.25))
    assert all(2 * model.core_seconds < seconds < 300 for seconds in settling.values())
    hottest = values["hbm_temperature_max", ""]
    assert values["hbm_margin", ""] == {device: model.hbm_max_c - at for device, at in hottest.items()}


def test_gpu_burn_of_a_healthy_node_is_flat(healthy: Hardware, tmp_path: Path) -> None:
    values = measure(healthy, GpuBurn, tmp_path, seconds=300.0)
    assert len(values["burn_rate", ""]) == 8
    assert all(abs(drop) < 5 for drop in values["burn_rate_drop", ""].values())
    assert all(600 < rate < 794.5 for rate in values["burn_rate", ""].values())
    still = {*counters.HOST_METRICS, "xid_delta"}
    assert {metric: set(values[metric, ""].values()) for metric in still} == {metric: {0.0} for metric in still}


Watched = dict[tuple[str, str], dict[str, float | str | None]]


def watched(hardware: Hardware, load: Callable[[], object]) -> tuple[str, Watched]:
    """Status of the agent's watch beside a load, and (metric, label) -> device -> value or text."""
    watch = GpuWatch(hardware, dict)
    watch.start()
    load()
    status, _, found = watch.finish()
    values: Watched = {}
    for each in found:
        label = next(iter(each.labels.values()), "")
        values.setdefault((each.metric, label), {})[each.device] = each.text if each.value is None else each.value
    return status, values


def test_the_watch_over_a_healthy_node_has_all_that_is_required_and_finds_nothing(
    healthy: Hardware, tmp_path: Path
) -> None:
    status, values = watched(healthy, lambda: measure(healthy, GpuBurn, tmp_path, seconds=300.0))
    assert status == "completed"
    for metric in (*DELTAS, "row_remap_pending", "settings_changed", "counters_reset", "foreign_processes", "gpu_lost"):
        assert set(values[metric, ""].values()) == {0.0}, metric
    for reason in ("hw_thermal", "sw_thermal", "hw_power_brake"):
        assert set(values["throttle_time", reason].values()) == {0.0}
    assert min(map(float, values["throttle_time", "sw_power_cap"].values())) > 0  # type: ignore[arg-type]
    assert set(values["nvlink_active", ""].values()) == {18.0}
    assert set(values["recovery_action", ""].values()) == {"none"}
    required = [need for need in needs(load_sku("h100-sxm-8"), "burn_in", "demo") if need.probe == PROBE]
    assert {need.requirement.metric for need in required} <= {metric for metric, _ in values}


def test_the_watch_counts_what_grows_under_load(tmp_path: Path) -> None:
    create_machine(tmp_path / "node", faults=[{"kind": "ecc", "gpu": 2, "per_hour": 120.0}])
    hardware = open_simulated(tmp_path / "node")
    burnt: dict[str, Any] = {}
    _, values = watched(hardware, lambda: burnt.update(values=measure(hardware, GpuBurn, tmp_path, seconds=150.0)))
    growing = {device: count for device, count in values["ecc_uncorrected_delta", ""].items() if count}
    assert list(growing) == ["gpu2"]
    assert burnt["values"]["xid_delta", ""]["node"] == growing["gpu2"]
    assert values["row_remap_uncorrected_delta", ""]["gpu2"] == growing["gpu2"]
    assert values["row_remap_pending", ""]["gpu2"] == 1.0


def test_gpu_burn_needs_a_gpu(healthy: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "devices", lambda kind: [])
    with pytest.raises(Skip):
        measure(healthy, GpuBurn, tmp_path)


def test_gpu_burn_needs_the_format(healthy: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(healthy.compute(healthy.devices("gpu")[0])), "supports", lambda self, dtype: False)
    with pytest.raises(Skip):
        measure(healthy, GpuBurn, tmp_path, seconds=5.0)


def test_a_gpu_lost_under_load_costs_its_own_figures_only(
    healthy: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(healthy.compute(healthy.devices("gpu")[0]))
    real = kind.timer
    notes: dict[str, str] = {}
    blocks = {"gpu5": 0}

    def falls_off(self: Any) -> Any:
        """After the product that sizes the blocks, and one block: how long that takes does not matter."""
        if self.device.id == "gpu5":
            blocks["gpu5"] += 1
            if blocks["gpu5"] > 2:
                raise RuntimeError("CUDA error: GPU is lost\nCompile with TORCH_USE_CUDA_DSA")
        return real(self)

    monkeypatch.setattr(kind, "timer", falls_off)
    values: Values = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        values.setdefault((metric, ""), {})[device] = fields.get("value")
        if metric == "burn_rate":
            notes[device] = fields.get("note", "")

    params = resolve_params(GpuBurn, {"seconds": 300.0})
    GpuBurn().run(Context(healthy, params, 1, tmp_path, emit, lambda sentence: None))
    lost = {metric: found["gpu5"] for (metric, _), found in values.items() if metric.startswith("burn")}
    assert lost == {"burn_rate": None, "burn_rate_drop": None, "burn_rate_per_clock": None}
    note = notes.pop("gpu5")
    assert note.startswith("lost under load after ")
    assert "GPU is lost" in note
    assert note.endswith(" TFLOPS until then")
    assert set(notes.values()) == {""}
    assert all(rate for device, rate in values["burn_rate", ""].items() if device != "gpu5")


def test_memory_probes_serve_gpus(tmp_path: Path) -> None:
    create_machine(tmp_path / "node", faults=[{"kind": "hbm_slow", "gpu": 7}])
    hardware = open_simulated(tmp_path / "node")
    tested = measure(hardware, MemoryPattern, tmp_path)
    assert len(tested["memory_mismatches", "random"]) == 8
    assert set(tested["memory_mismatches", "random"].values()) == {0}
    for op in ("copy", "triad"):
        rates = measure(hardware, MemoryBandwidth, tmp_path, seconds=0.05)["memory_bandwidth", op]
        assert rates.pop("memory") is None, "what is simulated has no host"
        assert rates["gpu7"] / statistics.median(rates.values()) == pytest.approx(0.80, abs=0.03)
        assert all(2700 < rate < 2900 for device, rate in rates.items() if device != "gpu7")


def test_a_simulated_machine_has_no_disk_and_says_so(tmp_path: Path) -> None:
    create_machine(tmp_path / "node")
    measured = measure(open_simulated(tmp_path / "node"), Disk, tmp_path)
    assert {(metric, *devices.items()) for (metric, _), devices in measured.items()} == {
        (metric, ("disk:scratch", None)) for metric in Disk.metrics
    }
