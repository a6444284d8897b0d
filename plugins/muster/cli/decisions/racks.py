"""``muster racks``: racks whose NVLink domain needs a person."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Reason, given
from muster.model.racks import HeldRack

app = typer.Typer()


def _shown(rack: HeldRack) -> str:
    return f"{rack.rack} (simulated)" if rack.simulated else rack.rack


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List the racks that are held, and what a block found."""
    from muster import store

    racks = store.racks.held()
    show.answer(
        racks,
        ["rack", "since", "found by", "why"],
        ([_shown(each), show.when(each.since), each.found_by.run_id, each.why] for each in racks),
        json=json,
        empty="no rack is held",
    )


@app.command("release")
@messages
def release(
    rack: Annotated[str, typer.Argument(help="The rack, as the records name it.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Decide that a rack's domain is repaired: its nodes may be validated together again."""
    from muster import store

    with rehearsed(dry_run):
        ended = store.racks.release(rack, show.person(who), given(reason))
        typer.echo(f"rack {rack} {'would be' if dry_run else 'is'} released; it was held, since {ended.why}")
