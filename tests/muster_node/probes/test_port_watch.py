"""Ports that are watched while a load uses them: counters by difference, time without a link by its state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from muster_node.hardware.host.fabric import port_errors, port_links
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NOT_SUPPORTED, Fact, Hardware
from muster_node.probe import Context
from muster_node.workloads.under_load.ports import PORT_METRICS, PortWatch
from tests.muster_simulator.winding import WoundClock

PORT = "nic:mlx5_0"


class Machine:
    """Counters and a link that a test sets, on a clock that it winds; ``looked`` is set whenever the link was read."""

    def __init__(self, counts: dict[str, float | None], *, up: bool) -> None:
        self.clock: Any = WoundClock()
        self.counts = counts
        self.up: bool | None = up
        self.looked = threading.Semaphore(0)
        self.go = threading.Semaphore(1)  # the first look, as the watch begins

    def port_counters(self) -> list[Fact]:
        """As ``port_errors``: what cannot be read is not supported, for all that sysfs tells."""
        return [
            Fact("ib_errors", PORT, "count", count, labels={"counter": n}, note=NOT_SUPPORTED if count is None else "")
            for n, count in self.counts.items()
        ]

    def port_links(self) -> dict[str, bool]:
        self.looked.release()
        self.go.acquire(timeout=10)
        return {} if self.up is None else {PORT: self.up}


class Watched:
    def __init__(self, counts: dict[str, float | None] | None = None, *, up: bool = True) -> None:
        self.machine: Any = Machine(counts or {"symbol_error": 0.0, "link_downed": 0.0}, up=up)
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        hardware: Hardware = self.machine
        self.watch = PortWatch(hardware, state_every_s=0.001)
        self.machine.looked.acquire(timeout=10)
        self.context = Context(hardware, {}, 1, Path(), self._emit, lambda sentence: None)

    def _emit(self, metric: str, device: str, **more: Any) -> None:
        assert metric in PORT_METRICS
        self.rows[metric, more.get("labels", {}).get("counter", "")] = more

    def later(self, seconds: float, *, up: bool | None = True) -> None:
        """That much later the link is looked at, and is so."""
        self.machine.looked.acquire(timeout=10)
        self.machine.up = up
        self.machine.clock.sleep(seconds)
        self.machine.go.release()

    def end(self) -> dict[tuple[str, str], dict[str, Any]]:
        self.watch._over.set()
        self.machine.go.release(100)
        self.watch.close(self.context)
        return self.rows


def test_what_counters_gained_and_how_long_they_were_watched() -> None:
    watched = Watched()
    watched.later(30.0)
    watched.machine.counts["symbol_error"] = 7.0
    rows = watched.end()
    assert rows["port_errors", "symbol_error"]["value"] == 7
    assert ("port_errors", "link_downed") not in rows
    assert rows["port_watched", ""]["value"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("began", "then", "down"),
    [
        (False, (False, False), None), (True, (False, False), 8.0), (True, (False, True), 5.0),
        (False, (True, False), 3.0), (True, (True, True), 0.0),
    ],
)  # fmt: skip
def test_time_without_a_link_counts_of_ports_that_had_one(
    began: bool, then: tuple[bool, bool], down: float | None
) -> None:
    watched = Watched(up=began)
    # A state is read at the end of the time that it counts for.
    for seconds, up in zip((5.0, 3.0, 0.0), (began, *then), strict=True):
        watched.later(seconds, up=up)
    assert watched.end().get(("port_down", ""), {}).get("value") == down


def test_a_counter_that_is_reset_within_hours_keeps_what_it_had() -> None:
    watched = Watched()
    watched.machine.counts["symbol_error"] = 5.0
    for seconds in (61.0, 1.0, 1.0):  # it has been read when the link is looked at once more
        watched.later(seconds)
    watched.machine.counts["symbol_error"] = 2.0
    rows = watched.end()
    assert rows["port_errors", "symbol_error"]["value"] >= 5
    assert "at least" in rows["port_errors", "symbol_error"]["note"]


def test_a_counter_that_cannot_be_read_is_named_and_no_zero() -> None:
    watched = Watched({"symbol_error": None, "link_downed": 0.0})
    assert "symbol_error" in watched.end()["port_watched", ""]["note"]


def test_one_that_monitoring_resets_is_named_and_not_lost() -> None:
    watched = Watched({"symbol_error": 5.0})
    watched.later(1.0)
    watched.machine.counts["symbol_error"] = 0.0
    rows = watched.end()
    reset = rows["port_errors", "symbol_error"]
    assert (reset["value"], reset["labels"]["reset"]) == (None, "yes")
    assert "fell from 5 to 0" in reset["note"]


def test_what_is_lost_after_monitoring_reset_the_counter_counts() -> None:
    watched = Watched({"link_downed": 3.0})
    watched.later(1.0)
    watched.machine.counts["link_downed"] = 1.0
    row = watched.end()["port_errors", "link_downed"]
    assert (row["value"], row["labels"]["reset"]) == (1, "yes")


def test_a_port_that_is_lost_under_load_has_no_zero_errors() -> None:
    watched = Watched()
    watched.later(1.0)
    watched.machine.counts.clear()
    lost = watched.end()["port_errors", "link_downed"]
    assert lost["value"] is None
    assert lost["note"]


def test_a_machine_without_ports_reports_nothing() -> None:
    watched = Watched()
    watched.watch._readings.clear()
    watched.machine.counts.clear()
    watched.machine.up = None
    assert watched.end() == {}


def test_links_and_errors_come_from_sysfs(tmp_path: Path) -> None:
    for adapter, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / adapter / "ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "counters/link_downed").write_text("3\n")
    files = Files(tmp_path)
    assert port_links(files) == {"nic:mlx5_0": True, "nic:mlx5_1": False}
    assert {f.value for f in port_errors(files) if f.labels["counter"] == "link_downed"} == {3.0}


def test_ports_that_containers_get_are_not_watched(tmp_path: Path) -> None:
    for adapter, lent in (("mlx5_0", ""), ("mlx5_2", "physfn"), ("mlx5_3", "sfnum")):
        port = tmp_path / "sys/class/infiniband" / adapter
        (port / "ports/1").mkdir(parents=True)
        (port / "ports/1/state").write_text("1: DOWN\n")
        (port / "device" / lent).mkdir(parents=True)
    files = Files(tmp_path)
    assert set(port_links(files)) == {fact.device for fact in port_errors(files)} == {"nic:mlx5_0"}
