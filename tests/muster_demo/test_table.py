"""Live progress, in a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console

from muster_demo.table import SERVICE, STAGES, Progress, Row, build_table, changes


def row(node: str = "sim-h100-1", state: str = "intake", **stages: str) -> Row:
    return Row(node, True, stages, state, state == "qualified")


def test_the_table_shows_every_stage_and_that_it_is_simulated() -> None:
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(build_table([row(intake="PASS", burn_in="running"), row("host-b", state="qualified")], 83))
    text = console.export_text()
    for word in ("1 of 2 nodes done, 1:23 elapsed", "sim-h100-1", "simulated", "PASS", "running"):
        assert word in text
    assert all(stage.replace("_", "-") in text for stage in STAGES)
    assert "…" not in text


def test_the_table_of_service_fits_a_terminal_too() -> None:
    """With the longest cells that a healthy node goes through."""
    console = Console(file=io.StringIO(), width=80, record=True)
    cells = dict.fromkeys(SERVICE, "admitted") | {"tests": "PASS", "cluster": "running"}
    console.print(build_table([row(state="cluster_validation", **cells)], 83, SERVICE))
    text = console.export_text()
    assert all(column in text for column in SERVICE)
    assert "cluster_validation" in text
    assert "simulated" in text
    assert "…" not in text


def test_changes_are_reported_once() -> None:
    first = [row(intake="running")]
    second = [row(intake="PASS", state="burn_in")]
    assert changes([], first) == ["sim-h100-1 intake: running"]
    assert changes(first, second) == ["sim-h100-1 intake: PASS", "sim-h100-1 is now burn_in"]
    assert changes(second, second) == []


def test_where_there_is_no_terminal_each_change_is_a_line() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=80)) as progress:
        progress.show([row(intake="running")], 2)
        progress.show([row(intake="running")], 4)
        progress.show([row(intake="PASS", state="burn_in")], 65)
    assert out.getvalue().splitlines() == [
        "[ 0:02] sim-h100-1 intake: running",
        "[ 1:05] sim-h100-1 intake: PASS",
        "[ 1:05] sim-h100-1 is now burn_in",
    ]
