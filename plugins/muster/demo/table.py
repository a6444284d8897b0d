"""Live progress: a table of node × stage that fills in, or, where stdout is no terminal, a line for each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

STAGES = ("intake", "burn_in", "integrity", "performance", "thermal")

STYLES = {
    "PASS": "green",
    "PROVISIONAL": "green",
    "WARN": "yellow",
    "INCONCLUSIVE": "yellow",
    "FAIL": "bold red",
    "SKIPPED": "dim",
    "running": "cyan",
    "qualified": "green",
    "quarantine": "bold red",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known of a node now: a word for each stage (a verdict, "running" or ""), and its state."""

    node: str
    simulated: bool
    stages: Mapping[str, str]
    state: str
    done: bool


def clock(seconds: float) -> str:
    """Elapsed time as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def build_table(rows: Sequence[Row], elapsed_s: float) -> Table:
    """The table as rich draws it."""
    done = sum(row.done for row in rows)
    # Narrow enough for a terminal of 80 columns, as long as nothing is inconclusive.
    table = Table(
        title=f"{done} of {len(rows)} nodes done, {clock(elapsed_s)} elapsed",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("node", no_wrap=True)
    table.add_column("hardware", no_wrap=True)
    for stage in STAGES:
        table.add_column(stage.replace("_", "-"), no_wrap=True)
    table.add_column("state", no_wrap=True)
    for row in rows:
        cells = [Text(row.stages.get(stage, ""), STYLES.get(row.stages.get(stage, ""), "")) for stage in STAGES]
        table.add_row(
            row.node, "simulated" if row.simulated else "real", *cells, Text(row.state, STYLES.get(row.state, ""))
        )
    return table


def changes(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """What is new since the last look, a line each."""
    known = {row.node: row for row in before}
    lines = []
    for row in after:
        last = known.get(row.node)
        for stage in STAGES:
            word = row.stages.get(stage, "")
            if word and (last is None or last.stages.get(stage, "") != word):
                lines.append(f"{row.node} {stage.replace('_', '-')}: {word}")
        if last is not None and last.state != row.state:
            lines.append(f"{row.node} is now {row.state}")
    return lines


class Progress:
    """Shows rows as they change; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: Sequence[Row] = ()
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, rows: Sequence[Row], elapsed_s: float) -> None:
        """Show the fleet as it stands now."""
        if self.live is not None:
            self.live.update(build_table(rows, elapsed_s), refresh=True)
        else:
            for line in changes(self.rows, rows):
                self.console.print(f"[{clock(elapsed_s):>5}] {line}", markup=False, highlight=False, soft_wrap=True)
        self.rows = rows
