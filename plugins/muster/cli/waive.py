"""``muster waive``: accept a finding until a date."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Reason, given


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
