"""States and counters as a load's watch reads them, and answers that no GPU can give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_node.hardware.nvidia import nvml as nvml_module
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.nvidia.links import _fabric_health
from muster_node.hardware.nvidia.nvml import SLOW_MAX_S, SLOW_SHARE
from muster_node.hardware.nvidia.processes import foreign
from muster_node.hardware.seam import Fact
from muster_node.workloads.under_load.gpus import DELTAS, STATES, Found, Reading, under_load
from tests.muster_node.hardware.nvml_standin import FakeNvml, value_of

ALL_ONES = (2**32 - 1, 2**64 - 1)


def _of(nvml: FakeNvml, device: str = "gpu0") -> dict[tuple[str, str], Fact]:
    facts = [fact for fact in NvidiaGpus(nvml).states() if fact.device == device]
    return {(fact.name, next(iter(fact.labels.values()), "")): fact for fact in facts}


def test_everything_that_a_load_may_change_is_read() -> None:
    facts = _of(FakeNvml())
    names = {name for name, _ in facts}
    assert {*STATES, *DELTAS.values(), "nvlink_errors", "throttle_time", "utilisation"} <= names
    assert {"pcie_generation", "pcie_width", "power_limit", "foreign_processes", "gpu_lost"} <= names
    assert facts["recovery_action", ""].text == "none"
    assert facts["mode_change_pending", ""].value == 0.0


@pytest.mark.parametrize(
    ("now", "highest", "share"),
    [(990, 1980, 50.0), (1980, 1980, 100.0), (990, 0, None), (2**32 - 1, 1980, None), (990, 2**32 - 1, None)],
)
def test_a_clock_is_a_share_of_the_highest(now: int, highest: int, share: float | None) -> None:
    facts = _of(FakeNvml(nvmlDeviceGetClockInfo=now, nvmlDeviceGetMaxClockInfo=highest))
    for domain in ("sm", "memory"):
        fact = facts["clock_share", domain]
        assert (fact.value, bool(fact.note)) == (share, share is None)


@pytest.mark.parametrize("call", ["nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode"])
def test_a_mode_that_the_next_reset_changes_is_pending(call: str) -> None:
    assert _of(FakeNvml(**{call: [1, 0]}))["mode_change_pending", ""].value == 1.0


def test_what_the_driver_says_that_a_gpu_needs_is_reported() -> None:
    nvml = FakeNvml()
    nvml.fields[pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = (
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
    )  # fmt: skip
    assert _of(nvml)["recovery_action", ""].text == "reboot of the node"


@pytest.mark.parametrize(
    ("code", "needs"), [(pynvml.NVML_ERROR_RESET_REQUIRED, "reset of the GPU"), (pynvml.NVML_ERROR_GPU_IS_LOST, None)]
)
def test_a_gpu_that_refuses_until_it_is_reset_is_lost_by_whichever_call_says_so(code: int, needs: str | None) -> None:
    """Also by the error of one field of a call that succeeds."""
    nvml = FakeNvml()
    nvml.refuse[f"field {pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION}"] = code
    facts = _of(nvml)
    assert (facts["gpu_lost", ""].value, facts["recovery_action", ""].text) == (1.0, needs)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN])
def test_no_process_can_use_a_gpu_until_it_is_reset_and_of_one_with_an_unknown_error_nothing_is_known(
    code: int,
) -> None:
    nvml = FakeNvml()
    nvml.only_identity[5] = code  # NVML index 5 sits in slot 1
    gpus = NvidiaGpus(nvml)
    use, resets = gpus.processes(), code == pynvml.NVML_ERROR_RESET_REQUIRED
    assert (use.processes, len(use.unknown)) == ((), 0 if resets else 1)
    assert [gpu.id for gpu in gpus.devices() if gpus.lost(gpu)] == (["gpu1"] if resets else [])


@pytest.mark.parametrize("ones", ALL_ONES)
def test_all_ones_are_a_missing_measurement_of_that_gpu(ones: int) -> None:
    """Of a counter, of one inside a structure, and of a sensor."""
    nvml = FakeNvml(
        nvmlDeviceGetTotalEccErrors=lambda handle, *_: ones if handle == 6 else 0,
        nvmlDeviceGetRemappedRows=lambda handle: (0, ones if handle == 6 else 0, 0, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=ones if handle == 6 else 2**36),
        nvmlDeviceGetPowerUsage=lambda handle: ones if handle == 6 else 700000,
    )
    facts = list(NvidiaGpus(nvml).inventory())
    for name in ("ecc_uncorrected", "row_remap_uncorrected", "hbm_total"):
        found = {fact.device: fact for fact in facts if fact.name == name}
        assert {device for device, fact in found.items() if fact.value is None} == {"gpu0"}
        assert "all bits" in found["gpu0"].note or "ValueError" in found["gpu0"].note
    powered = {sample.device for sample in NvidiaGpus(nvml).telemetry() if sample.series == "power"}
    assert powered == {f"gpu{slot}" for slot in range(1, 8)}


@pytest.mark.parametrize("ones", ALL_ONES)
def test_all_ones_are_no_pending_mode_no_ill_fabric_and_no_number_of_gpus(ones: int) -> None:
    facts = _of(FakeNvml(nvmlDeviceGetEccMode=[ones, 1]))
    assert facts["mode_change_pending", ""].value is None
    assert facts["mode_change_pending", ""].note
    garbled = NvidiaGpus(FakeNvml(count=ones - 1))
    assert garbled.devices() == []
    (count,) = (fact for fact in garbled.inventory() if fact.name == "gpu_count")
    assert count.value is None
    assert count.note
    assert _fabric_health(SimpleNamespace(healthMask=1 << 0)) == 0.0
    with pytest.raises(ValueError, match="bits"):
        _fabric_health(SimpleNamespace(healthMask=ones))


@pytest.mark.parametrize("reading", [0, 255, -40])
def test_temperatures_that_no_working_gpu_has_are_none(reading: int) -> None:
    series = {sample.series for sample in NvidiaGpus(FakeNvml(nvmlDeviceGetTemperature=reading)).telemetry()}
    assert "temperature" not in series
    assert "power" in series


def test_a_margin_of_zero_and_less_counts_where_nothing_contradicts_it() -> None:
    """As on a GPU that reports T.Limit only, or whose temperature says the same."""
    nvml = FakeNvml(nvmlDeviceGetMarginTemperature=-6, nvmlDeviceGetTemperature=99)
    nvml.refuse["nvmlDeviceGetTemperatureThreshold"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    hot = {s.series: s.value for s in NvidiaGpus(nvml).telemetry() if s.device == "gpu0"}
    assert hot["thermal_margin"] == -4.0
    agreeing = FakeNvml(nvmlDeviceGetMarginTemperature=-3, nvmlDeviceGetTemperature=90)
    assert {s.value for s in NvidiaGpus(agreeing).telemetry() if s.series == "thermal_margin"} == {-1.0}


def test_reasons_are_read_under_their_old_name_too() -> None:
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=pynvml.nvmlClocksEventReasonSwThermalSlowdown)
    nvml.refuse["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    states = {sample.state for sample in NvidiaGpus(nvml).telemetry() if sample.series == "throttle"}
    assert states == {"sw_thermal"}


def test_older_drivers_count_heat_of_either_kind() -> None:
    counters = list(NvidiaGpus(FakeNvml(nvmlSystemGetDriverVersion="550.54.15")).counters())
    assert value_of(counters, "throttle_time", reason="thermal") == 0.0


def test_the_code_of_an_error_is_in_its_note() -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_IRQ_ISSUE
    count = next(fact for fact in NvidiaGpus(nvml).inventory() if fact.name == "gpu_count")
    assert "(error 11)" in count.note


@pytest.mark.parametrize("seconds", [5.0, 0.9, 0.3])
def test_a_gpu_that_is_slow_at_each_call_costs_its_own_figures(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others keep their places, and are read in full."""
    now = [0.0]
    monkeypatch.setattr(nvml_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(nvml_module._Worker, "run", lambda self, call, limit_s: call())
    nvml = FakeNvml()

    def slow(name: str, arguments: tuple[Any, ...]) -> None:
        if name.startswith("nvmlDevice") and arguments[:1] == (2,) and "Handle" not in name:
            now[0] += seconds

    nvml.before = slow
    facts = list(NvidiaGpus(nvml).inventory())
    assert now[0] < 120.0, "the time limit of an inventory"
    asked_last = {fact.device: fact for fact in facts if fact.name == "gpu_lost"}
    assert {device for device, fact in asked_last.items() if fact.value is None} == {"gpu4"}
    assert "slow calls" in asked_last["gpu4"].note
    assert now[0] < SLOW_MAX_S / (1.0 - SLOW_SHARE) + 2.0 * seconds


def test_days_with_a_slow_call_now_and_then_cost_no_gpu_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(nvml_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(nvml_module._Worker, "run", lambda self, call, limit_s: call())
    nvml = FakeNvml(count=1)
    gpus = NvidiaGpus(nvml)

    def slow(name: str, arguments: tuple[Any, ...]) -> None:
        now[0] += 2.0 if name == "nvmlDeviceGetEccMode" else 0.0

    nvml.before = slow
    for _ in range(100):
        now[0] += 60.0
        assert [fact.value for fact in gpus.states() if fact.name == "ecc_mode"] == [1.0]


class TestForeignProcesses:
    def _proc(self, tmp_path: Path, parents: dict[int, int]) -> Path:
        for pid, parent in parents.items():
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (strange) name) S {parent}{' 1' * 48}")
        return tmp_path

    def _dcgm(self, tmp_path: Path, dcgmi: int | None, *, asked_at: int = 500, began_at: int = 510) -> Path:
        """As in NVIDIA's source (dcgmi/Diag.cpp, DcgmDiagManager.cpp), not tried with DCGM itself.

        The service (80) starts nvvs (81), which loads the GPUs and may start others; dcgmi (70) only asks.
        """
        listed = {80: ("nv-hostengine", 1, 100), 81: ("nvvs", 80, began_at), 82: ("eud", 81, began_at + 5)}
        if dcgmi is not None:
            listed |= {70: ("dcgmi", dcgmi, asked_at)}
        for pid, (name, parent, started) in listed.items():
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent}{' 1' * 17} {started}{' 1' * 30}")
        return tmp_path

    def test_a_diagnosis_that_the_job_asked_dcgms_service_for_is_its_own(self, tmp_path: Path) -> None:
        assert self._found([81, 82], self._dcgm(tmp_path, os.getpid())).value == 0.0

    def test_a_diagnosis_that_ran_before_the_job_asked_is_anothers(self, tmp_path: Path) -> None:
        assert self._found([81], self._dcgm(tmp_path, os.getpid(), asked_at=520)).value == 1.0

    @pytest.mark.parametrize("dcgmi", [1, None])
    def test_a_diagnosis_that_the_job_did_not_ask_for_is_anothers(self, tmp_path: Path, dcgmi: int | None) -> None:
        assert self._found([81], self._dcgm(tmp_path, dcgmi)).value == 1.0

    def _found(self, pids: list[int], proc: Path) -> Fact:
        processes = [SimpleNamespace(pid=pid) for pid in pids]
        gpus = NvidiaGpus(FakeNvml(count=1, nvmlDeviceGetComputeRunningProcesses=processes))
        return foreign(gpus._nvml, gpus._gpus[0], str(proc))

    def test_the_jobs_own_are_none(self, tmp_path: Path) -> None:
        proc = self._proc(tmp_path, {70: 71, 71: os.getpid()})
        assert self._found([70, 71, os.getpid()], proc).value == 0.0

    def test_others_are_counted_and_named(self, tmp_path: Path) -> None:
        found = self._found([70, 90], self._proc(tmp_path, {70: os.getpid(), 90: 1}))
        assert found.value == 1.0
        assert "90 (a (strange) name)" in found.note

    def test_those_that_cannot_be_seen_are_neither(self, tmp_path: Path) -> None:
        found = self._found([4321], self._proc(tmp_path, {}))
        assert found.value is None
        assert found.note

    def test_a_list_that_is_refused_is_no_zero(self, tmp_path: Path) -> None:
        nvml = FakeNvml(count=1)
        nvml.refuse["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_UNKNOWN
        gpus = NvidiaGpus(nvml)
        assert foreign(gpus._nvml, gpus._gpus[0], str(tmp_path)).value is None


def _nvlink_errors(nvml: FakeNvml, *changes: Callable[[], object]) -> dict[str, Found]:
    """By kind, from a reading before and one after each of the changes."""
    gpus = NvidiaGpus(nvml)
    readings = [Reading(0.0, tuple(gpus.states()))]
    for at, change in enumerate(changes, start=1):
        change()
        readings.append(Reading(10.0 * at, tuple(gpus.states())))
    found = under_load(readings, [gpus.devices()[0].id], {})
    return {each.labels["kind"]: each for each in found if each.metric == "nvlink_errors_delta"}


def test_a_gpu_that_has_no_nvlink_says_so_of_its_errors() -> None:
    nvml = FakeNvml(count=1)
    nvml.refuse["nvmlDeviceGetNvLinkState"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    found = _nvlink_errors(nvml, lambda: None)
    assert {kind: (each.value, each.note) for kind, each in found.items()} == dict.fromkeys(
        ("replay", "recovery", "crc", "effective", "recovered", "recovery_failed"), (None, "not supported")
    )


def test_the_errors_of_links_that_are_all_down_are_missing() -> None:
    nvml = FakeNvml(count=1)
    nvml.links_down = {(0, 0), (0, 1)}
    notes = {each.note for each in _nvlink_errors(nvml, lambda: None).values()}
    assert notes == {"links: no link is up"}


def test_one_reading_without_link_states_between_two_others_costs_no_count() -> None:
    nvml = FakeNvml(count=1)
    refused = {"nvmlDeviceGetNvLinkState": pynvml.NVML_ERROR_UNKNOWN}
    found = _nvlink_errors(nvml, lambda: nvml.refuse.update(refused), nvml.refuse.clear)
    assert found["replay"].value == 0.0


def test_links_that_went_down_and_came_back_under_load_are_counted_by_link() -> None:
    """NVLink 5, whose other counters stay as they are then."""
    nvml, kind = FakeNvml(count=1, links=1), pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    recovered = pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS
    nvml.fields = {recovered: (kind, 2)}
    found = _nvlink_errors(nvml, lambda: nvml.fields.update({recovered: (kind, 5)}))
    assert (found["recovered"].value, found["recovered"].note) == (3.0, "link 0: 3")


@pytest.mark.parametrize(("status", "channel", "tpc"), [([0, 0], 0.0, 0.0), ([1, 0], 1.0, 0.0), ([0, 1], 0.0, 1.0)])
@pytest.mark.parametrize("bad", [0, 1])
def test_repairs_that_wait_and_memory_beyond_repair_are_read(
    status: list[int], channel: float, tpc: float, bad: int
) -> None:
    facts = _of(FakeNvml(nvmlDeviceGetRepairStatus=status, nvmlDeviceGetUnrepairableMemoryFlag_v1=bad))
    assert (facts["channel_repair_pending", ""].value, facts["tpc_repair_pending", ""].value) == (channel, tpc)
    assert facts["unrepairable_memory", ""].value == bad


IMPOSSIBLE = (2**63 - 1, 2**64 - 2, 2**62)


@pytest.mark.parametrize("number", IMPOSSIBLE)
def test_a_number_that_no_gpu_has_is_a_missing_measurement_of_that_gpu(number: int) -> None:
    """The agent ends a probe that reports one beyond 1e18, and "at least" is true of any that is large."""
    broken = ("nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetMaxPcieLinkGeneration",
              "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetRetiredPagesPendingStatus")  # fmt: skip
    facts = list(NvidiaGpus(FakeNvml(**dict.fromkeys(broken, lambda handle, *_: number * (handle == 6)))).inventory())
    assert all(abs(fact.value or 0.0) < 1e18 for fact in facts)
    for name in ("ecc_uncorrected", "pcie_replay", "pcie_generation_max", "power_limit", "retired_pages_pending"):
        found = {fact.device: fact for fact in facts if fact.name == name}
        assert {device for device, fact in found.items() if fact.value is None} == {"gpu0"}, name
        assert found["gpu0"].note


@pytest.mark.parametrize("module", [200, 2**32 - 2, 2**63 - 1])
def test_a_module_id_that_no_board_has_names_no_slot(module: int) -> None:
    """The name "gpu4294967293" is none to the controller, which would refuse the whole result."""
    nvml = FakeNvml()
    nvml.module_ids = [8, 6, module, 7, 4, 2, 1, 3]
    assert [device.index for device in NvidiaGpus(nvml).devices()] == list(range(8))


@pytest.mark.parametrize(("info", "healthy"), [
    ({"healthSummary": 1}, 1.0), ({"healthSummary": 3}, 0.0), ({"healthSummary": 0}, None),
    ({"healthMask": 0b10_10_10_10 | 1 << 8}, 1.0), ({"healthMask": 0b10_10_01_10}, 0.0),
    ({"healthMask": 0b01_10_10_10}, 0.0), ({"healthMask": 0}, None),
])  # fmt: skip
def test_health_in_the_fabric_is_read_from_all_its_parts(info: dict[str, int], healthy: float | None) -> None:
    assert _fabric_health(SimpleNamespace(**info)) == healthy


@pytest.mark.parametrize("info", [{"healthSummary": 4}, {"healthMask": 0b11}])
def test_a_health_that_nvml_does_not_define_is_not_the_absence_of_one(info: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="not defined"):
        _fabric_health(SimpleNamespace(**info))


def test_a_reason_that_this_version_does_not_know_is_one() -> None:
    usual = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonSyncBoost
    assert _of(FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=usual))["throttle_reason", ""].text == "none"
    newer = FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=usual | 0x8000)
    assert _of(newer)["throttle_reason", ""].text == "unknown"


@pytest.mark.parametrize("refused", [3, 1])
def test_a_link_that_is_refused_between_two_that_answer_is_not_the_end_of_them(refused: int) -> None:
    nvml = FakeNvml(count=1, links=6)

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlDeviceGetNvLinkState" and arguments[1] == refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    nvml.before = refuse
    facts = list(NvidiaGpus(nvml).inventory())
    (active,) = (fact for fact in facts if fact.name == "nvlink_active")
    assert (active.value, f"link {refused}" in active.note) == (None, True)
    assert [fact.labels["link"] for fact in facts if fact.name == "nvlink_state"] == [
        str(link) for link in range(6) if link != refused
    ]


def test_a_margin_that_no_gpu_has_is_none() -> None:
    """The threshold stands in for it, where there is one."""
    nvml = FakeNvml(count=1, nvmlDeviceGetMarginTemperature=500)
    margins = {sample.series: sample.value for sample in NvidiaGpus(nvml).telemetry() if "margin" in sample.series}
    assert margins == {"thermal_margin": 89.0 - 64.0, "hbm_margin": 94.0 - 71.0}
    nvml.refuse["nvmlDeviceGetTemperatureThreshold"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert not [sample for sample in NvidiaGpus(nvml).telemetry() if "margin" in sample.series]


def test_links_to_the_cpu_are_read_one_by_one_where_there_are_any() -> None:
    def read(**more: tuple[int, int]) -> list[tuple[str, str, float | None]]:
        nvml = FakeNvml()
        nvml.fields = {getattr(pynvml, "NVML_FI_DEV_C2C_LINK_" + name): given for name, given in more.items()}
        found = [fact for fact in NvidiaGpus(nvml).inventory() if fact.device == "gpu0" and fact.name.startswith("c2c")]
        return [(fact.labels.get("link", ""), fact.labels.get("kind", "state"), fact.value) for fact in found]

    whole = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    errors = {"ERROR_INTR": (whole, 0), "ERROR_REPLAY": (whole, 3), "ERROR_REPLAY_B2B": (whole, 0)}
    assert read(COUNT=(whole, 2), GET_STATUS=(whole, 0), **errors) == [
        (link, kind, value)
        for link in ("0", "1")
        for kind, value in (("state", 0.0), ("interrupt", 0.0), ("replay", 3.0), ("replay_b2b", 0.0))
    ]
    assert read() == read(COUNT=(whole, 0)) == read(COUNT=(whole, 2**31)) == [("", "state", None)]
