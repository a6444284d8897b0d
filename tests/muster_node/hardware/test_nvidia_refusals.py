"""NVML refuses, loses a GPU or hangs, at any call of our code: a refused call never becomes a zero or ends the job."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
from pathlib import Path
from typing import Any, TypeGuard

import pynvml
import pytest

from muster_node.hardware.nvidia import gpu, links, nvml, processes, sensors, states
from muster_node.hardware.nvidia import gpus as nvidia
from muster_node.hardware.nvidia.gpus import NvidiaGpus, open_nvidia
from muster_node.hardware.seam import Fact, GpuUse
from tests.muster_node.hardware.nvml_standin import FakeNvml, Hangs, facts_of, keyed, run_or_hang

CALLS = sorted(
    {
        call
        for module in (nvidia, gpu, links, nvml, sensors, states, processes)
        for call in re.findall(r'"(nvml(?:Device|System)[A-Z]\w+)"', inspect.getsource(module))
    }
    | {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"}
)
"""Every function that our code names; two names are put together there."""
OTHERWISE = {
    "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlSystemGetConfComputeState",
}  # fmt: skip
"""Those that are called only where others are refused."""
ERRORS = {
    "NotSupported": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "GpuIsLost": pynvml.NVML_ERROR_GPU_IS_LOST,
    "Unknown": pynvml.NVML_ERROR_UNKNOWN,
}


def test_the_binding_has_every_name_that_the_code_uses() -> None:
    source = "".join(each.read_text() for each in Path(nvml.__file__).parent.glob("*.py"))
    named = set(re.findall(r'"((?:nvml[A-Z]|NVML_|c_nvml)\w*[^\W_])"', source))
    assert len(named) > 100
    assert {name for name in named if not hasattr(pynvml, name)} == set()


@functools.cache
def whole_board() -> tuple[list[Fact], frozenset[tuple[str, str]]]:
    """The facts of a board on which nothing is refused, and which series its telemetry has of which device."""
    gpus = NvidiaGpus(FakeNvml())
    return facts_of(gpus), frozenset((sample.series, sample.device) for sample in gpus.telemetry())


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_call_is_noted_and_costs_nothing_else(call: str, error: str) -> None:
    broken = FakeNvml()
    broken.refuse[call] = ERRORS[error]
    gpus, (expected, healthy_series) = NvidiaGpus(broken), whole_board()
    use = gpus.processes()
    unlisted = call == "nvmlDeviceGetCount" or (error == "Unknown" and "RunningProcesses" in call)
    assert (use.processes, bool(use.unknown)) == ((), unlisted)
    actual = facts_of(gpus)
    if call in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert gpus.devices() == []
        assert list(gpus.telemetry()) == []
        count = next(fact for fact in actual if fact.name == "gpu_count")
        assert count.note
        assert count.value == (None if call == "nvmlDeviceGetCount" else 0.0)
        return
    if call in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues"):  # a link without an answer is no link
        assert all(f.value is None and f.note for f in actual if f.name == "nvlink_errors")
        actual, expected = _without_links(actual), _without_links(expected)
    assert [(f.name, f.device, f.labels) for f in actual] == [(f.name, f.device, f.labels) for f in expected]
    for got, whole_fact in zip(actual, expected, strict=True):
        if got.name == "gpu_lost" and error == "GpuIsLost":
            assert got.value in (0.0, 1.0)
            continue
        if got.name in NAMES and call == "nvmlDeviceGetModuleId":  # the GPUs go by another order then
            continue
        if (got.value, got.text) == (whole_fact.value, whole_fact.text):
            continue
        assert got.value is None
        assert got.text is None
        assert got.note == ("not supported" if error == "NotSupported" else got.note)
        assert got.note
    readings = {(s.series, s.device): (s.value, s.state) for s in gpus.telemetry()}
    assert 0.0 not in {value for value, _ in readings.values()}
    lost = {key for key in healthy_series if key not in readings}
    if call == "nvmlDeviceGetFieldValues":
        assert {series for series, _ in lost} == {"hbm_temperature", "hbm_margin", "power_instant"}
    else:
        assert len({series for series, _ in lost}) <= 2


NAMES = ("gpu_uuid", "gpu_serial", "pci_address")
OF_ALL = ("identity_shared", "slot_known", "unlike_siblings", "fabric_cliques")
"""Facts that are made of answers about several GPUs."""


def _on_this_board(fact: Fact) -> bool:
    nvlink_5 = fact.labels.get("kind") in ("effective", "recovered", "recovery_failed")
    return not nvlink_5 and fact.name != "c2c_state"


def _without_links(facts: list[Fact]) -> list[Fact]:
    return [f for f in facts if f.name not in ("nvlink_state", "nvlink_speed", "nvlink_errors")]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_hangs_costs_its_own_gpu_only(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML index 5 sits in slot 1; a system-wide call hangs as a whole."""
    monkeypatch.setattr(nvml._Worker, "run", run_or_hang)
    fake, healthy = FakeNvml(), keyed(whole_board()[0])
    fake.hang[call] = None if call in ("nvmlDeviceGetCount",) or "System" in call else 5
    gpus = NvidiaGpus(fake)
    actual, samples = keyed(facts_of(gpus)), list(gpus.telemetry())
    use = gpus.processes()
    assert use.processes == ()
    assert call == "nvmlDeviceGetCount" or all("gpu1" in why for why in use.unknown)
    assert all(fact.note for fact in actual.values() if fact.value is None and fact.text is None)
    lost = {fact.device for fact in actual.values() if "did not answer" in fact.note and fact.name not in OF_ALL}
    if call == "nvmlDeviceGetCount":
        assert (gpus.devices(), samples) == ([], [])
    elif call == "nvmlDeviceGetHandleByIndex":
        assert [device.index for device in gpus.devices()] == [0, 2, 3, 4, 5, 6, 7]
    elif call == "nvmlDeviceGetModuleId":  # then it takes the slot that the others leave
        assert [device.index for device in gpus.devices()] == list(range(8))
    elif call.startswith("nvmlSystem") and call not in OTHERWISE:
        assert lost == {"node"}
        by_version = {key for key in healthy if key[0] == "throttle_time" and key[1] != "node"}
        assert {key for key in healthy if actual[key] != healthy[key]} - by_version == {
            key for key in healthy if actual[key].device == "node" and "did not answer" in actual[key].note
        }
    else:
        assert lost <= {"gpu1"}
        assert bool(use.unknown) or not (lost or "RunningProcesses" in call), "a user's job may wait for it"
        others = [key for key in healthy if key[1] != "gpu1" and key[0] not in OF_ALL]
        assert {key: actual[key] for key in others} == {key: healthy[key] for key in others}
        assert all(fact.value in (None, healthy[key].value) for key, fact in actual.items() if key[0] in OF_ALL)
        assert {sample.device for sample in samples} >= {f"gpu{slot}" for slot in range(8) if slot != 1}


@pytest.mark.parametrize("error", ERRORS)
def test_a_lost_gpu_costs_its_own_figures_only(error: str) -> None:
    nvml = FakeNvml()
    gpus = NvidiaGpus(nvml)
    nvml.refuse_gpu[5] = ERRORS[error]  # NVML index 5 sits in slot 1
    facts = facts_of(gpus)
    lost = {f.value for f in facts if (f.name, f.device) == ("gpu_lost", "gpu1")}
    assert lost == {1.0 if error == "GpuIsLost" else None}
    others = [f for f in facts if f.device == "gpu1" and f.name != "gpu_lost"]
    facts = [f for f in facts if f.name != "fabric_cliques"]  # without it, they may be two
    assert all(f.value is None and f.text is None and f.note for f in others)
    assert all(f.value is not None or f.text is not None for f in facts if f.device != "gpu1" and _on_this_board(f))
    assert {s.device for s in gpus.telemetry()} == {f"gpu{slot}" for slot in range(8) if slot != 1}


@dataclasses.dataclass(frozen=True)
class Readout:
    """All values that our code reads from NVML, on a board of two GPUs."""

    facts: dict[Any, Fact]
    samples: dict[Any, Any]
    paces: dict[str, Any]
    processes: GpuUse


def read_everything(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Readout | None:
    """None where there is no NVML at all."""
    monkeypatch.setattr(nvml._Worker, "run", run_or_hang)
    monkeypatch.setattr(nvidia, "CudaCompute", lambda device, gpu, pace, near: (*pace(), near()))
    gpus = open_nvidia(fake)
    if gpus is None:
        return None
    return Readout(
        facts={
            **keyed(list(gpus.inventory())),
            **{("counter", *key): f for key, f in keyed(list(gpus.counters())).items()},
        },
        samples={(s.series, s.device): s.state if s.value is None else s.value for s in gpus.telemetry()},
        paces={device.id: gpus.compute(device) for device in gpus.devices()},
        processes=gpus.processes(),
    )


COUNTING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues")
"""Calls that determine how many facts there are: if one is refused, there are fewer."""


def _board() -> FakeNvml:
    board = FakeNvml(count=2, links=2, nvmlDeviceGetCpuAffinity=[1])
    board.module_ids = [2, 1]
    return board


def _sequence(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, tuple[Any, ...]]], Readout]:
    """Every call that is made, in order, and what a healthy board answers to all of them."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    board = _board()
    board.before = lambda name, arguments: calls.append((name, arguments))
    actual = read_everything(board, monkeypatch)
    assert actual is not None
    return calls, actual


def test_every_function_that_our_code_names_is_called_and_none_past_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, _ = _sequence(monkeypatch)
    assert {name for name, _ in calls} == {*CALLS, "nvmlInit"} - OTHERWISE
    for path in sorted(Path(nvml.__file__).parent.glob("*.py")):
        called = {node.func.attr for node in ast.walk(ast.parse(path.read_text())) if _is_method(node)}
        assert not [name for name in called if name.startswith("nvml")], path.name


def _is_method(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


@pytest.mark.parametrize("error", [*ERRORS, "hangs"])
def test_each_single_call_may_go_wrong(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in turn fails alone: only the value that it reads is missing, and a note gives the reason."""
    calls, healthy = _sequence(monkeypatch)
    assert len(calls) > 100
    # No code looks for the number of "Unknown": it is as NotSupported, but where that ends the links.
    every = 7 if error == "Unknown" else 1
    for number, (function, arguments) in [*enumerate(calls)][::every]:
        board, made = _board(), itertools.count()

        def fail(name: str, given: tuple[Any, ...], number: int = number, made: Any = made) -> None:
            if next(made) == number:
                raise Hangs if error == "hangs" else pynvml.NVMLError(ERRORS[error])

        board.before = fail
        actual = read_everything(board, monkeypatch)
        assert actual is not None, function
        _check(function, arguments, error, actual, healthy, f"call {number}, {function}{arguments}")


def _check(
    function: str, arguments: tuple[Any, ...], error: str, actual: Readout, healthy: Readout, where: str
) -> None:
    assert all(f.note for f in actual.facts.values() if f.value is None and f.text is None), where
    assert set(actual.samples.items()) <= set(healthy.samples.items()), where
    assert actual.processes.processes == (), where
    if function in ("nvmlInit", "nvmlDeviceGetCount"):
        assert not actual.samples, where
        assert actual.facts["gpu_count", "node", ()].value is None, where
        return
    hit = "node" if function.startswith("nvmlSystem") else f"gpu{1 - arguments[0]}"
    other = f"gpu{arguments[0]}" if hit != "node" else ""
    for key, fact in healthy.facts.items():
        about = key[2] if key[0] == "counter" else key[1]
        got = actual.facts.get(key)
        if about == other:
            # Its module id, alone, may be any card's.
            assert got == fact or key[0] in ("slot_known", "module_id"), (where, key)
        elif got is None:
            assert function in (
                "nvmlDeviceGetHandleByIndex",
                "nvmlDeviceGetNvLinkState",
                "nvmlDeviceGetFieldValues",
            ) or (error == "hangs" and about == hit), (where, key)
        elif got != fact and not _ends_the_links(function, error, key):
            partly = ("gpu_count", "gpu_lost", *OF_ALL)
            assert (got.value, got.text) == (None, None) or key[0] in partly, (where, key)
    if other:
        assert {key for key in healthy.samples if key[1] == other} <= set(actual.samples), where
        assert actual.paces[other] == healthy.paces[other], where
    if function == "nvmlDeviceGetHandleByIndex":
        assert (actual.facts["gpu_count", "node", ()].value, hit in actual.paces) == (1.0, False), where


def _ends_the_links(function: str, error: str, key: Any) -> bool:
    """NVML answers "not supported" for a link past the last: then fewer links are reported."""
    return (function, error, key[0]) == ("nvmlDeviceGetNvLinkState", "NotSupported", "nvlink_active")


NO_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    ("call", "fact"),
    [("nvmlDeviceGetSerial", "gpu_serial"), ("nvmlDeviceGetVbiosVersion", "vbios"), ("nvmlDeviceGetName", "gpu_model")],
)
def test_a_text_that_cannot_be_decoded_costs_only_itself(call: str, fact: str) -> None:
    def fifth_is_garbled(handle: int) -> str:
        return NO_TEXT.decode() if handle == 5 else "as usual"

    actual = keyed(facts_of(NvidiaGpus(FakeNvml(**{call: fifth_is_garbled}))))
    healthy = keyed(facts_of(NvidiaGpus(FakeNvml(**{call: "as usual"}))))
    spoilt = (fact, "gpu1", ())  # NVML index 5 sits in slot 1
    changed = {key for key in healthy if actual[key] != healthy[key]}
    assert {key for key in changed if key[0] not in OF_ALL} == {spoilt}
    note = f"NVML: the answer of {call} cannot be read (UnicodeDecodeError)"
    assert (actual[spoilt].text, actual[spoilt].note) == (None, note)


def test_a_structure_whose_text_cannot_be_decoded_costs_only_itself() -> None:
    """The binding decodes the address when the attribute is read, not when the structure is returned."""
    garbled = pynvml.nvmlPciInfo_t()
    garbled.busId = NO_TEXT
    actual, healthy = (
        keyed(facts_of(NvidiaGpus(FakeNvml(nvmlDeviceGetPciInfo=answer))))
        for answer in (lambda handle: garbled, FakeNvml().answers["nvmlDeviceGetPciInfo"])
    )
    assert {key[0] for key in healthy if actual[key] != healthy[key]} == {"pci_address"}
    assert "UnicodeDecodeError" in actual["pci_address", "gpu0", ()].note


def test_after_any_error_the_inforom_state_is_unknown() -> None:
    """NVML returns nothing for a valid inforom, so an answer without value and error would look valid."""

    def raises(handle: int) -> None:
        raise ValueError("of no kind that was expected")

    facts = list(NvidiaGpus(FakeNvml(nvmlDeviceValidateInforom=raises)).inventory())
    found = [fact for fact in facts if fact.name == "inforom_valid"]
    note = "NVML: the answer of nvmlDeviceValidateInforom cannot be read (ValueError)"
    assert {(fact.value, fact.note) for fact in found} == {(None, note)}


@pytest.mark.parametrize("kind", [7, 4711])
def test_a_field_of_unknown_type_costs_only_itself(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    field = pynvml.NVML_FI_DEV_MEMORY_TEMP
    answer = FakeNvml._field

    def of_unknown_type(self: FakeNvml, wanted: Any) -> Any:
        actual = answer(self, wanted)
        actual.valueType = kind if wanted == field else actual.valueType
        return actual

    healthy = {(s.series, s.device): (s.value, s.state) for s in NvidiaGpus(FakeNvml()).telemetry()}
    monkeypatch.setattr(FakeNvml, "_field", of_unknown_type)
    gpus = NvidiaGpus(FakeNvml())
    assert {(s.series, s.device): (s.value, s.state) for s in gpus.telemetry()} == {
        key: sample for key, sample in healthy.items() if key[0] != "hbm_temperature"
    }
    actual = gpus._nvml.field(0, "NVML_FI_DEV_MEMORY_TEMP")
    assert actual.value is None
    assert "IndexError" in actual.note


def test_a_sensor_without_a_number_costs_only_itself() -> None:
    series = {s.series for s in NvidiaGpus(FakeNvml(nvmlDeviceGetFanSpeed="fast")).telemetry()}
    assert series == {s.series for s in NvidiaGpus(FakeNvml()).telemetry()} - {"fan"}
