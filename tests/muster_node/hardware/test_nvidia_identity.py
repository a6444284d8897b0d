"""Which GPU is which: shared identities, places that nothing tells, siblings that differ, and cliques."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from muster_node.hardware.events import by_pci
from muster_node.hardware.nvidia import domain
from muster_node.hardware.nvidia.gpu import numbering, slots_of
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import Fact
from tests.muster_node.hardware.nvml_standin import FakeNvml, value_of


def _facts(nvml: FakeNvml, name: str) -> dict[str, Fact]:
    return {fact.device: fact for fact in NvidiaGpus(nvml).inventory() if fact.name == name}


def _values(nvml: FakeNvml, name: str) -> dict[str, float | None]:
    return {device: fact.value for device, fact in _facts(nvml, name).items()}


def test_two_gpus_with_one_identity_are_both_named() -> None:
    nvml = FakeNvml(nvmlDeviceGetUUID=lambda handle: "the same" if handle in (2, 5) else f"own {handle}")
    shared = _facts(nvml, "identity_shared")
    assert {device for device, fact in shared.items() if fact.value} == {"gpu4", "gpu1"}
    assert "gpu1" in shared["gpu4"].note
    assert "gpu4" in shared["gpu1"].note


def test_gpus_with_one_uuid_know_their_twins() -> None:
    gpus = NvidiaGpus(FakeNvml(nvmlDeviceGetUUID=lambda handle: "GPU-1" if handle < 2 else f"GPU-{handle}"))
    assert {gpu.device.id: gpu.twins for gpu in gpus._gpus if gpu.twins} == {"gpu7": ("gpu5",), "gpu5": ("gpu7",)}


def _tray() -> FakeNvml:
    """A healthy GB200 tray, as driver 580.173 lists it: both GPUs of a superchip have their board's serial number."""
    nvml = FakeNvml(
        count=4,
        nvmlDeviceGetSerial=lambda handle: f"165000000000{1 + handle // 2}",
        nvmlDeviceGetUUID=lambda handle: f"GPU-0000000{handle}-0000-0000-0000-00000000000{handle}",
    )
    nvml.module_ids = [2, 1, 4, 3]
    return nvml


def _serials(nvml: FakeNvml) -> dict[str, str | None]:
    return {device: fact.text for device, fact in _facts(nvml, "gpu_serial").items()}


def test_gpus_on_one_board_share_its_serial_number_and_are_parts_of_their_own() -> None:
    assert _values(_tray(), "identity_shared") == dict.fromkeys(("gpu0", "gpu1", "gpu2", "gpu3"), 0.0)
    serials = _serials(_tray())
    assert serials["gpu1"] == "1650000000001/GPU-00000000-0000-0000-0000-000000000000"
    assert len(set(serials.values())) == 4


def test_a_gpu_whose_sibling_falls_silent_is_the_part_that_it_was() -> None:
    lost = _tray()
    lost.refuse_gpu[0] = pynvml.NVML_ERROR_GPU_IS_LOST
    whole = _serials(_tray())
    assert _serials(lost) == {device: whole[device] for device in ("gpu0", "gpu2", "gpu3")}


def test_gpus_that_nothing_tells_apart_are_no_parts() -> None:
    twins = _tray()
    twins.answers["nvmlDeviceGetUUID"] = lambda handle: f"GPU-{handle // 2}"
    assert set(_serials(twins).values()) == {None}
    assert set(_values(twins, "identity_shared").values()) == {1.0}


@pytest.mark.parametrize("text", ["N/A", "0", "", "[Not Supported]", "0000000000000", " "])
def test_a_serial_that_says_that_there_is_none_is_none(text: str) -> None:
    serial = _facts(FakeNvml(nvmlDeviceGetSerial=text), "gpu_serial")["gpu0"]
    assert serial.text is None
    assert serial.note
    assert _values(FakeNvml(nvmlDeviceGetSerial=text), "identity_shared")["gpu0"] == 0.0


def test_two_gpus_without_module_ids_are_not_sure_of_their_places() -> None:
    nvml = FakeNvml()
    nvml.module_ids = [8, None, 5, None, 4, 2, 1, 3]  # type: ignore[list-item]
    known = _facts(nvml, "slot_known")
    assert {device for device, fact in known.items() if fact.value == 0.0} == {"gpu5", "gpu6"}
    assert "00000000:1C:00.0" in known["gpu5"].note
    assert set(_values(FakeNvml(), "slot_known").values()) == {1.0}


@pytest.mark.parametrize(
    ("modules", "slots"),
    [
        ([1, 2, 3, 4], [(0, True), (1, True), (2, True), (3, True)]),
        ([4, 3, None, 1], [(3, True), (2, True), (1, True), (0, True)]),
        ([4, None, None, 1], [(3, True), (1, False), (2, False), (0, True)]),
        ([1, None, 3, None], [(0, True), (1, True), (2, True), (3, True)]),  # the others are in NVML's order
        ([None, None], [(0, True), (1, True)]),
        ([None, 1], [(1, False), (0, False)]),  # a card's, or a board's
        ([None, 2], [(0, False), (1, False)]),
        ([None, 4], [(0, False), (1, False)]),  # one of two has no fourth place
        ([1], [(0, True)]),
        ([4], [(0, False)]),
        ([2, 4], [(1, True), (3, True)]),
        ([2, 2, 1], [(1, False), (2, False), (0, True)]),
        (
            [4, 2, 2, 1],
            [(3, True), (1, False), (2, False), (0, True)],
        ),  # two claim one place, and the others have theirs
        ([4, 0, 3, 1], [(3, True), (1, True), (2, True), (0, True)]),
        (
            [3, 0, 2, 1],
            [(0, False), (1, False), (2, False), (3, False)],
        ),  # a board that counts from 0, or an odd answer
    ],
)
def test_slots(modules: list[int | None], slots: list[tuple[int, bool]]) -> None:
    assert slots_of(list(enumerate(modules))) == slots


@pytest.mark.parametrize(
    ("modules", "usable"),
    [
        ([1] * 8, [None] * 8),
        ([1, None, 1], [None] * 3),
        ([0, 0], [None] * 2),
        ([200, 200], [None] * 2),
        ([1], [1]),
        ([None, 3], [None, 3]),
        ([4, 2, 2, 1], [4, 2, 2, 1]),
    ],
)
def test_an_id_that_several_gpus_report_and_none_another_numbers_none(
    modules: list[int | None], usable: list[int | None]
) -> None:
    assert numbering(modules) == usable


def test_cards_in_pcie_slots_all_report_module_id_1_and_go_by_nvmls_order() -> None:
    nvml = FakeNvml(count=4)
    nvml.module_ids = [1] * 4
    assert _values(nvml, "slot_known") == dict.fromkeys(("gpu0", "gpu1", "gpu2", "gpu3"), 1.0)
    modules = _facts(nvml, "module_id")
    assert {fact.value for fact in modules.values()} == {None}
    assert all(fact.note for fact in modules.values())


@pytest.mark.parametrize(("module", "slot"), [(1, "gpu0"), (3, "gpu2"), (4, "gpu3"), (5, "gpu2")])
def test_the_place_of_the_only_gpu_that_answers_is_a_guess_as_its_id_may_be_any_cards(module: int, slot: str) -> None:
    lost = FakeNvml(count=4)
    lost.refuse_gpu = dict.fromkeys((0, 1, 3), pynvml.NVML_ERROR_GPU_IS_LOST)
    lost.module_ids = [module] * 4
    assert _values(lost, "slot_known") == {slot: 0.0}
    assert _values(lost, "module_id") == {slot: None}


@pytest.mark.parametrize(("module", "known"), [(0, 1.0), (1, 1.0), (2, 0.0), (4, 0.0), (8, 0.0)])
def test_the_only_gpu_is_named_by_the_first_slot_and_may_be_the_last_of_a_board(module: int, known: float) -> None:
    """A card of its own reports 4 (H100 NVL); so does the fourth of a board whose others fell off the bus."""
    only = FakeNvml(count=1)
    only.module_ids = [module]
    assert _values(only, "slot_known") == {"gpu0": known}


def test_a_gpu_without_a_module_id_beside_one_that_is_gone_is_not_sure_of_its_place() -> None:
    """The slots 1 and 2 are left for the one that is silent."""
    assert slots_of([(0, 4), (2, None), (3, 1)], unanswered=1)[1] == (1, False)
    assert slots_of([(0, 5), (1, 4), (2, None), (3, 1)])[2] == (1, False), "the board has a fifth place"
    assert slots_of([(0, 3), (1, None), (2, 1)])[1] == (1, True)


def _own(handle: int, usual: Any, odd: Any) -> Any:
    return odd if handle == 5 else usual


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("nvmlDeviceGetVbiosVersion", lambda handle: _own(handle, "96.00.A5", "96.00.99")),
        ("nvmlDeviceGetInforomImageVersion", lambda handle: _own(handle, "G520.05", "G520.04")),
        ("nvmlDeviceGetName", lambda handle: _own(handle, "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")),
        (
            "nvmlDeviceGetMemoryInfo",
            lambda handle: type("Info", (), {"total": _own(handle, 81559 * 2**20, 80000 * 2**20)}),
        ),
    ],
)
def test_a_gpu_that_differs_from_its_siblings_is_named(call: str, answer: Callable[..., Any]) -> None:
    unlike = _facts(FakeNvml(**{call: answer}), "unlike_siblings")
    assert {device: fact.value for device, fact in unlike.items() if fact.value} == {"gpu1": 1.0}
    assert unlike["gpu1"].note
    assert set(_values(FakeNvml(), "unlike_siblings").values()) == {0.0}


def test_two_halves_that_differ_are_both_named() -> None:
    halves = FakeNvml(nvmlDeviceGetVbiosVersion=lambda handle: "a" if handle < 4 else "b")
    assert set(_values(halves, "unlike_siblings").values()) == {1.0}


def test_two_cliques_in_one_node_are_counted() -> None:
    nvml, real = FakeNvml(), FakeNvml._fabric

    def split(info: Any) -> int:
        result = real(nvml, info)
        info.cliqueId = next(calls) % 2
        return result

    calls = iter(range(1000))
    nvml._fabric = split  # type: ignore[method-assign]
    assert _values(nvml, "fabric_cliques") == {"node": 2.0}
    assert _values(FakeNvml(), "fabric_cliques") == {"node": 1.0}


def test_as_long_as_a_gpu_has_not_joined_one_clique_is_not_known_to_be_all() -> None:
    nvml, real = FakeNvml(), FakeNvml._fabric

    def joining(info: Any) -> int:
        result = real(nvml, info)
        info.state = 2 if next(calls) % 2 else 3
        return result

    calls = iter(range(1000))
    nvml._fabric = joining  # type: ignore[method-assign]
    assert _values(nvml, "fabric_cliques") == {"node": None}
    nowhere = _facts(FakeNvml(fabric=(0, 0, 0)), "fabric_cliques")["node"]
    assert (nowhere.value, nowhere.note) == (None, "not supported")


def test_a_registration_that_this_user_may_not_see_is_not_the_gpus_fault() -> None:
    fact = _facts(FakeNvml(fabric=(3, pynvml.NVML_ERROR_NO_PERMISSION, 1)), "fabric_state")["gpu0"]
    assert fact.text is None
    assert "permission" in fact.note


def test_a_health_that_an_argument_was_refused_for_is_refused_and_not_unsupported() -> None:
    nvml, real = FakeNvml(), FakeNvml._fabric

    def invalid(info: Any) -> int:
        if hasattr(info, "version"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return real(nvml, info)

    nvml._fabric = invalid  # type: ignore[method-assign]
    facts = list(NvidiaGpus(nvml).inventory())
    assert value_of(facts, "fabric_state") == "completed"
    notes = {fact.note for fact in facts if fact.name == "fabric_healthy"}
    assert notes == {"NVML: Invalid Argument (error 2)"}


DOMAIN = uuid.UUID("5b0e2b7e-0f0b-4f4e-9a51-0c5b5f3c7a11")


@pytest.mark.parametrize(
    ("fabric", "domain", "text"),
    [
        ((3, 0, 1), (DOMAIN.bytes, 32766), f"{DOMAIN}.32766"),
        ((3, 0, 1), (bytes(16), 0), f"{uuid.UUID(int=0)}.0"),
        ((2, 0, 1), (DOMAIN.bytes, 32766), None),
        ((0, 0, 0), (bytes(16), 0), None),
    ],
)
@pytest.mark.parametrize("version", [1, 3])
def test_a_gpu_names_its_nvlink_domain_once_it_has_joined(
    fabric: tuple[int, int, int], domain: tuple[bytes, int], text: str | None, version: int
) -> None:
    nvml = FakeNvml(fabric=fabric, domain=domain)
    nvml.fabric_version = version
    facts = {fact.device: fact for fact in NvidiaGpus(nvml).domain() if fact.name == "nvlink_domain"}
    assert {fact.text for fact in facts.values()} == {text}
    assert all(fact.note for fact in facts.values()) is (text is None)


@pytest.mark.parametrize(
    ("control", "enabled", "active", "state"),
    [
        ("echo READY", "echo enabled", "echo active", "READY"),
        ("echo WAITING_FOR_PEERS", "echo enabled", "echo active", "WAITING_FOR_PEERS"),
        ("echo failed to connect; exit 1", "echo enabled", "echo active",
         "no answer from nvidia-imex-ctl (exit 1): failed to connect"),
        ("exit 0", "echo enabled", "echo active", "no answer from nvidia-imex-ctl (exit 0): "),
        ("echo READY", "echo masked; exit 1", "echo inactive; exit 3", "service masked"),
        ("", "echo enabled", "echo active", "service active"),
        ("", "echo disabled; exit 1", "echo inactive; exit 3", "service inactive"),
        ("", "exit 1", "exit 1", None),
    ],
)  # fmt: skip
def test_imex_is_asked_and_its_service_only_where_its_tool_is_missing(
    control: str, enabled: str, active: str, state: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {"nvidia-imex-ctl": control, "systemctl": f"case $1 in is-enabled) {enabled};; *) {active};; esac"}
    for name, script in tools.items():
        if script:
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert domain.imex_fact().text == state


def test_two_gpus_with_one_pci_address_are_both_named() -> None:
    shared = _facts(FakeNvml(nvmlDeviceGetPciInfo=_place(2, 5)), "identity_shared")
    assert {device for device, fact in shared.items() if fact.value} == {"gpu4", "gpu1"}


def test_a_message_about_an_address_that_two_gpus_claim_is_charged_to_neither() -> None:
    gpus = by_pci(NvidiaGpus(FakeNvml(nvmlDeviceGetPciInfo=_place(2, 5))).inventory())
    assert set(gpus.values()) == {f"gpu{slot}" for slot in (0, 2, 3, 5, 6, 7)}


def _place(*same: int) -> Callable[[int], Any]:
    return lambda handle: SimpleNamespace(busId=f"00000000:{0x1B + (0x40 if handle in same else handle):02X}:00.0")


@pytest.mark.parametrize("address", ["zz:1b:00.0", "N/A", "", ":::"])
def test_an_address_that_is_none_costs_no_other_gpu_its_messages(address: str) -> None:
    facts = [Fact("pci_address", "gpu0", "text", text=address), Fact("pci_address", "gpu1", "text", text="0:1c:00.0")]
    assert by_pci(facts)["0000:1c:00"] == "gpu1"


def test_a_gpu_that_does_not_report_what_its_siblings_do_is_not_known_to_be_like_them() -> None:
    nvml = FakeNvml()
    nvml.before = _refuses("nvmlDeviceGetInforomImageVersion", 2)
    unlike = _facts(nvml, "unlike_siblings")
    assert {device for device, fact in unlike.items() if fact.value is None} == {"gpu4"}
    assert unlike["gpu4"].note


def _refuses(call: str, gpu: int) -> Callable[[str, tuple[Any, ...]], None]:
    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == call and arguments[:1] == (gpu,):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    return before
