"""Calls of NVML that never return: each is abandoned in time, and costs the figures of its own GPU."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

import pytest

from muster_node.agent.gpu_watch import LAST_LIMIT_S
from muster_node.agent.guard import READING_LIMIT_S
from muster_node.hardware.nvidia import nvml
from muster_node.hardware.nvidia.gpus import NvidiaGpus, open_nvidia
from muster_node.hardware.nvidia.nvml import SLOW_CALL_S
from tests.muster_node.hardware.nvml_standin import FakeNvml, Hangs, run_or_hang

HANG_S = 1.0
"""Long enough for any call here on a busy machine, and short enough to wait for."""


def test_a_call_that_hangs_is_abandoned_after_its_time_limit() -> None:
    fake = FakeNvml(count=2)
    gpus = NvidiaGpus(fake, limit_s=HANG_S)
    released = threading.Event()
    fake.answers["nvmlDeviceGetEccMode"] = lambda handle: released.wait(600) if handle == 0 else [1, 1]
    facts = {(fact.name, fact.device): fact for fact in gpus.inventory()}
    released.set()
    assert "nvmlDeviceGetEccMode" in facts["ecc_mode", "gpu7"].note
    assert facts["mig_mode", "gpu7"].note.startswith("NVML: not queried, since nvmlDeviceGetEccMode did not answer")
    assert facts["ecc_mode", "gpu5"].value == 1.0


@pytest.mark.parametrize("indices", [(0, 5), (1, 2, 3, 4, 6)])
def test_gpus_that_hang_cost_their_own_figures_however_many_they_are(
    indices: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml._Worker, "run", run_or_hang)
    fake = FakeNvml()

    def hang(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlDeviceGetEccMode" and arguments[0] in indices:
            raise Hangs

    fake.before = hang
    modes = {fact.device: fact for fact in NvidiaGpus(fake).inventory() if fact.name == "ecc_mode"}
    hung = {f"gpu{fake.module_ids[index] - 1}" for index in indices}
    assert {device for device, fact in modes.items() if fact.value is None} == hung
    assert all("nvmlDeviceGetEccMode" in modes[device].note for device in hung)


def test_a_registration_of_events_that_hangs_costs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml._Worker, "run", run_or_hang)
    fake = FakeNvml()
    fake.hang = {"nvmlEventSetWait_v2": None, "nvmlDeviceGetSerial": 5}
    gpus = NvidiaGpus(fake)
    source = gpus.event_source()
    source.read()
    assert source.trouble
    read = {fact.device for fact in gpus.inventory() if fact.name == "ecc_mode" and fact.value is not None}
    assert read >= {f"gpu{slot}" for slot in range(8) if slot != 1}


def test_all_gpus_that_hang_together_take_less_than_what_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def run(worker: Any, call: Any, limit_s: float) -> Any:
        try:
            return call()
        except Hangs:
            waited.append(limit_s)
            raise queue.Empty from None

    monkeypatch.setattr(nvml._Worker, "run", run)
    fake = FakeNvml()
    gpus = NvidiaGpus(fake)
    fake.hang["nvmlDeviceGetEccMode"] = None
    assert all(fact.note for fact in gpus.inventory() if fact.name == "ecc_mode")
    assert len(waited) == 8
    assert sum(waited) < min(LAST_LIMIT_S, READING_LIMIT_S)
    assert min(waited) > SLOW_CALL_S


def test_a_driver_that_hangs_from_the_start_is_reported() -> None:
    released = threading.Event()
    gpus = open_nvidia(FakeNvml(nvmlInit=lambda: released.wait(600)), limit_s=HANG_S)
    released.set()
    assert gpus is not None
    count = next(f for f in gpus.inventory() if f.name == "gpu_count")
    assert count.value is None
    assert "nvmlInit" in count.note


def test_a_forked_process_asks_by_itself() -> None:
    """Probes fork; the thread that makes the calls stays with the parent."""
    gpus = NvidiaGpus(FakeNvml(count=1), limit_s=HANG_S)
    child = os.fork()
    if child == 0:
        actual = {fact.name: fact.value for fact in gpus.inventory()}
        os._exit(0 if actual["ecc_mode"] == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
