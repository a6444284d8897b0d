"""The agent's watch over GPUs: it reads them before, during and after the load, and loses nothing with a probe."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from muster_node import contract
from muster_node.agent import gpu_watch
from muster_node.agent.gpu_watch import GpuWatch
from muster_node.contract import Measurement
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from tests.muster_node.agent.harness import Node, call, plan, wait_for
from tests.muster_node.hardware.nvml_standin import FakeNvml

SLOT = "gpu4"  # of NVML index 2


@dataclasses.dataclass
class Watched:
    """A board under a watch that reads as often as it can."""

    nvml: FakeNvml
    watch: GpuWatch

    def readings(self, more: int = 2) -> None:
        """Wait until it has read so often again."""
        wanted = self.taken + more
        wait_for(lambda: self.taken >= wanted)

    @property
    def taken(self) -> int:
        return self.reads

    reads: int = 0

    def found(self) -> dict[tuple[str, str, str], Measurement]:
        status, reason, measurements = self.watch.finish()
        assert (status, reason) == (contract.COMPLETED, "")
        return {(each.metric, each.device, next(iter(each.labels.values()), "")): each for each in measurements}


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(gpu_watch, "INTERVAL_S", 0.0)
    monkeypatch.setattr(gpu_watch, "PAUSE_S", 0.01)
    nvml = FakeNvml()
    watched = Watched(nvml, None)  # type: ignore[arg-type]

    class Counted(HostHardware):
        def states(self) -> Iterator[Any]:
            yield from super().states()
            watched.reads += 1

    hardware = Counted(accelerators=NvidiaGpus(nvml))
    watched.watch = GpuWatch(hardware, lambda: {f"gpu{slot}": {"none": 1e6} for slot in range(8)})
    watched.watch.start()
    yield watched
    watched.watch.finish()


def _on(index: int, odd: Any, usual: Any) -> Callable[..., Any]:
    return lambda handle, *_: odd if handle == index else usual


CHANGES = {
    "a double-bit error": ("nvmlDeviceGetTotalEccErrors", 5, 3, "ecc_uncorrected_delta", 2.0),
    "a remap that waits": ("nvmlDeviceGetRemappedRows", (0, 1, 1, 0), (0, 0, 0, 0), "row_remap_pending", 1.0),
    "a channel that waits": ("nvmlDeviceGetRepairStatus", [1, 0], [0, 0], "channel_repair_pending", 1.0),
    "lanes that are lost": ("nvmlDeviceGetCurrPcieLinkWidth", 1, 16, "pcie_width", 1.0),
    "a slow PCIe link": ("nvmlDeviceGetCurrPcieLinkGeneration", 1, 5, "pcie_generation_loaded", 1.0),
    "a power cap": ("nvmlDeviceGetEnforcedPowerLimit", 350000, 700000, "settings_changed", 1.0),
    "a pending mode": ("nvmlDeviceGetEccMode", [1, 0], [1, 1], "mode_change_pending", 1.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stays", [True, False])
def test_what_happens_in_the_middle_of_a_load_is_found_on_its_gpu(board: Watched, change: str, stays: bool) -> None:
    call, odd, usual, metric, expected = CHANGES[change]
    board.nvml.answers[call] = lambda handle, *_: usual
    before = board.watch
    board.watch = GpuWatch(before._hardware, before._sampled)  # the change is from what is usual
    before.finish()
    board.watch.start()
    board.readings()
    board.nvml.answers[call] = _on(2, odd, usual)
    board.readings(4)
    if not stays:
        board.nvml.answers[call] = _on(2, usual, usual)
        board.readings()
    found = board.found()
    assert found[metric, SLOT, ""].value == expected
    healthy = {each.value for (name, device, _), each in found.items() if name == metric and device != SLOT}
    assert expected not in healthy


def test_a_link_that_went_down_for_a_while_was_down(board: Watched) -> None:
    board.nvml.links_down = {(2, 1)}
    board.readings()
    board.nvml.links_down = set()
    board.readings()
    found = board.found()
    assert {slot: found["nvlink_active", f"gpu{slot}", ""].value for slot in (3, 4)} == {3: 2.0, 4: 1.0}


def test_a_loss_that_was_seen_once_is_remembered(board: Watched) -> None:
    board.nvml.refuse_gpu[2] = pynvml.NVML_ERROR_GPU_IS_LOST
    board.readings()
    del board.nvml.refuse_gpu[2]
    board.readings()
    lost = {device: each.value for (name, device, _), each in board.found().items() if name == "gpu_lost"}
    assert lost == {f"gpu{slot}": float(slot == 4) for slot in range(8)}


def test_a_healthy_board_is_reported_as_healthy(board: Watched) -> None:
    board.readings(4)
    found = board.found()
    for metric in ("ecc_uncorrected_delta", "settings_changed", "counters_reset", "gpu_lost"):
        assert {each.value for (name, _, _), each in found.items() if name == metric} == {0.0}, metric
    for reason in ("hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake"):
        assert {found["throttle_time", f"gpu{slot}", reason].value for slot in range(8)} == {0.0}


def test_the_most_of_a_minute_is_reported_of_each_gpu_by_cause(board: Watched) -> None:
    most = {"gpu1": {"none": 60.0, "hw_slowdown": 4.0}, "cpu0": {"hw_thermal": 9.0}}
    board.watch = GpuWatch(board.watch._hardware, dict, peaks=lambda: most)
    found = {key: each.value for key, each in board.found().items() if key[0] == "throttle_peak"}
    assert found == {("throttle_peak", "gpu1", "hw_slowdown"): 4.0}


def test_a_machine_without_gpus_has_nothing_to_watch() -> None:
    watch = GpuWatch(HostHardware(), dict)
    watch.start()
    assert watch.finish()[0] == contract.SKIPPED


def test_a_driver_that_hangs_ends_the_watch_and_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_watch, "LAST_LIMIT_S", 0.2)
    released = threading.Event()

    class Hanging(HostHardware):
        def states(self) -> Iterator[Any]:
            released.wait(600)
            yield from super().states()

    watch = GpuWatch(Hanging(accelerators=NvidiaGpus(FakeNvml())), dict)
    watch.start()
    status, reason, measurements = watch.finish()
    released.set()
    assert status == contract.CRASHED
    assert "did not answer" in reason
    assert all(each.value is None for each in measurements if each.metric == "ecc_uncorrected_delta")


@pytest.mark.parametrize("how", ["good", "crashes", "hangs"])
def test_a_job_reports_its_gpus_however_a_probe_ended(how: str, tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        done = node.run(plan(call(how, 1.0), call("gpu_watch")), env={"FAKE_GPUS": "2"})
    finally:
        node.close()
    assert done.outcome("gpu_watch").status == "completed"
    found = {row.device: row.value for row in done.measured("gpu_watch") if row.metric == "ecc_uncorrected_delta"}
    assert found == {"gpu0": 0.0, "gpu1": 0.0}
