"""NVIDIA GPUs through a stand-in for NVML: every call may refuse, in every way, and nothing refused becomes a zero."""

from __future__ import annotations

import inspect
import os
import queue
import re
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_node.hardware import nvidia, nvidia_links, nvml
from muster_node.hardware.host import HostHardware
from muster_node.hardware.nvidia import NvidiaGpus, open_nvidia
from muster_node.hardware.seam import Device, Fact
from muster_node.probe import Skip

FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 71),
    pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: (pynvml.NVML_VALUE_TYPE_SIGNED_INT, -2),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 5 * 10**9),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 25 * 10**7),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
    pynvml.NVML_FI_DEV_NVLINK_GET_SPEED: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 26562),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 7),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0),
}
NVLINK_5_ONLY = (
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
)


class FakeNvml:
    """NVML as a healthy 8-GPU board answers it; ``refuse`` maps a function's name to the error that it raises.

    Handles are NVML indices. Constants and error classes are the real binding's.
    """

    def __init__(self, count: int = 8, links: int = 2, **answers: Any) -> None:
        self.count = count
        self.links = links
        self.refuse: dict[str, int] = {}
        self.refuse_gpu: dict[int, int] = {}
        self.hang: dict[str, int | None] = {}
        self.module_ids = [8, 6, 5, 7, 4, 2, 1, 3][:count]
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetSerial": "1650000000001",
            "nvmlDeviceGetUUID": "GPU-0000",
            "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
            "nvmlDeviceValidateInforom": None,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=81559 * 2**20),
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTotalEccErrors": 3,
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 1),
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPcieReplayCounter": 4,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:1B:00.0"),
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetPowerManagementLimitConstraints": [200000, 700000],
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetRetiredPages": [],
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
            "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(max=2558, high=2, partial=0, low=0, none=0),
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetTemperature": 64,
            "nvmlDeviceGetTemperatureThreshold": 89,
            "nvmlDeviceGetMarginTemperature": 23,
            "nvmlDeviceGetClockInfo": 1635,
            "nvmlDeviceGetPowerUsage": 699500,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=40),
            "nvmlDeviceGetFanSpeed": 40,
            "nvmlDeviceGetCpuAffinity": [],
            "nvmlDeviceGetCurrentClocksEventReasons": pynvml.nvmlClocksEventReasonSwPowerCap,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith("nvmlClocks"):
            return getattr(pynvml, name)

        def call(*arguments: Any) -> Any:
            if name in self.hang and self.hang[name] in (None, *arguments[:1]):
                raise _Hangs
            if name in self.refuse:
                raise pynvml.NVMLError(self.refuse[name])
            if arguments and name.startswith("nvmlDevice") and arguments[0] in self.refuse_gpu:
                raise pynvml.NVMLError(self.refuse_gpu[arguments[0]])
            return self._answer(name, *arguments)

        return call

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlDeviceGetCount":
            return self.count
        if name == "nvmlDeviceGetHandleByIndex":
            return arguments[0]
        if name == "nvmlDeviceGetModuleId":
            return self.module_ids[arguments[0]]
        if name == "nvmlDeviceGetNvLinkState":
            if arguments[1] >= self.links:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return int(arguments[1] != 17)
        if name == "nvmlDeviceGetFieldValues":
            return [self._field(identifier) for identifier in arguments[1]]
        if name == "nvmlDeviceGetGpuFabricInfoV":
            info = arguments[1]._obj
            info.state, info.status, info.healthSummary = self.answers.get("fabric", (3, 0, 1))
            return pynvml.NVML_SUCCESS
        answer = self.answers[name]
        return answer(*arguments) if callable(answer) else answer

    def _field(self, wanted: int | tuple[int, int]) -> Any:
        identifier = wanted[0] if isinstance(wanted, tuple) else wanted
        if identifier in NVLINK_5_ONLY:
            return pynvml.c_nvmlFieldValue_t(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED)
        kind, value = FIELDS[identifier]
        field = pynvml.c_nvmlFieldValue_t(valueType=kind, nvmlReturn=self.refuse.get(f"field {identifier}", 0))
        member = {1: "uiVal", 3: "ullVal", 5: "siVal"}[kind]
        setattr(field.value, member, value)
        return field


CALLS = sorted(
    {
        call
        for module in (nvidia, nvidia_links, nvml)
        for call in re.findall(r'"(nvml(?:Device|System)[A-Z]\w+)"', inspect.getsource(module))
    }
    | {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"}
)
ERRORS = {
    "NotSupported": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "GpuIsLost": pynvml.NVML_ERROR_GPU_IS_LOST,
    "Unknown": pynvml.NVML_ERROR_UNKNOWN,
}


def _facts(gpus: NvidiaGpus) -> list[Fact]:
    return [*gpus.inventory(), *gpus.counters()]


def _value(facts: list[Fact], name: str, device: str = "gpu0", **labels: str) -> Any:
    found = [f for f in facts if (f.name, f.device) == (name, device) and labels.items() <= f.labels.items()]
    assert found, name
    return found[0].text if found[0].value is None else found[0].value


def test_a_healthy_board_is_told_in_full() -> None:
    gpus = NvidiaGpus(FakeNvml(links=18))
    facts = list(gpus.inventory())
    assert [device.id for device in gpus.devices()] == [f"gpu{slot}" for slot in range(8)]
    told = {
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
    assert {name: _value(facts, name) for name in told} == told
    assert _value(facts, "gpu_count", "node") == 8
    assert _value(facts, "cuda_version", "node") == "12.8"
    assert _value(facts, "ecc_uncorrected", scope="aggregate") == 3
    counters = list(gpus.counters())
    assert _value(counters, "throttle_time", reason="sw_power_cap") == 5.0
    assert _value(counters, "throttle_time", reason="hw_thermal") == 0.25


def test_sensors_are_told_in_our_units() -> None:
    samples = {s.series: s for s in NvidiaGpus(FakeNvml()).telemetry() if s.device == "gpu3"}
    values = {series: sample.value for series, sample in samples.items() if sample.unit != "state"}
    assert values == {
        "temperature": 64.0,
        "hbm_temperature": 71.0,
        "thermal_margin": 25.0,
        "power": 699.5,
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
        (pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonSwThermalSlowdown, "sw_thermal"),
        (pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw_thermal"),
        (pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw_power_brake"),
        (pynvml.nvmlClocksEventReasonHwSlowdown, "hw_slowdown"),
    ],
)
def test_the_most_harmful_throttle_reason_is_told(reasons: int, state: str) -> None:
    gpus = NvidiaGpus(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=reasons))
    assert {s.state for s in gpus.telemetry() if s.series == "throttle"} == {state}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_call_is_told_and_costs_nothing_else(call: str, error: str) -> None:
    whole, broken = FakeNvml(), FakeNvml()
    broken.refuse[call] = ERRORS[error]
    gpus, healthy = NvidiaGpus(broken), NvidiaGpus(whole)
    assert gpus.processes() == ()
    told, expected = _facts(gpus), _facts(healthy)
    if call in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert gpus.devices() == []
        assert list(gpus.telemetry()) == []
        return
    if call in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues"):  # a link that tells nothing is no link
        assert all(f.value is None and f.note for f in told if f.name == "nvlink_errors")
        told, expected = _without_links(told), _without_links(expected)
    assert [(f.name, f.device, f.labels) for f in told] == [(f.name, f.device, f.labels) for f in expected]
    for got, whole_fact in zip(told, expected, strict=True):
        if (got.value, got.text) == (whole_fact.value, whole_fact.text):
            continue
        assert got.value is None
        assert got.text is None
        assert got.note == ("not supported" if error == "NotSupported" else got.note)
        assert got.note
    readings = {(s.series, s.device): (s.value, s.state) for s in gpus.telemetry()}
    assert 0.0 not in {value for value, _ in readings.values()}
    lost = {key for key in {(s.series, s.device) for s in healthy.telemetry()} if key not in readings}
    assert len({series for series, _ in lost}) <= 2


def _on_this_board(fact: Fact) -> bool:
    return fact.labels.get("kind") not in ("effective", "recovery_failed")  # counters of NVLink 5


def _without_links(facts: list[Fact]) -> list[Fact]:
    return [f for f in facts if f.name not in ("nvlink_state", "nvlink_speed", "nvlink_errors")]


HANG_S = 1.0
"""Long enough for any call here on a busy machine, and short enough to wait for."""


class _Hangs(Exception):
    """Raised by the stand-in where the real call would not return."""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_hangs_costs_its_own_gpu_only(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML index 5 sits in slot 1; a system-wide call hangs as a whole. That hanging calls are left: see below."""
    monkeypatch.setattr(nvml._Worker, "run", _run_or_hang)
    fake, healthy = FakeNvml(), _keyed(_facts(NvidiaGpus(FakeNvml())))
    fake.hang[call] = None if call in ("nvmlDeviceGetCount",) or "System" in call else 5
    gpus = NvidiaGpus(fake)
    told, samples = _keyed(_facts(gpus)), list(gpus.telemetry())
    assert gpus.processes() == ()
    assert all(fact.note for fact in told.values() if fact.value is None and fact.text is None)
    lost = {fact.device for fact in told.values() if "did not answer" in fact.note}
    if call == "nvmlDeviceGetCount":
        assert (gpus.devices(), samples) == ([], [])
    elif call == "nvmlDeviceGetHandleByIndex":
        assert [device.index for device in gpus.devices()] == [0, 2, 3, 4, 5, 6, 7]
    elif call == "nvmlDeviceGetModuleId":  # then nobody's slot can be told, and the index has to do
        assert [device.index for device in gpus.devices()] == list(range(8))
    elif call.startswith("nvmlSystem"):
        assert lost == {"node"}
        assert {key for key in healthy if told[key] != healthy[key]} == {
            key for key in healthy if told[key].device == "node" and "did not answer" in told[key].note
        }
    else:
        assert lost <= {"gpu1"}
        assert {key: told[key] for key in healthy if key[1] != "gpu1"} == {
            key: fact for key, fact in healthy.items() if key[1] != "gpu1"
        }
        assert {sample.device for sample in samples} >= {f"gpu{slot}" for slot in range(8) if slot != 1}


def _run_or_hang(worker: Any, call: Any, limit_s: float) -> Any:
    try:
        return call()
    except _Hangs:
        raise queue.Empty from None


def _keyed(facts: list[Fact]) -> dict[Any, Fact]:
    return {(fact.name, fact.device, tuple(fact.labels.items())): fact for fact in facts}


def test_a_call_that_hangs_is_left_behind_after_its_time() -> None:
    fake = FakeNvml(count=2)
    gpus = NvidiaGpus(fake, limit_s=HANG_S)
    released = threading.Event()
    fake.answers["nvmlDeviceGetEccMode"] = lambda handle: released.wait(60) if handle == 0 else [1, 1]
    start = time.monotonic()
    facts = {(fact.name, fact.device): fact for fact in gpus.inventory()}
    assert HANG_S <= time.monotonic() - start < 30
    released.set()
    assert facts["ecc_mode", "gpu7"].note == "NVML: nvmlDeviceGetEccMode did not answer within 1 s"
    assert facts["mig_mode", "gpu7"].note.startswith("NVML: not asked, since nvmlDeviceGetEccMode did not answer")
    assert facts["ecc_mode", "gpu5"].value == 1.0


def test_when_two_gpus_hang_nobody_is_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml._Worker, "run", _run_or_hang)
    fake = FakeNvml()
    fake.hang["nvmlDeviceGetEccMode"] = None
    facts = list(NvidiaGpus(fake).inventory())
    last = [fact for fact in facts if fact.device == "gpu7"]
    assert last
    assert all(fact.value is None and fact.text is None and fact.note.startswith("NVML: not asked") for fact in last)


def test_a_driver_that_hangs_from_the_start_is_told() -> None:
    released = threading.Event()
    gpus = open_nvidia(FakeNvml(nvmlInit=lambda: released.wait(60)), limit_s=HANG_S)
    released.set()
    assert gpus is not None
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert (count.value, count.note) == (None, "NVML does not start: nvmlInit did not answer within 1 s")


def test_a_forked_process_asks_by_itself() -> None:
    """Probes fork; the thread that makes the calls stays with the parent."""
    gpus = NvidiaGpus(FakeNvml(count=1), limit_s=HANG_S)
    child = os.fork()
    if child == 0:
        told = {fact.name: fact.value for fact in gpus.inventory()}
        os._exit(0 if told["ecc_mode"] == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_everything_of_intake_is_told_of_a_healthy_board() -> None:
    facts = list(NvidiaGpus(FakeNvml(links=18)).inventory())
    told = {
        "pci_address": "00000000:1B:00.0",
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
    assert {name: _value(facts, name) for name in told} == told
    assert _value(facts, "row_remap_banks", spare="max") == 2558
    assert _value(facts, "retired_pages", cause="double_bit") == 0
    assert _value(facts, "application_clock", domain="memory") == 1980
    assert _value(facts, "nvlink_state", link="17") == 0.0
    assert _value(facts, "nvlink_speed", link="0") == pytest.approx(26.562)
    assert _value(facts, "nvlink_errors", kind="replay", link="3") == 7
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
def test_the_fabrics_state_is_told_in_words(fabric: tuple[int, int, int], state: str | None, healthy: Any) -> None:
    facts = list(NvidiaGpus(FakeNvml(fabric=fabric)).inventory())
    assert _value(facts, "fabric_state") == state
    assert _value(facts, "fabric_healthy") == healthy
    if state is None:
        assert {f.note for f in facts if f.name == "fabric_state"} == {"not supported"}


@pytest.mark.parametrize("error", ERRORS)
def test_a_lost_gpu_costs_its_own_figures_only(error: str) -> None:
    nvml = FakeNvml()
    gpus = NvidiaGpus(nvml)
    nvml.refuse_gpu[5] = ERRORS[error]  # NVML index 5 sits in slot 1
    facts = _facts(gpus)
    assert all(f.value is None and f.text is None and f.note for f in facts if f.device == "gpu1")
    assert all(f.value is not None or f.text is not None for f in facts if f.device != "gpu1" and _on_this_board(f))
    assert {s.device for s in gpus.telemetry()} == {f"gpu{slot}" for slot in range(8) if slot != 1}


def test_a_gpu_that_gives_no_handle_is_not_counted_and_named() -> None:
    nvml = FakeNvml()
    nvml.refuse_gpu[2] = pynvml.NVML_ERROR_GPU_IS_LOST
    gpus = NvidiaGpus(nvml)
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert count.value == 7
    assert count.note == "NVML index 2: NVML: GPU is lost"
    assert [device.index for device in gpus.devices()] == [0, 1, 2, 3, 5, 6, 7]


def test_a_gpu_that_is_missing_leaves_a_gap() -> None:
    nvml = FakeNvml(count=7)
    assert [device.index for device in NvidiaGpus(nvml).devices()] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("ids", [[0, 1], [3, 3], [None, 2]])
def test_boards_without_usable_module_ids_go_by_index(ids: list[int]) -> None:
    nvml = FakeNvml(count=2)
    nvml.module_ids = ids
    assert [device.index for device in NvidiaGpus(nvml).devices()] == [0, 1]


def test_a_corrupt_inforom_is_no_refusal() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlDeviceValidateInforom"] = pynvml.NVML_ERROR_CORRUPTED_INFOROM
    assert _value(list(NvidiaGpus(nvml).inventory()), "inforom_valid") == 0.0


def test_a_field_may_refuse_by_itself() -> None:
    nvml = FakeNvml()
    nvml.refuse[f"field {pynvml.NVML_FI_DEV_MEMORY_TEMP}"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert "hbm_temperature" not in {s.series for s in NvidiaGpus(nvml).telemetry()}


@pytest.mark.parametrize(("margin", "told"), [(23, {25.0}), (0, set()), (-4, set())])
def test_margin_without_a_threshold_comes_from_tlimit_unless_it_is_garbage(margin: int, told: set[float]) -> None:
    nvml = FakeNvml(nvmlDeviceGetMarginTemperature=margin)
    nvml.refuse["nvmlDeviceGetTemperatureThreshold"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert {s.value for s in NvidiaGpus(nvml).telemetry() if s.series == "thermal_margin"} == told


def test_processes_are_sentences_and_leave_this_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [SimpleNamespace(pid=77), SimpleNamespace(pid=4321)]
    monkeypatch.setattr("os.getpid", lambda: 4321)
    gpus = NvidiaGpus(FakeNvml(count=1, nvmlDeviceGetComputeRunningProcesses=running))
    assert gpus.processes() == ("process 77 uses gpu7 (compute)",)


def test_a_binding_that_lacks_a_function_is_told() -> None:
    nvml = SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlSystemGetDriverVersion=lambda: "418.1")
    facts = {fact.name: fact for fact in NvidiaGpus(nvml).inventory()}
    assert facts["driver_version"].text == "418.1"
    assert facts["cuda_version"].text is None
    assert "nvmlSystemGetCudaDriverVersion_v2" in facts["cuda_version"].note


def test_no_driver_library_means_no_backend_and_a_dead_driver_is_told() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert open_nvidia(nvml) is None
    nvml.refuse["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    gpus = open_nvidia(nvml)
    assert gpus is not None
    assert gpus.devices() == []
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert (count.value, count.note) == (None, "NVML does not start: Driver Not Loaded")
    assert list(gpus.counters()) == list(gpus.telemetry()) == []


def test_without_pynvml_there_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvidia() is None


def test_a_device_that_does_not_answer_cannot_compute() -> None:
    with pytest.raises(Skip, match="gpu9 does not answer"):
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
    assert [device.id for device in host.devices("gpu")] == ["gpu7"]
    assert [fact for fact in host.inventory() if fact.name == "gpu_model" and fact.device == "gpu7"]


def test_a_gpus_cpus_are_those_of_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(nvidia, "CudaCompute", lambda *arguments: built.append(arguments))
    asked = FakeNvml(nvmlDeviceGetCpuAffinity=[0b101, 0b10])
    for board in (asked, FakeNvml()):
        NvidiaGpus(board).compute(Device("gpu2", "gpu", 2))
    *_, near = built[0]
    assert near() == {0, 2, 65}
    *_, untold = built[1]
    assert untold() == frozenset()
