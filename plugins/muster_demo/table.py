"""Live progress: a table of node × stage, or a line for each change where stdout is no terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster.model.stages import STAGES
from muster.rules.lifecycle.decisions import is_person

"""The columns while nodes are qualified."""

SERVICE = ("tests", "cluster", "production", "revalidation")
"""The columns afterwards."""

STYLES = {
    "PASS": "green",
    "PROVISIONAL": "green",
    "WARN": "yellow",
    "INCONCLUSIVE": "yellow",
    "FAIL": "bold red",
    "SKIPPED": "dim",
    "running": "cyan",
    "qualified": "green",
    "production": "bold green",
    "admitted": "green",
    "approved": "green",
    "asked": "bold yellow",
    "kept out": "bold red",
    "quarantine": "bold red",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One node: a cell for each column (a verdict, "running", …), and its state."""

    node: str
    simulated: bool
    cells: Mapping[str, str]
    state: str
    done: bool


def production_cell(entered_by: str) -> str:
    """How a node entered production: "admitted" by the gate, "approved" by a person, "" if it did not."""
    if not entered_by:
        return ""
    return "approved" if is_person(entered_by) else "admitted"


def clock(seconds: float) -> str:
    """Elapsed time as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def build_table(rows: Sequence[Row], elapsed_s: float, columns: Sequence[str] = STAGES) -> Table:
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
    for column in columns:
        table.add_column(column.replace("_", "-"), no_wrap=True)
    table.add_column("state", no_wrap=True)
    for row in rows:
        found = (row.cells.get(column, "") for column in columns)
        cells = [Text(cell, STYLES.get(cell, "")) for cell in found]
        table.add_row(
            row.node, "simulated" if row.simulated else "real", *cells, Text(row.state, STYLES.get(row.state, ""))
        )
    return table


def changes(before: Sequence[Row], after: Sequence[Row], columns: Sequence[str] = STAGES) -> list[str]:
    """A line for each difference."""
    known = {row.node: row for row in before}
    lines = []
    for row in after:
        last = known.get(row.node)
        for column in columns:
            cell = row.cells.get(column, "")
            if cell and (last is None or last.cells.get(column, "") != cell):
                lines.append(f"{row.node} {column.replace('_', '-')}: {cell}")
        if last is not None and last.state != row.state:
            lines.append(f"{row.node} is now {row.state}")
    return lines


class Progress:
    """Shows rows as they change; use as a context manager."""

    def __init__(self, console: Console, columns: Sequence[str] = STAGES) -> None:
        self.console = console
        self.columns = columns
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
        """Show the current rows."""
        if self.live is not None:
            self.live.update(build_table(rows, elapsed_s, self.columns), refresh=True)
        else:
            for line in changes(self.rows, rows, self.columns):
                self.console.print(f"[{clock(elapsed_s):>5}] {line}", markup=False, highlight=False, soft_wrap=True)
        self.rows = rows
