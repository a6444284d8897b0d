"""Counters of host and ports before and after a load: one that is missing at either end gives no number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.counts import rate_limits
from muster_node.hardware.seam import NOT_SUPPORTED, Fact, Hardware
from muster_node.probe import Context
from muster_node.workloads.under_load.counters import HOST, METRICS, Counters, proved
from tests.muster_simulator.winding import WoundClock


class Machine:
    """Counters that a test sets, on a clock that it winds."""

    def __init__(self) -> None:
        self.clock: Any = WoundClock()
        self.facts: list[Fact] = []

    def counters(self) -> Iterator[Fact]:
        yield from self.facts


def _added(before: list[Fact], after: list[Fact], seconds: float = 60.0) -> dict[tuple[str, str], dict[str, Any]]:
    machine: Any = Machine()
    machine.facts = before
    counters = Counters(machine)
    machine.facts = after
    machine.clock.sleep(seconds)
    deltas: dict[tuple[str, str], dict[str, Any]] = {}

    def emit(metric: str, device: str, **more: Any) -> None:
        assert metric in METRICS
        deltas[metric, device] = more

    hardware: Hardware = machine
    counters.emit(Context(hardware, {}, 1, Path(), emit, lambda sentence: None))
    return deltas


def port(counter: str, count: float | None) -> Fact:
    note = "" if count is not None else NOT_SUPPORTED
    return Fact("ib_errors", "nic:mlx5_0", "count", count, labels={"counter": counter}, note=note)


@pytest.mark.parametrize(("errors", "minutes", "least", "most"), [
    (0, 1, 0, 0), (1, 1, 2, 5), (3, 1, 45, 50), (7, 1, 190, 205), (40, 15, 118, 124), (4000, 15, 15_500, 15_650),
])  # fmt: skip
def test_a_ports_rate_is_what_the_count_proves(errors: int, minutes: float, least: float, most: float) -> None:
    added = _added([port("symbol_error", 5.0)], [port("symbol_error", 5.0 + errors)], 60.0 * minutes)
    assert least <= added["ib_error_rate", "nic:mlx5_0"]["value"] <= most


def test_a_counter_that_a_port_lacks_has_no_rate() -> None:
    added = _added([port("roce_slow_restart", None)], [port("roce_slow_restart", None)])
    assert ("ib_error_rate", "nic:mlx5_0") not in added


@pytest.mark.parametrize(
    ("before", "after", "rated", "unknown"),
    [
        (65_535, 65_535, False, 1),  # full before: it shows no error any more
        (100, 65_535, True, 1),
        (65_536, 65_536, True, 0),  # a driver that counts further
        (7, 0, False, 1),  # reset under load
        (7, 8, True, 0),
        (7, None, False, 1),  # lost under load
        (None, None, False, 0),  # a counter that the port does not have
    ],
)
def test_a_full_or_reset_counter_of_a_port_is_no_zero(
    before: float | None, after: float | None, rated: bool, unknown: int
) -> None:
    added = _added([port("symbol_error", before)], [port("symbol_error", after)])
    assert (("ib_error_rate", "nic:mlx5_0") in added) is rated
    assert added["ib_counters_unknown", "nic:mlx5_0"]["value"] == unknown
    assert bool(added["ib_counters_unknown", "nic:mlx5_0"]["note"]) is bool(unknown)


def test_messages_that_the_kernels_ring_forgot_are_no_new_ones() -> None:
    """Those that are left are counted only for a port's counter, which falls where it is reset."""
    left = _added(
        [Fact("xid_count", "node", "count", 5.0), port("symbol_error", 5.0)],
        [Fact("xid_count", "node", "count", 4.0), port("symbol_error", 4.0)],
    )
    assert left["xid_delta", "node"]["value"] is None
    assert left["ib_error_rate", "nic:mlx5_0"]["value"] > 0


def test_missing_values_are_noted() -> None:
    assert _added([], [])["xid_delta", "node"]["value"] is None


def _host(checks: float | None, corrected: float = 0.0, uncorrected: float = 0.0) -> list[Fact]:
    note = "" if checks is not None else NOT_SUPPORTED
    return [
        Fact("machine_checks", "node", "count", checks, note=note),
        Fact("machine_checks_corrected", "node", "count", 0.0),
        Fact("edac_corrected", "node", "count", corrected),
        Fact("edac_uncorrected", "node", "count", uncorrected),
    ]


def test_the_hosts_own_counters_are_differenced_too() -> None:
    deltas = _added(_host(1.0, 5.0, 0.0), _host(3.0, 5.0, 1.0))
    assert [deltas[name, "node"]["value"] for name in HOST] == [2, 0, 0, 1]


def test_missing_host_counters_are_not_reported_as_zero_errors() -> None:
    deltas = _added(_host(None), _host(None))
    assert deltas["machine_checks", "node"] == {"value": None, "note": NOT_SUPPORTED}
    assert deltas["cpu_throttle_events_delta", "node"]["value"] is None
    assert deltas["cpu_throttle_events_delta", "node"]["note"]


def test_throttle_events_of_cpus_are_summed_and_the_hot_ones_named() -> None:
    def events(*counts: float) -> list[Fact]:
        return [Fact("cpu_throttle_events", f"cpu{cpu}", "count", count) for cpu, count in enumerate(counts)]

    deltas = _added(events(4.0, 0.0, 9.0), events(4.0, 3.0, 10.0))["cpu_throttle_events_delta", "node"]
    assert (deltas["value"], deltas["note"], deltas["samples"]) == (4, "cpu1: 3; cpu2: 1", 3)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40, 200, 201, 5000, 10**6])
def test_node_and_controller_prove_the_same_rate(count: int) -> None:
    exact = rate_limits(count, 1.0)[0]
    assert proved(count) == pytest.approx(exact, rel=1e-4)
