"""Counters before and after a load: differences are reported; a counter missing at either end gives no number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_node.hardware.seam import NOT_SUPPORTED, Device, Fact, Hardware
from muster_node.probe import Context
from muster_node.workloads.counters import HOST, METRICS, Counters
from tests.muster_simulator.winding import WoundClock

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
    deltas: dict[tuple[str, str, str], dict[str, Any]] = {}

    def emit(metric: str, device: str, **more: Any) -> None:
        assert metric in METRICS
        deltas[metric, device, next(iter((more.get("labels") or {}).values()), "")] = more

    hardware: Hardware = machine
    counters.emit(Context(hardware, {}, 1, Path(), emit, lambda sentence: None), [GPU])
    return deltas


def _nvlink(link: int, kind: str, count: float) -> Fact:
    return Fact("nvlink_errors", "gpu3", "count", count, labels={"kind": kind, "link": str(link)})


def test_errors_from_before_the_load_are_not_counted() -> None:
    def ecc(count: float, scope: str) -> Fact:
        return Fact("ecc_corrected", "gpu3", "count", count, labels={"scope": scope})

    deltas = _added([ecc(7, "volatile"), ecc(90, "aggregate")], [ecc(12, "volatile"), ecc(400, "aggregate")])
    assert deltas["ecc_corrected_delta", "gpu3", ""]["value"] == 5


@pytest.mark.parametrize(("seconds", "rate"), [(60.0, 12.0), (600.0, 1.2)])
def test_replays_are_reported_per_minute_too(seconds: float, rate: float) -> None:
    deltas = _added(
        [Fact("pcie_replay", "gpu3", "count", 3.0)], [Fact("pcie_replay", "gpu3", "count", 15.0)], seconds=seconds
    )
    assert deltas["pcie_replay_delta", "gpu3", ""]["value"] == 12
    assert deltas["pcie_replay_rate", "gpu3", ""]["value"] == pytest.approx(rate)


def test_links_are_summed_by_kind_and_the_noisy_ones_are_named() -> None:
    before = [_nvlink(link, kind, 1.0) for link in range(3) for kind in ("replay", "recovery")]
    after = [_nvlink(0, "replay", 1.0), _nvlink(1, "replay", 5.0), _nvlink(2, "replay", 3.0)]
    after += [_nvlink(link, "recovery", 1.0) for link in range(3)]
    deltas = _added(before, after)
    assert deltas["nvlink_errors_delta", "gpu3", "replay"]["value"] == 6
    assert deltas["nvlink_errors_delta", "gpu3", "replay"]["note"] == "link 1: 4; link 2: 2"
    assert deltas["nvlink_errors_delta", "gpu3", "recovery"]["value"] == 0


def test_a_link_that_went_down_is_noted_beside_the_others() -> None:
    deltas = _added([_nvlink(0, "crc", 1.0), _nvlink(1, "crc", 1.0)], [_nvlink(0, "crc", 1.0)])
    assert deltas["nvlink_errors_delta", "gpu3", "crc"]["value"] == 0
    assert "link 1" in deltas["nvlink_errors_delta", "gpu3", "crc"]["note"]


def test_ports_are_summed_over_their_counters() -> None:
    def port(counter: str, count: float | None) -> Fact:
        note = "" if count is not None else NOT_SUPPORTED
        return Fact("ib_errors", "nic:mlx5_0", "count", count, labels={"counter": counter}, note=note)

    deltas = _added(
        [port("symbol_error", 2.0), port("link_downed", 0.0), port("out_of_sequence", None)],
        [port("symbol_error", 9.0), port("link_downed", 1.0), port("out_of_sequence", None)],
    )
    assert deltas["ib_errors_delta", "nic:mlx5_0", ""]["value"] == 8
    assert deltas["ib_errors_delta", "nic:mlx5_0", ""]["note"] == "link_downed: 1; symbol_error: 7"


def _port(counter: str, count: float | None) -> Fact:
    return Fact("ib_errors", "nic:mlx5_0", "count", count, labels={"counter": counter})


@pytest.mark.parametrize(("errors", "minutes", "least", "most"), [
    (0, 1, 0, 0), (1, 1, 2, 5), (3, 1, 45, 50), (7, 1, 190, 205), (40, 15, 118, 124), (4000, 15, 15_500, 15_650),
])  # fmt: skip
def test_a_ports_rate_is_what_the_count_proves(errors: int, minutes: float, least: float, most: float) -> None:
    added = _added([_port("symbol_error", 5.0)], [_port("symbol_error", 5.0 + errors)], 60.0 * minutes)
    assert least <= added["ib_error_rate", "nic:mlx5_0", "symbol_error"]["value"] <= most


def test_a_counter_that_a_port_lacks_has_no_rate() -> None:
    added = _added([_port("roce_slow_restart", None)], [_port("roce_slow_restart", None)])
    assert ("ib_error_rate", "nic:mlx5_0", "roce_slow_restart") not in added


def test_missing_values_are_noted() -> None:
    kind = Fact("nvlink_errors", "gpu3", "count", labels={"kind": "effective"}, note=NOT_SUPPORTED)
    lost = Fact("pcie_replay", "gpu3", "count", note="NVML: GPU is lost")
    deltas = _added([kind, Fact("pcie_replay", "gpu3", "count", 3.0)], [kind, lost])
    assert deltas["nvlink_errors_delta", "gpu3", "effective"]["value"] is None
    assert NOT_SUPPORTED in deltas["nvlink_errors_delta", "gpu3", "effective"]["note"]
    assert deltas["pcie_replay_delta", "gpu3", ""]["value"] is None
    assert deltas["pcie_replay_rate", "gpu3", ""]["value"] is None
    assert deltas["xid_delta", "node", ""]["value"] is None


def _host(checks: float | None, corrected: float = 0.0, uncorrected: float = 0.0) -> list[Fact]:
    note = "" if checks is not None else NOT_SUPPORTED
    return [
        Fact("machine_checks", "node", "count", checks, note=note),
        Fact("edac_corrected", "node", "count", corrected),
        Fact("edac_uncorrected", "node", "count", uncorrected),
    ]


def test_the_hosts_own_counters_are_differenced_too() -> None:
    deltas = _added(_host(1.0, 5.0, 0.0), _host(3.0, 5.0, 1.0))
    assert [deltas[name, "node", ""]["value"] for name in HOST] == [2, 0, 1]


def test_missing_host_counters_are_not_reported_as_zero_errors() -> None:
    deltas = _added(_host(None), _host(None))
    assert deltas["machine_checks", "node", ""] == {"value": None, "note": NOT_SUPPORTED}
    assert deltas["cpu_throttle_events_delta", "node", ""]["value"] is None
    assert deltas["cpu_throttle_events_delta", "node", ""]["note"]


def test_throttle_events_of_cpus_are_summed_and_the_hot_ones_named() -> None:
    def events(*counts: float) -> list[Fact]:
        return [Fact("cpu_throttle_events", f"cpu{cpu}", "count", count) for cpu, count in enumerate(counts)]

    deltas = _added(events(4.0, 0.0, 9.0), events(4.0, 3.0, 10.0))["cpu_throttle_events_delta", "node", ""]
    assert (deltas["value"], deltas["note"], deltas["samples"]) == (4, "cpu1: 3; cpu2: 1", 3)


def test_throttle_time_is_reported_by_reason() -> None:
    def spent(reason: str, seconds: float | None) -> Fact:
        note = "" if seconds is not None else NOT_SUPPORTED
        return Fact("throttle_time", "gpu3", "s", seconds, labels={"reason": reason}, note=note)

    before = [spent("sw_power_cap", 10.0), spent("hw_thermal", 0.5), spent("sw_thermal", None)]
    deltas = _added(before, [spent("sw_power_cap", 70.0), spent("hw_thermal", 0.5), spent("sw_thermal", None)])
    assert deltas["throttle_time_delta", "gpu3", "sw_power_cap"]["value"] == 60.0
    assert deltas["throttle_time_delta", "gpu3", "hw_thermal"]["value"] == 0.0
    assert deltas["throttle_time_delta", "gpu3", "sw_thermal"] == {
        "value": None, "labels": {"reason": "sw_thermal"}, "note": NOT_SUPPORTED,
    }  # fmt: skip
    assert _added([], [])["throttle_time_delta", "gpu3", ""]["value"] is None


def test_rows_remapped_under_load_are_reported() -> None:
    def rows(uncorrected: float) -> list[Fact]:
        return [Fact("row_remap_uncorrected", "gpu3", "count", uncorrected)]

    deltas = _added(rows(2.0), rows(3.0))
    assert deltas["row_remap_uncorrected_delta", "gpu3", ""]["value"] == 1
    assert deltas["row_remap_corrected_delta", "gpu3", ""]["value"] is None
