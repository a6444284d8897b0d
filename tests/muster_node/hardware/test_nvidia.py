"""NVIDIA GPUs through a stand-in for NVML: the board's facts, in our units. Refused calls: test_nvidia_refusals."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia import gpus as nvidia
from muster_node.hardware.nvidia.gpus import NvidiaGpus, open_nvidia
from muster_node.hardware.nvidia.sensors import OF_GPU
from muster_node.hardware.seam import Device, GpuUse
from muster_node.probe import Skip
from tests.muster_node.hardware.nvml_standin import FakeNvml, value_of


def test_a_healthy_board_is_reported_in_full() -> None:
    gpus = NvidiaGpus(FakeNvml(links=18))
    facts = list(gpus.inventory())
    assert [device.id for device in gpus.devices()] == [f"gpu{slot}" for slot in range(8)]
    expected = {
        "gpu_model": "NVIDIA H100 80GB HBM3",
        "inforom_valid": 1.0,
        "hbm_total": 81559 / 1024,
        "ecc_mode": 1.0,
        "row_remap_pending": 0.0,
        "row_remap_failed": 1.0,
        "pcie_width": 8.0,
        "pcie_width_max": 16.0,
        "nvlink_active": 17.0,
        "power_limit": 700.0,
        "mig_mode": 0.0,
        "persistence_mode": 1.0,
    }
    assert {name: value_of(facts, name) for name in expected} == expected
    assert value_of(facts, "gpu_count", "node") == 8
    assert value_of(facts, "cuda_version", "node") == "12.8"
    assert value_of(facts, "ecc_uncorrected", scope="aggregate") == 3
    counters = list(gpus.counters())
    assert value_of(counters, "throttle_time", reason="sw_power_cap") == 5.0
    assert value_of(counters, "throttle_time", reason="hw_thermal") == 0.25
    assert value_of(counters, "row_remap_corrected") == value_of(counters, "row_remap_uncorrected") == 0


@pytest.mark.parametrize(
    ("driver", "hw_thermal"),
    [
        ("570.124.06", None), ("575.57.08", 0.25), ("580.65.06", 0.25), ("580.76.05", None), ("580.82.07", 0.25),
        ("580.95.05", 0.25), ("580.126.09", 0.25), ("595.71.05", 0.25),
    ],
)  # fmt: skip
def test_fields_of_throttle_time_go_by_the_driver(driver: str, hw_thermal: float | None) -> None:
    """Their ids moved: the binding's would read power smoothing on another driver, as 0 s."""
    counters = list(NvidiaGpus(FakeNvml(nvmlSystemGetDriverVersion=driver)).counters())
    found = [f.value for f in counters if f.name == "throttle_time" and f.labels["reason"] == "hw_thermal"]
    assert found == ([hw_thermal] * 8)
    assert value_of(counters, "throttle_time", reason="sw_power_cap") == 5.0
    either = {f.value for f in counters if f.name == "throttle_time" and f.labels["reason"] == "thermal"}
    assert either == ({0.0} if hw_thermal is None else set())


def test_a_gpu_is_lost_when_any_call_reports_it_lost() -> None:
    nvml = FakeNvml()
    gpus = NvidiaGpus(nvml)
    assert not any(gpus.lost(gpu) for gpu in gpus.devices())
    nvml.refuse["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert all(gpus.lost(gpu) for gpu in gpus.devices())
    del nvml.refuse["nvmlDeviceGetPowerUsage"]
    assert all(gpus.lost(gpu) for gpu in gpus.devices()), "it is off the bus until a reset, whatever answers again"


def test_missing_permission_is_no_loss() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_NO_PERMISSION
    gpus = NvidiaGpus(nvml)
    assert not any(gpus.lost(gpu) for gpu in gpus.devices())


def test_sensors_are_reported_in_our_units() -> None:
    samples = {s.series: s for s in NvidiaGpus(FakeNvml()).telemetry() if s.device == "gpu3"}
    values = {series: sample.value for series, sample in samples.items() if sample.unit != "state"}
    assert values == {
        "temperature": 64.0,
        "hbm_temperature": 71.0,
        "thermal_margin": 25.0,
        "hbm_margin": 23.0,
        "power": 699.5,
        "power_instant": 699.5,
        "clock": 1635.0,
        "utilisation": 100.0,
        "fan": 40.0,
    }
    assert samples["throttle"].state == "sw_power_cap"


@pytest.mark.parametrize(
    ("reasons", "state"),
    [
        (0, "none"),
        (pynvml.nvmlClocksEventReasonGpuIdle, "none"),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "sw_power_cap"),
        (
            pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonSwThermalSlowdown,
            "sw_thermal+sw_power_cap",
        ),
        (
            pynvml.nvmlClocksEventReasonHwSlowdown
            | pynvml.nvmlClocksEventReasonHwThermalSlowdown
            | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
            "hw_thermal+hw_power_brake",
        ),
        (pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal"),
        (pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake"),
        (pynvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
    ],
)
def test_every_throttle_reason_is_reported_the_most_harmful_first(reasons: int, state: str) -> None:
    gpus = NvidiaGpus(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=reasons))
    assert {s.state for s in gpus.telemetry() if s.series == "throttle"} == {state}


def test_a_healthy_board_reports_everything_that_intake_needs() -> None:
    facts = list(NvidiaGpus(FakeNvml(links=18)).inventory())
    expected = {
        "pci_address": "00000000:21:00.0",
        "compute_mode": "default",
        "throttle_reason": "sw_power_cap",
        "row_remap_corrected": 0.0,
        "retired_pages_pending": 0.0,
        "power_limit_default": 700.0,
        "power_limit_min": 200.0,
        "power_limit_max": 700.0,
        "fabric_state": "completed",
        "fabric_healthy": 1.0,
    }
    assert {name: value_of(facts, name) for name in expected} == expected
    assert value_of(facts, "row_remap_banks", spare="max") == 2558
    assert value_of(facts, "retired_pages", cause="double_bit") == 0
    assert value_of(facts, "application_clock", domain="memory") == 1980
    assert value_of(facts, "application_clock_default", domain="memory") == 1755
    assert value_of(facts, "confidential_computing", "node") == 0.0
    assert value_of(facts, "nvlink_state", link="17") == 0.0
    assert value_of(facts, "nvlink_speed", link="0") == pytest.approx(26.562)
    assert value_of(facts, "nvlink_errors", kind="replay", link="3") == 7
    unsupported = [f for f in facts if f.labels.get("kind") == "effective" and f.device == "gpu0"]
    assert [(f.value, f.note, "link" in f.labels) for f in unsupported] == [(None, "not supported", False)]


@pytest.mark.parametrize(
    ("fabric", "state", "healthy"),
    [
        ((3, 0, 1), "completed", 1.0),
        ((3, 999, 2), "completed with NVML error 999", 0.0),
        ((2, 0, 0), "in progress", None),
        ((1, 0, 0), "not started", None),
        ((0, 0, 0), None, None),
    ],
)
def test_the_fabrics_state_is_reported_in_words(fabric: tuple[int, int, int], state: str | None, healthy: Any) -> None:
    facts = list(NvidiaGpus(FakeNvml(fabric=fabric)).inventory())
    assert value_of(facts, "fabric_state") == state
    assert value_of(facts, "fabric_healthy") == healthy
    if state is None:
        assert {f.note for f in facts if f.name == "fabric_state"} == {"not supported"}


@pytest.mark.parametrize(
    ("version", "mask", "healthy"),
    [
        (2, 0, None),
        (2, 0b10 | 0b10 << 4 | 1 << 8, 1.0),
        (2, 0b01 | 0b10 << 4 | 1 << 8, 0.0),  # degraded bandwidth
        (2, 0b10 | 0b01 << 4 | 1 << 8, 0.0),  # route unhealthy
        (2, 0b10 | 0b10 << 4 | 5 << 8, 0.0),  # too few NVLinks
        (1, 0, None),
    ],
)
def test_drivers_before_580_report_their_fabric_state(version: int, mask: int, healthy: float | None) -> None:
    nvml = FakeNvml(fabric=(2, 0, 1), fabric_health_mask=mask)
    nvml.fabric_version = version
    facts = list(NvidiaGpus(nvml).inventory())
    assert value_of(facts, "fabric_state") == "in progress"
    assert value_of(facts, "fabric_healthy") == healthy


@pytest.mark.parametrize("exceeded", [0, 1])
def test_the_sram_error_threshold_is_read(exceeded: int) -> None:
    facts = list(NvidiaGpus(FakeNvml(sram_threshold=exceeded)).inventory())
    assert value_of(facts, "sram_threshold_exceeded") == float(exceeded)


@pytest.mark.parametrize("answered", [3, 5, 40])
def test_a_gpu_lost_during_the_inventory_is_reported_as_lost(answered: int) -> None:
    nvml = FakeNvml(count=2)
    nvml.lost_after[1] = answered
    facts = list(NvidiaGpus(nvml).inventory())
    lost = {fact.device: fact.value for fact in facts if fact.name == "gpu_lost"}
    assert lost == {"gpu5": 1.0, "gpu7": 0.0}


def test_gpu_processes_that_may_not_be_listed_count_as_use() -> None:
    nvml = FakeNvml(count=1)
    nvml.refuse["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    (evidence,) = NvidiaGpus(nvml).processes().unknown
    assert "gpu0" in evidence
    nvml.refuse["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert NvidiaGpus(nvml).processes() == GpuUse()


def test_of_a_driver_that_does_not_start_it_is_not_known_who_uses_gpus_unless_it_is_not_loaded() -> None:
    for error, unknown in ((pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, 1), (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, 0)):
        nvml = FakeNvml(count=1)
        nvml.refuse["nvmlInit"] = error
        gpus = open_nvidia(nvml)
        assert gpus is not None
        assert len(gpus.processes().unknown) == unknown


def test_a_gpu_without_a_handle_is_named_and_not_counted() -> None:
    nvml = FakeNvml()
    nvml.refuse_gpu[2] = pynvml.NVML_ERROR_GPU_IS_LOST
    gpus = NvidiaGpus(nvml)
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert count.value == 7
    assert "index 2" in count.note
    assert [device.index for device in gpus.devices()] == [0, 1, 2, 3, 5, 6, 7]


def test_a_gpu_that_is_missing_leaves_a_gap() -> None:
    nvml = FakeNvml(count=7)
    assert [device.index for device in NvidiaGpus(nvml).devices()] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("ids", [[0, 1], [3, 3], [None, None]])
def test_boards_without_usable_module_ids_go_by_index(ids: list[Any]) -> None:
    nvml = FakeNvml(count=2)
    nvml.module_ids = ids
    assert [device.index for device in NvidiaGpus(nvml).devices()] == [0, 1]


def test_the_only_gpu_without_module_id_takes_the_free_slot() -> None:
    nvml = FakeNvml()
    nvml.module_ids = [8, 6, None, 7, 4, 2, 1, 3]  # type: ignore[list-item]
    gpus = NvidiaGpus(nvml)
    assert [device.index for device in gpus.devices()] == list(range(8))
    assert [gpu.device.index for gpu in gpus._gpus if gpu.order == 2] == [4]


def test_a_corrupt_inforom_is_no_refusal() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlDeviceValidateInforom"] = pynvml.NVML_ERROR_CORRUPTED_INFOROM
    assert value_of(list(NvidiaGpus(nvml).inventory()), "inforom_valid") == 0.0


def test_a_field_may_refuse_by_itself() -> None:
    nvml = FakeNvml()
    nvml.refuse[f"field {pynvml.NVML_FI_DEV_MEMORY_TEMP}"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert "hbm_temperature" not in {s.series for s in NvidiaGpus(nvml).telemetry()}


SLOWDOWN_FIELD = pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT
MEMORY_FIELD = pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT


def _margins(nvml: FakeNvml) -> dict[str, float | None]:
    """Margins of the core and of memory; None where none is reported."""
    samples = {s.series: s.value for s in NvidiaGpus(nvml).telemetry() if s.device == "gpu0"}
    return {series: samples.get(series) for series in ("thermal_margin", "hbm_margin")}


@pytest.mark.parametrize(
    ("margin", "core", "memory"), [(23, 25.0, 29.0), (1, 3.0, 29.0), (0, 36.0, 29.0), (-4, 36.0, 29.0)]
)
def test_margins_come_from_tlimit_and_where_that_is_garbage_or_of_memory_from_thresholds(
    margin: int, core: float, memory: float
) -> None:
    thresholds = {1: 100, 2: 100}
    nvml = FakeNvml(
        nvmlDeviceGetMarginTemperature=margin, nvmlDeviceGetTemperatureThreshold=lambda handle, kind: thresholds[kind]
    )
    assert _margins(nvml) == {"thermal_margin": core, "hbm_margin": memory}


@pytest.mark.parametrize(
    ("unsupported", "core", "memory"),
    [
        ([], 25.0, 23.0),
        (["nvmlDeviceGetTemperatureThreshold"], 25.0, 23.0),
        (["nvmlDeviceGetMarginTemperature"], 25.0, 23.0),
        ([f"field {MEMORY_FIELD}"], 25.0, 23.0),
        ([f"field {MEMORY_FIELD}", "nvmlDeviceGetTemperatureThreshold"], 25.0, None),
        ([f"field {SLOWDOWN_FIELD}", "nvmlDeviceGetTemperatureThreshold"], None, 23.0),
        (["nvmlDeviceGetMarginTemperature", "nvmlDeviceGetTemperatureThreshold"], None, None),
    ],
)
def test_an_unsupported_margin_is_missing_and_never_zero(
    unsupported: list[str], core: float | None, memory: float | None
) -> None:
    nvml = FakeNvml()
    nvml.refuse = dict.fromkeys(unsupported, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert _margins(nvml) == {"thermal_margin": core, "hbm_margin": memory}


@pytest.mark.parametrize(("core", "hbm", "spared", "left"), [(83, 60, 4, 35.0), (28, 25, 59, 70.0), (60, 94, 27, 1.0)])
def test_the_margin_of_memory_is_by_its_own_temperature(core: int, hbm: int, spared: int, left: float) -> None:
    nvml = FakeNvml(
        nvmlDeviceGetMarginTemperature=spared, nvmlDeviceGetTemperature=core,
        nvmlDeviceGetTemperatureThreshold=lambda handle, kind: {1: 89, 2: 95}[kind],
    )  # fmt: skip
    nvml.fields[pynvml.NVML_FI_DEV_MEMORY_TEMP] = (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, hbm)
    assert _margins(nvml) == {"thermal_margin": spared + 2.0, "hbm_margin": left}


def test_the_margin_of_a_memory_without_a_threshold_is_noted_as_the_gpus() -> None:
    nvml = FakeNvml(count=1, nvmlDeviceGetTemperatureThreshold=0)
    (sample,) = [each for each in NvidiaGpus(nvml).telemetry() if each.series == "hbm_margin"]
    assert (sample.value, sample.note) == (23.0, OF_GPU)


def test_processes_are_sentences_and_leave_this_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [SimpleNamespace(pid=77), SimpleNamespace(pid=4321)]
    monkeypatch.setattr("os.getpid", lambda: 4321)
    gpus = NvidiaGpus(FakeNvml(count=1, nvmlDeviceGetComputeRunningProcesses=running))
    (process,) = gpus.processes().processes
    assert "77" in process
    assert "gpu0" in process


def test_no_driver_library_means_no_backend_and_a_dead_driver_is_reported() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert open_nvidia(nvml) is None
    nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    gpus = open_nvidia(nvml)
    assert gpus is not None
    assert gpus.devices() == []
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert count.value is None
    assert "Driver Not Loaded" in count.note
    assert list(gpus.counters()) == []
    assert list(gpus.telemetry()) == []


def test_without_pynvml_there_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvidia() is None


def test_a_device_that_does_not_answer_cannot_compute() -> None:
    with pytest.raises(Skip):
        NvidiaGpus(FakeNvml()).compute(Device("gpu9", "gpu", 9))


@pytest.mark.parametrize(
    ("log", "count", "note"),
    [
        (["NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", "usb 1-1: new device"], 1.0, ""),
        ([], 0.0, ""),
        (None, None, "the kernel log cannot be read: no privilege"),
    ],
)
def test_the_host_counts_xids_beside_its_gpus(
    log: list[str] | None, count: float | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostHardware, "kernel_log", lambda self: log)
    host = HostHardware(accelerators=NvidiaGpus(FakeNvml(count=1)))
    for facts in (list(host.inventory()), list(host.counters())):
        xids = next(fact for fact in facts if fact.name == "xid_count")
        assert (xids.device, xids.value, xids.note) == ("node", count, note)
    assert [device.id for device in host.devices("gpu")] == ["gpu0"]
    assert [fact for fact in host.inventory() if fact.name == "gpu_model" and fact.device == "gpu0"]


def test_a_gpus_cpus_are_those_of_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(nvidia, "CudaCompute", lambda *arguments: built.append(arguments))
    queried = FakeNvml(nvmlDeviceGetCpuAffinity=[0b101, 0b10])
    for board in (queried, FakeNvml()):
        NvidiaGpus(board).compute(Device("gpu2", "gpu", 2))
    *_, near = built[0]
    assert near() == {0, 2, 65}
    *_, untold = built[1]
    assert untold() == frozenset()


def test_a_gpus_cpus_are_found_beyond_those_that_are_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML fills as many words as it is given; of 256 CPUs, 192 are offline and those of this GPU are the last."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    masks = [0, 0, 0, 1 << 63]
    built: list[Any] = []
    monkeypatch.setattr(nvidia, "CudaCompute", lambda *arguments: built.append(arguments))
    NvidiaGpus(FakeNvml(nvmlDeviceGetCpuAffinity=lambda handle, words: masks[:words])).compute(Device("gpu2", "gpu", 2))
    assert built[0][-1]() == {255}
