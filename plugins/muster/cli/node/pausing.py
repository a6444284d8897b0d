"""``muster node pause`` and ``muster node resume``: keep all tests away from a node until a day."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Name, Reason, given


@messages
def pause(
    name: Name,
    until: Annotated[str, typer.Option(help="The last day (YYYY-MM-DD, UTC) on which no test starts.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Let no test of a node start until a day has passed; its state and its place in its scheduler stay."""
    from muster import store
    from muster.rules.preview import risks_of_pause

    with rehearsed(dry_run):
        node = store.pauses.pause(name, store.waivers.end_of(until), show.person(who), given(reason))
        typer.echo(f"{name}: its tests {'would be' if dry_run else 'are'} {node.pause}")
        if dry_run:
            lease = store.leases.get(name)
            risks(name, risks_of_pause(node.state, lease.run_id if lease else ""))


@messages
def resume(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """End the pause of a node's tests before its last day."""
    from muster import store

    with rehearsed(dry_run):
        store.pauses.resume(name, show.person(who), given(reason))
        typer.echo(f"{name}: its pause {'would be' if dry_run else 'is'} over")
