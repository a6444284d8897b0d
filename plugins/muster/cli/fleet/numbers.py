"""``muster numbers``: what managers ask for, as it was counted last."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson


def numbers(
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated nodes, not the real ones.")] = False,
    json: AsJson = False,
) -> None:
    """Show MTBI, MTTF, availability, hours in each state and lost, repair times, RMAs and escapes, by SKU."""
    from muster import store
    from muster_reports.digest import tables

    found = [each for each in store.numbers.kept() if each.simulated == simulated]
    if json:
        show.as_json(found[0] if found else {})
        return
    if not found:
        typer.echo("nothing has been counted yet; the DAG peer_statistics counts once an hour")
        return
    typer.echo(f"{found[0].since:%Y-%m-%d} to {show.when(found[0].until)}; repairs and escapes are of a year.")
    for section in tables.tables(found[0]):
        typer.echo(f"\n{section.title}. {section.sentence}")
        show.table(list(section.head), [list(row) for row in section.rows], empty="nothing")
