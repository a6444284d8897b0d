"""``muster digest``: what happened to the fleet, or to one team's part of it, in a period."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, utc
from muster.errors import MusterError


def digest(
    days: Annotated[float, typer.Option(help="How far back.", min=0.01, max=3660.0)] = 7.0,
    label: Annotated[list[str] | None, typer.Option(help="NAME=TEXT; only nodes with it; may be repeated.")] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated nodes, not the real ones.")] = False,
    until: Annotated[datetime.datetime | None, typer.Option(help="When the period ends, in UTC; now.")] = None,
    rows: Annotated[str, typer.Option(help="List all that the section of this title counts.")] = "",
    html: Annotated[
        bool, typer.Option("--html", help="Write the whole digest as HTML to standard output: into a file of yours.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show what was delivered, what failed and why, interruptions, hours lost, coverage, repeat offenders."""
    from muster import store
    from muster_reports.digest import render
    from muster_reports.digest.facts import Section

    if html and (rows or json):
        raise MusterError("--html writes the whole digest as HTML: leave --rows and --json out")
    pairs = [each.partition("=") for each in label or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise MusterError(f"--label {wrong[0]} cannot be read; write --label team=training")
    now = _next_second()
    end = utc(until) if until else now
    if end > now:
        raise MusterError(
            f"--until {show.when(end)} is in the future: nothing is recorded yet that a digest could count"
        )
    labels = {name: text for name, _, text in pairs}
    found = store.ledger.fleet(end - datetime.timedelta(days=days), end, simulated=simulated, labels=labels)
    if labels and not found.nodes:
        have = any(node.simulated == simulated and labels.items() <= node.labels.items() for node in store.nodes.find())
        raise MusterError(
            f"no {'simulated' if simulated else 'real'} node has the labels {', '.join(label or ())}"
            + (f" and was enrolled before {show.when(end)}" if have else "")
        )
    sections = render.all_sections(found)
    made = render.render(found, ", ".join(label or ()), simulated=simulated)
    if html:
        typer.echo(made.html)
        return
    if rows:
        known = {title.lower(): title for title in render.titles()}
        if rows.lower() not in known:
            raise MusterError(f"no section {rows!r} lists what it counts: give one of {', '.join(known.values())}")
        empty = Section(known[rows.lower()], "")
        chosen = next((each for each in sections if each.title == empty.title), empty)
        named = [dict(zip(chosen.columns, row, strict=True)) for row in chosen.behind]
        show.answer(named, chosen.columns, chosen.behind, json=json, empty="it counts nothing")
        return
    if json:
        show.as_json(sections)
        return
    typer.echo(made.text)


def _next_second() -> datetime.datetime:
    """The end of a period up to now, as ``--until`` can give it again."""
    from muster import store

    return store.clock.now().replace(microsecond=0) + datetime.timedelta(seconds=1)
