"""``muster node lemon`` and ``muster node lemons``: nodes that fail again and again, marked by a person."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Name, Reason, given


@messages
def lemon(
    name: Name,
    reason: Reason,
    clear: Annotated[bool, typer.Option("--clear", help="Take the mark off.")] = False,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Mark a node as a lemon: it fails again and again, and enters production by a person's decision alone."""
    from muster import store

    with rehearsed(dry_run):
        if clear:
            store.lemons.clear(name, show.person(who), given(reason))
            typer.echo(f"{name} {'would be' if dry_run else 'is'} no lemon any more")
            return
        node = store.lemons.mark(name, show.person(who), given(reason))
        typer.echo(f"{name} {'would be' if dry_run else 'is'} {node.lemon}; its state stays {node.state}")


def lemons(json: AsJson = False) -> None:
    """List the nodes that are marked as lemons, and those that failed in service twice or more, the likeliest first."""
    from muster import store
    from muster.rules import lemons as rules
    from muster.rules.spares import PERIOD

    now = datetime.datetime.now(datetime.UTC)
    found = rules.offenders(store.failures.since(now - PERIOD), store.nodes.find(), now)
    if json:
        show.as_json(found)
        return
    show.table(
        ["node", "score", "failures", "of", "the last", "mark"],
        [
            [
                each.node,
                f"{each.score:.2f}",
                each.times,
                each.groups,
                show.when(each.last) if each.last else "",
                each.mark,
            ]
            for each in found
        ],
        empty="no node is marked, and none failed in service twice in the year with its parts still in place",
    )
