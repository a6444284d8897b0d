"""``muster waivers``: list and revoke accepted findings."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import ROWS_MAX, AsJson, AsWho, Reason, given

app = typer.Typer()


@app.command("list")
def list_(
    node: Annotated[str, typer.Option(help="Only those about this node's machine and parts.")] = "",
    over: Annotated[bool, typer.Option("--over", help="Show expired and revoked ones too.")] = False,
    json: AsJson = False,
) -> None:
    """List the waivers in force."""
    from muster import store

    waivers = store.waivers.find(node=node, over=over)
    show.answer(
        waivers,
        ["id", "finding", "what", "on", "observed", "until", "by", "reason", ""],
        (
            [each.id, each.finding, each.what, each.subject or f"{each.device} of {each.node}",
             each.observed, str(each.last_day), each.person, each.reason, "revoked" if each.revoked_at else ""]
            for each in waivers
        ),
        json=json, empty="nothing is waived",
    )  # fmt: skip


@app.command("revoke")
@messages
def revoke(
    waiver: Annotated[int, typer.Argument(help="The waiver's id, as `muster waivers list` gives it.", max=ROWS_MAX)],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """End a waiver early."""
    from muster import store

    with rehearsed(dry_run):
        ended = store.waivers.revoke(waiver, show.person(who), given(reason))
        typer.echo(f"waiver {waiver} of {ended.finding} on {ended.node} {'would be' if dry_run else 'is'} revoked")
