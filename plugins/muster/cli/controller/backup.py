"""``muster backup``: all of the fleet records in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.terminal.messages import messages


@messages
def backup(file: Annotated[Path, typer.Argument(help="The file to write: a new one.")]) -> None:
    """Write the fleet records and the key of the certificates into one file, while tests go on. Keep it secret."""
    from muster import store

    done = store.backup.save(file)
    made = f"{done.made_at:%Y-%m-%d %H:%M:%S} UTC"
    # Reported before the event, which records that take no writes, such as a standby's, refuse.
    typer.echo(f"{file}: {done.nodes} nodes, {done.rows} rows of schema {done.schema}, as of {made}")
    held = {"file": str(file), "nodes": done.nodes, "rows": done.rows}
    store.audit.command(f"the fleet records were backed up to {file}", held)
