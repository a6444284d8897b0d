"""``muster restore``: the fleet records from a back-up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.terminal.messages import messages


@messages
def restore(file: Annotated[Path, typer.Argument(help="What `muster backup` wrote.")]) -> None:
    """Make the fleet records from a back-up, in an empty database; a back-up of an older version is upgraded."""
    from muster import store

    found = store.backup.restore(file)
    made = f"{found.made_at:%Y-%m-%d %H:%M:%S} UTC"
    typer.echo(f"{found.nodes} nodes, {found.rows} rows, as of {made}, by Muster {found.version}")
    print_held(found.held)
    held = {"file": str(file), "made_at": found.made_at.isoformat(), "version": found.version, "rows": found.rows}
    store.audit.command(f"the fleet records were restored from {file} of {made}", held)


def print_held(held: int) -> None:
    """Print what a restore means for nodes that are in service, or about to be. ``held``: their number."""
    typer.echo("what changed since then is not in these records: start all components, then see `muster doctor`")
    if held:
        typer.echo(
            f"nodes in service or about to be: {held}; one that its scheduler does not show open stays closed, "
            "with its row in `muster status`, until `muster node open`"
        )
