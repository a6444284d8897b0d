"""``muster node scheduler``: the cluster that allocates a node to users, and the node's name there."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks, stated
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Name, Reason, given
from muster.errors import BadScheduler
from muster.model.schedulers import WITHDRAWN, Place


@messages
def scheduler(
    name: Name,
    reason: Reason,
    cluster: Annotated[str, typer.Option(help="A cluster of MUSTER_SCHEDULERS.")] = "",
    called: Annotated[str, typer.Option(help="Its name there (Slurm: NodeName); default: its name here.")] = "",
    none: Annotated[bool, typer.Option("--none", help="No scheduler: its place ends.")] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Also if its present scheduler has not confirmed that it closed it.")
    ] = False,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Give a node its place in a scheduler, move it to another, or end its place. It is closed there until admitted."""
    from muster.admission import clusters, entry, service

    if bool(cluster) is none or (called and none):
        raise BadScheduler(f"where {name} belongs is not clear: give either --cluster (and --called), or --none")
    there = called or name
    if cluster:
        clusters.check(cluster, [there])
    with rehearsed(dry_run):
        place = entry.assign(name, cluster, there, show.person(who), given(reason), abandon=abandon, dry_run=dry_run)
        stated(name, f"{there} in {cluster}" if place else "in no scheduler", dry_run)
        if dry_run and place is not None and place.wanted == WITHDRAWN:
            risks(name, [f"{there} is closed to new jobs in {cluster} until Muster admits it"])
    if place is not None and not dry_run and (trouble := service.carry_out(name)):
        typer.echo(f"{name}: {place.wanted} waits: {trouble}")


def schedulers(json: AsJson = False) -> None:
    """Show every node's place in a scheduler, the changes that wait, and where a scheduler differs."""
    from muster import store

    places = store.schedulers.places()
    rows = ([each.node, each.cluster, each.name, _state(each), _seen(each)] for each in places)
    empty = "no node has a scheduler; `muster node scheduler NODE --cluster CLUSTER --reason …` gives it one"
    show.answer(places, ["node", "cluster", "there", "state", "shown there"], rows, json=json, empty=empty)


def _state(place: Place) -> str:
    return f"to be {place.wanted}" if place.waits else place.done or "left alone (shadow mode)"


def _seen(place: Place) -> str:
    """How the scheduler shows it, and what else is known of it; who closed it and why is said once."""
    shown = f"{place.shown} since {show.when(place.shown_since)}" if place.shown else ""
    drain, others = place.shown.partition(": ")[2], [place.difference, place.last_error, place.verify, place.question]
    for again in (f": {drain}", f" ({drain})", drain) if drain else ():
        others = [each.replace(again, "") for each in others]
    return "; ".join(filter(None, (shown, *others)))
