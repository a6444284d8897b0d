"""``muster node remove``: a machine leaves the fleet, and what Muster put on it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks, stated
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Name, Reason, given
from muster.errors import IllegalMove, MusterError
from muster.model.nodes import Node
from muster.model.schedulers import Place
from muster.model.states import State


@messages
def remove(
    name: Name,
    reason: Reason,
    clean: Annotated[bool, typer.Option("--clean", help="Delete Muster's files on the node too, over SSH.")] = False,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Retire a node that leaves the fleet, and end its place in a scheduler, closed there. Its history stays."""
    from muster import store
    from muster.admission import entry
    from muster.rules.preview import risks_of_move

    node = store.nodes.get(name)
    retired = node.state is State.RETIRED
    if lease := store.leases.get(name):
        raise MusterError(f"{name} is leased by run {lease.run_id}: end that run first")
    with rehearsed(dry_run):
        if not retired:
            entry.move(name, State.RETIRED, show.person(who), given(reason), dry_run=dry_run)
        place = store.schedulers.place(name)
        if place is not None and not dry_run:
            try:
                entry.assign(name, "", "", show.person(who), given(reason))
            except IllegalMove as error:
                raise MusterError(f"{name} is retired, and keeps its place: {error}") from None
        stated(name, f"retired{f', and closed in {place.cluster} for good' if place else ''}", dry_run)
        if dry_run and clean:
            typer.echo(f"{name}: Muster's files on it would be deleted")
        if dry_run:
            moved = () if retired else risks_of_move(node.state, State.RETIRED)
            risks(name, [*moved, *_at_scheduler(place), "its records and mails stay as long as all others"])
    if clean and not dry_run:
        _clean(node)


def _at_scheduler(place: Place | None) -> Iterator[str]:
    """Yields what may stand against closing the node's place in its scheduler."""
    from muster.admission import service
    from muster.rules.idle.selection import Idle

    unanswered: dict[str, Idle] = {}
    seen = service.look([place.node], unanswered, jobs=False).get(place.node) if place else None
    if place and seen and seen.foreign and not seen.ours:
        yield f"Muster's closing takes the place of another's in {place.cluster}: {seen.foreign}"
    if place and unanswered:
        yield f"it keeps its place until {place.cluster} has closed it: {unanswered[place.node].why}"


def _clean(node: Node) -> None:
    from muster.cli.doctor.connections import logged_in
    from muster.remote.job import jobs

    with logged_in(node) as client:
        left = jobs.clean(client, node.work_dir, node.name, node.launch)
    typer.echo(f"{node.name}: {left or f'Muster left no file in {node.work_dir}'}")
