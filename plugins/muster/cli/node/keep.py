"""``muster node keep``: a decision about a held verdict."""

from __future__ import annotations

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Name, Reason, given


@messages
def keep(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """Keep a node in service although a verdict against it is held."""
    from muster import store

    with rehearsed(dry_run):
        held = store.nodes.get(name).held_run
        node = store.withdrawals.keep_in_service(name, show.person(who), given(reason), held=held)
        typer.echo(f"{node.name} {'would stay' if dry_run else 'stays'} in {node.state} despite the verdict of {held}")
        if dry_run:
            risks(name, ["its findings stay open, and no decision about them is requested again"])
