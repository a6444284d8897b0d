"""Machines as built: drawn from seed and name, altered in physical quantities only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from muster_simulator import create_machine, load_machine, open_simulated
from muster_simulator.defects import DEFECTS
from muster_simulator.models import MODELS

# What each defect alters, and how many quantities: an answer anywhere else would be a label.
ALTERED = {
    "missing_gpu": {"enumerates"},
    "gpu_lost": {"opens_at_c"},
    "sdc": {"upset_rate", "upset_bit", "upset_first", "upset_stride"},
    "wrong_unit": {"stuck_output_bit", "stuck_output_every"},
    "stuck_bit": {"stuck_cell_bit", "stuck_cell_word", "stuck_cell_level"},
    "throttle": {"thermal_resistance"},
    "slow_gemm": {"lanes"},
    "hbm_slow": {"memory_rate"},
    "leaky": {"leakage_w"},
    "power_limit": {"power_limit_w"},
    "clock_lock": {"clock_lock_mhz"},
    "mig_mode": {"mig_on"},
    "ecc_mode": {"ecc_on"},
    "ecc": {"uncorrectable_per_hour"},
    "ecc_storm": {"corrected_per_hour"},
    "row_remap_pending": {"waiting_rows"},
    "row_remap_failed": {"waiting_rows", "spare_rows"},
    "processor_hang": {"processor_timeouts_per_hour"},
    "pcie_width": {"pcie_width"},
    "pcie_generation": {"pcie_generation"},
    "pcie_errors": {"pcie_replays_per_hour"},
    "nvlink_down": {"nvlinks"},
    "nvlink_errors": {"nvlink_errors_per_hour"},
    "nic_down": {"up"},
    "nic_slow": {"speed"},
    "nic_errors": {"errors_per_hour"},
}
PARTS = {"gpu": "gpus", "nic": "nics"}


def _raw(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "machine.json").read_text())
    return loaded


def test_seed_and_name_make_the_machine(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        create_machine(tmp_path / parent / "node1", seed=7)
    create_machine(tmp_path / "a" / "node2", seed=7)
    create_machine(tmp_path / "c" / "node1", seed=8)
    first = load_machine(tmp_path / "a" / "node1")
    assert first == load_machine(tmp_path / "b" / "node1")
    for other in (load_machine(tmp_path / "a" / "node2"), load_machine(tmp_path / "c" / "node1")):
        assert other.serial_system != first.serial_system
        assert other.boot_id != first.boot_id
        assert other.inlet_c != first.inlet_c
        assert {gpu.uuid for gpu in other.gpus}.isdisjoint(gpu.uuid for gpu in first.gpus)
        assert [gpu.silicon for gpu in other.gpus] != [gpu.silicon for gpu in first.gpus]
    assert first.hostname == "node1"


def test_every_kind_of_defect_of_a_part_is_listed_here() -> None:
    assert {kind for kind, defect in DEFECTS.items() if defect.part in PARTS} == set(ALTERED)


@pytest.mark.parametrize("kind", ALTERED)
def test_a_defect_alters_physical_quantities_of_its_part_only(tmp_path: Path, kind: str) -> None:
    part = DEFECTS[kind].part
    create_machine(tmp_path / "healthy" / "node", seed=3)
    create_machine(tmp_path / "faulty" / "node", seed=3, faults=[{"kind": kind, part: 5}])
    healthy, faulty = _raw(tmp_path / "healthy" / "node"), _raw(tmp_path / "faulty" / "node")
    pairs = zip(healthy.pop(PARTS[part]), faulty.pop(PARTS[part]), strict=True)
    changed = [{key for key in one if one[key] != other[key]} for one, other in pairs]
    assert healthy == faulty
    # A bit or a stride may be drawn as the healthy value's own.
    assert changed.pop(5) <= ALTERED[kind]
    assert not any(changed)


def test_no_file_in_the_directory_names_faults(tmp_path: Path) -> None:
    faults = [{"kind": kind, DEFECTS[kind].part: number % 8} for number, kind in enumerate(ALTERED)]
    create_machine(tmp_path / "node", seed=3, faults=[*faults, {"kind": "fan_fail"}])
    list(open_simulated(tmp_path / "node").telemetry())
    assert "fault" not in "".join(path.read_text() for path in (tmp_path / "node").iterdir())
    # Every quantity is written for every GPU, so that the file does not mark the defective one.
    assert len({frozenset(gpu) for gpu in _raw(tmp_path / "node")["gpus"]}) == 1


def test_node_defects(tmp_path: Path) -> None:
    create_machine(tmp_path / "node", faults=[{"kind": "fan_fail", "fan": 2}, {"kind": "hot_inlet"}])
    machine = load_machine(tmp_path / "node")
    assert machine.fans == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert machine.inlet_c == 38.0


IMPOSSIBLE: list[dict[str, Any]] = [
    {"model": "h900"},
    {"faults": [{"kind": "gremlins", "gpu": 1}]},
    {"faults": [{"kind": "sdc"}]},
    {"faults": [{"kind": "sdc", "gpu": 8}]},
    {"faults": [{"kind": "nic_down", "nic": 8}]},
    {"faults": [{"kind": "pcie_width", "gpu": 0}], "model": "gb200-nvl72"},
]


@pytest.mark.parametrize("arguments", IMPOSSIBLE)
def test_an_impossible_machine_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        create_machine(tmp_path / "node", **arguments)
    assert not (tmp_path / "node").exists()


def test_wording_of_impossible_machines(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    sentences = []
    for number, arguments in enumerate(IMPOSSIBLE):
        with pytest.raises(ValueError) as raised:
            create_machine(tmp_path / str(number), **arguments)
        sentences.append(str(raised.value))
    with pytest.raises(ValueError) as raised:
        open_simulated(tmp_path)
    assert [*sentences, str(raised.value).replace(str(tmp_path), "FOLDER")] == snapshot


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"schema": "muster.simulated/1", "model_name": "h900"}'])
def test_a_directory_without_a_usable_machine_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "machine.json").write_text(text)
    with pytest.raises(ValueError):
        open_simulated(tmp_path)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_can_be_opened(tmp_path: Path, model: str) -> None:
    create_machine(tmp_path / "node", model)
    hardware = open_simulated(tmp_path / "node")
    assert hardware.simulated
    assert len(hardware.devices("gpu")) == MODELS[model].gpu_count
    assert {fact.text for fact in hardware.inventory() if fact.name == "gpu_model"} == {MODELS[model].gpu_model}
