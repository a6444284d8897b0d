"""Drivers of other ages: what an older one lacks has a note and is no fault, what a newer one adds has its name."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.nvidia.states import RECOVERY_ACTIONS
from muster_node.hardware.nvidia.throttling import HARMFUL_FIRST, UNKNOWN, named
from muster_node.hardware.seam import NOT_SUPPORTED
from muster_node.workloads.under_load.gpus import RECOVERIES
from tests.muster_node.hardware.nvml_standin import FakeNvml, facts_of, value_of

REASONS = {
    name: bit
    for prefix in ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
    for name, bit in vars(pynvml).items()
    if name.startswith(prefix) and name.removeprefix(prefix) not in ("All", "None")
}
"""Every clocks-event reason of the binding."""


def test_each_reason_that_the_binding_names_is_known() -> None:
    assert {0x200, 0x400} <= set(REASONS.values())
    assert {name for name, bit in REASONS.items() if named(bit) == UNKNOWN} == set()


def test_each_reason_has_the_bit_that_the_binding_gives_to_that_name() -> None:
    called = {name.partition("Reason")[2].removesuffix("Slowdown").lower(): bit for name, bit in REASONS.items()}
    ours = {name.replace("_", "").removesuffix("slowdown"): bit for name, bit in HARMFUL_FIRST}
    assert ours == {name: called[name] for name in ours}


def test_each_recovery_that_the_binding_names_has_a_text_and_a_rank() -> None:
    prefix = "NVML_GPU_RECOVERY_ACTION_"
    assert set(RECOVERY_ACTIONS) == {code for name, code in vars(pynvml).items() if name.startswith(prefix)}
    assert set(RECOVERY_ACTIONS.values()) == set(RECOVERIES)


def test_what_driver_470_lacks_is_not_supported_and_does_not_hide_who_uses_a_gpu() -> None:
    old = FakeNvml(nvmlSystemGetDriverVersion="470.256.02")
    old.encrypted = 1, 0
    gpus = NvidiaGpus(old)
    facts = list(gpus.inventory())
    (recovery, *_) = (fact for fact in facts if fact.name == "recovery_action")
    assert (recovery.text, recovery.note) == (None, "not supported")
    assert value_of(facts, "throttle_reason") == "sw_power_cap"
    assert value_of(facts, "confidential_computing", "node") == 1.0
    use = gpus.processes()
    assert (use.processes, len(use.unknown)) == ((), 8)


def test_what_a_driver_has_given_up_is_not_supported() -> None:
    """As nvidia-smi has it: "Requested functionality has been deprecated"."""
    new, names = FakeNvml(count=1), ("application_clock", "application_clock_default", "retired_pages_pending")
    for call in ("ApplicationsClock", "DefaultApplicationsClock", "RetiredPagesPendingStatus"):
        new.refuse[f"nvmlDeviceGet{call}"] = pynvml.NVML_ERROR_DEPRECATED
    found = [fact for fact in NvidiaGpus(new).inventory() if fact.name in names]
    assert {fact.name for fact in found} == set(names)
    assert {(fact.value, fact.note) for fact in found} == {(None, NOT_SUPPORTED)}


@pytest.mark.parametrize(("code", "known"), [
    (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, False), (pynvml.NVML_ERROR_NOT_SUPPORTED, True),
])  # fmt: skip
def test_only_a_driver_that_says_that_there_are_none_has_no_processes(code: int, known: bool) -> None:
    nvml = FakeNvml(count=1)

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if "RunningProcesses" in name:
            raise pynvml.NVMLError(code)

    nvml.before = refuse
    assert (NvidiaGpus(nvml).processes().unknown == ()) is known


@pytest.mark.parametrize(
    ("encrypted", "on"), [((0, 0), 0.0), ((1, 0), 1.0), ((0, 1), 1.0), ((0, pynvml.NVML_CC_SYSTEM_MULTIGPU_NVLE), 1.0)]
)
def test_what_is_encrypted_between_all_gpus_counts_too(encrypted: tuple[int, int], on: float) -> None:
    nvml = FakeNvml(count=1)
    nvml.encrypted = encrypted
    assert value_of(list(NvidiaGpus(nvml).inventory()), "confidential_computing", "node") == on


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_an_error_that_the_binding_returns_is_no_answer(code: int) -> None:
    """Where the driver does not know the call, an older one answers; an error is not the absence of encryption."""
    nvml = FakeNvml(count=1)
    nvml.encrypted = 1, 0
    nvml.refuse["nvmlSystemGetConfComputeSettings"] = code
    (fact,) = (each for each in NvidiaGpus(nvml).inventory() if each.name == "confidential_computing")
    unsupported = code == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert (fact.value, bool(fact.note)) == ((1.0, False) if unsupported else (None, True))


FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
)  # fmt: skip


def test_a_field_that_the_driver_does_not_know_is_not_supported_but_a_refused_call_is_refused() -> None:
    nvml = FakeNvml(count=1)
    nvml.refuse.update((f"field {field}", pynvml.NVML_ERROR_INVALID_ARGUMENT) for field in FIELDS)
    assert {fact.note for fact in facts_of(NvidiaGpus(nvml)) if fact.name == "nvlink_errors"} == {"not supported"}
    nvml.refuse = {"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_INVALID_ARGUMENT}
    notes = {fact.note for fact in facts_of(NvidiaGpus(nvml)) if fact.name in ("nvlink_errors", "recovery_action")}
    assert notes
    assert "not supported" not in notes
