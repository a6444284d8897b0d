"""Counters before and after a load: what was added is told, what is not told at both ends never becomes a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_node.hardware.seam import Device, Fact, Hardware
from muster_node.hardware.sysfs import NOT_SUPPORTED
from muster_node.probe import Context
from muster_node.probes._counters import METRICS, Counters
from tests.muster_node.simulated.winding import WoundClock

GPU = Device("gpu3", "gpu", 3)


class Machine:
    """Counters that a test sets, on a clock that it winds."""

    def __init__(self) -> None:
        self.clock: Any = WoundClock()
        self.facts: list[Fact] = []

    def counters(self) -> Iterator[Fact]:
        yield from self.facts


def _added(before: list[Fact], after: list[Fact], seconds: float = 60.0) -> dict[tuple[str, str, str], dict[str, Any]]:
    machine: Any = Machine()
    machine.facts = before
    counters = Counters(machine)
    machine.facts = after
    machine.clock.sleep(seconds)
    told: dict[tuple[str, str, str], dict[str, Any]] = {}

    def emit(metric: str, device: str, **more: Any) -> None:
        assert metric in METRICS
        told[metric, device, (more.get("labels") or {}).get("kind", "")] = more

    hardware: Hardware = machine
    counters.emit(Context(hardware, {}, 1, Path(), emit, lambda sentence: None), [GPU])
    return told


def _nvlink(link: int, kind: str, count: float) -> Fact:
    return Fact("nvlink_errors", "gpu3", "count", count, labels={"kind": kind, "link": str(link)})


def test_what_was_there_before_the_load_is_not_counted() -> None:
    def ecc(count: float, scope: str) -> Fact:
        return Fact("ecc_corrected", "gpu3", "count", count, labels={"scope": scope})

    told = _added([ecc(7, "volatile"), ecc(90, "aggregate")], [ecc(12, "volatile"), ecc(400, "aggregate")])
    assert told["ecc_corrected_delta", "gpu3", ""]["value"] == 5


@pytest.mark.parametrize(("seconds", "rate"), [(60.0, 12.0), (600.0, 1.2)])
def test_replays_are_told_a_minute_too(seconds: float, rate: float) -> None:
    told = _added(
        [Fact("pcie_replay", "gpu3", "count", 3.0)], [Fact("pcie_replay", "gpu3", "count", 15.0)], seconds=seconds
    )
    assert told["pcie_replay_delta", "gpu3", ""]["value"] == 12
    assert told["pcie_replay_rate", "gpu3", ""]["value"] == pytest.approx(rate)


def test_links_are_summed_by_kind_and_the_noisy_ones_are_named() -> None:
    before = [_nvlink(link, kind, 1.0) for link in range(3) for kind in ("replay", "recovery")]
    after = [_nvlink(0, "replay", 1.0), _nvlink(1, "replay", 5.0), _nvlink(2, "replay", 3.0)]
    after += [_nvlink(link, "recovery", 1.0) for link in range(3)]
    told = _added(before, after)
    assert told["nvlink_errors_delta", "gpu3", "replay"]["value"] == 6
    assert told["nvlink_errors_delta", "gpu3", "replay"]["note"] == "link 1: 4; link 2: 2"
    assert told["nvlink_errors_delta", "gpu3", "recovery"]["value"] == 0


def test_a_link_that_went_down_meanwhile_is_told_beside_the_others() -> None:
    told = _added([_nvlink(0, "crc", 1.0), _nvlink(1, "crc", 1.0)], [_nvlink(0, "crc", 1.0)])
    assert told["nvlink_errors_delta", "gpu3", "crc"]["value"] == 0
    assert told["nvlink_errors_delta", "gpu3", "crc"]["note"] == "link 1: this counter is not told here"


def test_ports_are_summed_over_their_counters() -> None:
    def port(counter: str, count: float | None) -> Fact:
        note = "" if count is not None else NOT_SUPPORTED
        return Fact("ib_errors", "nic:mlx5_0", "count", count, labels={"counter": counter}, note=note)

    told = _added(
        [port("symbol_error", 2.0), port("link_downed", 0.0), port("out_of_sequence", None)],
        [port("symbol_error", 9.0), port("link_downed", 1.0), port("out_of_sequence", None)],
    )
    assert told["ib_errors_delta", "nic:mlx5_0", ""]["value"] == 8
    assert told["ib_errors_delta", "nic:mlx5_0", ""]["note"] == "link_downed: 1; symbol_error: 7"


def test_what_is_not_told_is_told_as_such() -> None:
    kind = Fact("nvlink_errors", "gpu3", "count", labels={"kind": "effective"}, note=NOT_SUPPORTED)
    lost = Fact("pcie_replay", "gpu3", "count", note="NVML: GPU is lost")
    told = _added([kind, Fact("pcie_replay", "gpu3", "count", 3.0)], [kind, lost])
    assert told["nvlink_errors_delta", "gpu3", "effective"]["value"] is None
    assert NOT_SUPPORTED in told["nvlink_errors_delta", "gpu3", "effective"]["note"]
    assert told["pcie_replay_delta", "gpu3", ""] == {"value": None, "note": "NVML: GPU is lost"}
    assert told["pcie_replay_rate", "gpu3", ""]["value"] is None
    assert told["xid_delta", "node", ""] == {"value": None, "note": "this counter is not told here"}
