"""``muster db``: the fleet records' database."""

from __future__ import annotations

import typer

from muster.cli.terminal.messages import messages

app = typer.Typer(no_args_is_help=True)


@app.command("upgrade")
@messages
def upgrade() -> None:
    """Create the fleet records, or bring them to this version's schema. Repeating it changes nothing."""
    from muster import store

    before, after = store.engine.upgrade()
    if before == after:
        typer.echo(f"the fleet records are at schema {after} already")
        return
    done = f"the fleet records went from {f'schema {before}' if before else 'nothing'} to schema {after}"
    store.audit.command(done, {"before": before, "after": after})
    typer.echo(done)
