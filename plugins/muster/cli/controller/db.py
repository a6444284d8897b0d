"""``muster db``: the fleet records' database."""

from __future__ import annotations

import typer

from muster.cli.controller.restore import print_held
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages

app = typer.Typer()


@app.command("upgrade")
@messages
def upgrade() -> None:
    """Create the fleet records and the key of the certificates, or bring the records to this version's schema.

    Repeating it changes nothing. Run it as the user of the components, to whom the key belongs.
    """
    from muster import store

    before, after = store.engine.upgrade()
    if made := store.certificates.make_key():
        typer.echo(f"the key of the certificates is made: {made}")
    if before == after:
        typer.echo(f"the fleet records are at schema {after} already")
        return
    done = f"the fleet records went from {f'schema {before}' if before else 'nothing'} to schema {after}"
    store.audit.command(done, {"before": before, "after": after})
    typer.echo(done)


@app.command("restored")
@messages
def restored(dry_run: DryRun = False) -> None:
    """Let no scheduler open a node by fleet records that came back otherwise than by `muster restore`.

    Run it after pg_restore and `muster db upgrade`, before any component starts.
    """
    from muster import store

    with rehearsed(dry_run):
        print_held(store.backup.restored())
