"""``muster waive`` and ``muster waivers``: accept a finding until a date; list and revoke waivers."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.nodes.adoption import Reason, given
from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho

app = typer.Typer(no_args_is_help=True)


@messages
def waive(
    finding: Annotated[str, typer.Argument(help="The finding's id, as reports and `muster runs show` give it.")],
    until: Annotated[str, typer.Option(help="The last day (YYYY-MM-DD, UTC) on which it holds.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Accept a finding until a date: from the next test on it does not fail a stage, and every report shows the waiver.

    A stage with a waived critical finding is at best WARN, so a named person must approve the node for production.
    """
    from muster import store
    from muster.model.states import SERVING

    with rehearsed(dry_run):
        waiver = store.waivers.give(finding, store.waivers.end_of(until), show.person(who), given(reason))
        what = f"{waiver.rule} of {waiver.metric} on {waiver.subject or f'{waiver.device} of {waiver.node}'}"
        typer.echo(f"waiver {'(not given)' if dry_run else waiver.id}: {what} is waived {waiver}")
        if dry_run:
            risks(waiver.node, [f"{what} no longer fails a test until {waiver.last_day}, however bad it gets"])
    if not dry_run:
        command = "revalidate" if store.nodes.get(waiver.node).state in SERVING else "qualify"
        typer.echo(f"recorded verdicts stay; test again: muster {command} {waiver.node} --reason '…'")


@app.command("list")
def list_(
    node: Annotated[str, typer.Option(help="Only those about this node's machine and parts.")] = "",
    over: Annotated[bool, typer.Option("--over", help="Show expired and revoked ones too.")] = False,
    json: AsJson = False,
) -> None:
    """List the waivers in force."""
    from muster import store

    waivers = store.waivers.find(node=node, over=over)
    if json:
        show.as_json(waivers)
        return
    show.table(
        ["id", "finding", "what", "on", "until", "by", "reason", ""],
        [
            [each.id, each.finding, f"{each.rule} of {each.metric}", each.subject or f"{each.device} of {each.node}",
             str(each.last_day), each.person, each.reason, "revoked" if each.revoked_at else ""]
            for each in waivers
        ],
        empty="nothing is waived",
    )  # fmt: skip


@app.command("revoke")
@messages
def revoke(
    waiver: Annotated[int, typer.Argument(help="The waiver's id, as `muster waivers list` gives it.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """End a waiver early."""
    from muster import store

    with rehearsed(dry_run):
        ended = store.waivers.revoke(waiver, show.person(who), given(reason))
        typer.echo(f"waiver {waiver} of {ended.finding} on {ended.node} {'would be' if dry_run else 'is'} revoked")
