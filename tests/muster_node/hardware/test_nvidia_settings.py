"""Restoring GPU settings through NVML: the calls and their arguments, and the notes for refused calls."""

from __future__ import annotations

import dataclasses
from typing import Any

import pynvml
import pytest

from muster_node.agent.gpu_settings import restore
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.workloads.under_load.settings import settings
from tests.muster_node.hardware.nvml_standin import FakeNvml

SETTERS = ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetPersistenceMode", "nvmlDeviceSetComputeMode",
           "nvmlDeviceSetApplicationsClocks")  # fmt: skip


class Board:
    """A board whose settings are changed after they were read; gpu3 is NVML's handle 4."""

    def __init__(self, **changed: Any) -> None:
        self.nvml = FakeNvml(**dict.fromkeys(SETTERS))
        self.calls: list[tuple[Any, ...]] = []
        self.nvml.before = self._note
        self.hardware = HostHardware(accelerators=NvidiaGpus(self.nvml))
        self.nvml.answers["nvmlDeviceGetPowerManagementLimit"] = lambda handle: self.nvml._answer(
            "nvmlDeviceGetEnforcedPowerLimit", handle
        )
        before = settings(self.hardware.inventory())
        healthy = dict(self.nvml.answers)
        for name, answer in changed.items():
            self.nvml.answers[name] = lambda handle, *_, name=name, answer=answer: (
                answer if handle == 4 else healthy[name]
            )
        self.notes = restore(self.hardware, before, settings(self.hardware.inventory()))

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name.startswith("nvmlDeviceSet"):
            self.calls.append((name, *arguments))


@pytest.mark.parametrize(
    ("function", "now", "called", "notes"),
    [
        ("nvmlDeviceGetEnforcedPowerLimit", 500000, ("nvmlDeviceSetPowerManagementLimit", 4, 700000),
         "gpu3 power_limit: 700 W before, 500 W after; restored"),
        ("nvmlDeviceGetPersistenceMode", 0, ("nvmlDeviceSetPersistenceMode", 4, 1),
         "gpu3 persistence_mode: 1 bool before, 0 bool after; restored"),
        ("nvmlDeviceGetComputeMode", 3, ("nvmlDeviceSetComputeMode", 4, 0),
         "gpu3 compute_mode: default before, exclusive process after; restored"),
    ],
)  # fmt: skip
def test_a_changed_setting_is_restored(function: str, now: int, called: tuple[Any, ...], notes: str) -> None:
    board = Board(**{function: now})
    assert board.calls == [called]
    assert board.notes == [notes]


def test_an_externally_enforced_limit_is_not_made_permanent() -> None:
    """500 W applied before the load, 700 W apply now; it is unknown whether an operator set the 500 W."""
    board = Board()
    limit = [fact for fact in board.hardware.inventory() if (fact.name, fact.device) == ("power_limit", "gpu3")]
    lower = [dataclasses.replace(limit[0], value=500.0)]
    assert "held from outside" in board.hardware.restore_setting("gpu3", "power_limit", lower)
    assert board.calls == []


def test_both_clocks_are_set_together() -> None:
    board = Board(nvmlDeviceGetApplicationsClock=1200)
    assert set(board.calls) == {("nvmlDeviceSetApplicationsClocks", 4, 1980, 1980)}
    assert len(board.notes) == 2


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode"])
def test_modes_that_need_a_reset_are_reported_and_not_changed(function: str) -> None:
    board = Board(**{function: [1, 1] if "Mig" in function else [0, 0]})
    assert board.calls == []
    assert "not restored" in board.notes[0]


def test_unchanged_settings_are_not_written() -> None:
    board = Board()
    assert (board.calls, board.notes) == ([], [])


def test_a_refusal_is_reported() -> None:
    board = Board()
    board.nvml.refuse[SETTERS[0]] = pynvml.NVML_ERROR_NO_PERMISSION
    board.nvml.answers["nvmlDeviceGetPowerManagementLimit"] = 500000
    limit = [fact for fact in board.hardware.inventory() if (fact.name, fact.device) == ("power_limit", "gpu3")]
    assert "permission" in board.hardware.restore_setting("gpu3", "power_limit", limit).lower()


def test_a_gpu_that_no_longer_reports_settings_is_not_changed() -> None:
    board = Board()
    before = settings(board.hardware.inventory())
    gone = {key: fact for key, fact in before.items() if key[0] != "gpu3"}
    assert restore(board.hardware, before, gone) == []
    assert board.hardware.restore_setting("gpu9", "power_limit", [])


def test_a_machine_without_gpus_has_nothing_to_set() -> None:
    assert HostHardware().restore_setting("gpu0", "power_limit", [])
