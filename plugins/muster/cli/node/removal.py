"""``muster node remove``: a machine leaves the fleet, and what Muster put on it goes."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks, stated
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Name, Reason, given
from muster.errors import MusterError
from muster.model.nodes import Node
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
        # In a dry run the move above is rolled back already, and the scheduler was not asked to close the node.
        rehearsing = dry_run and not retired
        if place is not None and place.waits and not rehearsing:
            raise MusterError(
                f"{name} is retired, and {place.cluster} has not closed it yet: {place.last_error}; repeat this later, "
                f"or give that place up: `muster node scheduler {name} --none --abandon --reason …`"
            )
        if place is not None and not rehearsing:
            entry.assign(name, "", "", show.person(who), given(reason))
        stated(name, f"retired{f', and closed in {place.cluster} for good' if place else ''}", dry_run)
        if dry_run and clean:
            typer.echo(f"{name}: Muster's files on it would be deleted")
        if dry_run:
            moved = () if retired else risks_of_move(node.state, State.RETIRED)
            risks(name, [*moved, "its records and mails stay as long as all others"])
    if clean and not dry_run:
        _clean(node)


def _clean(node: Node) -> None:
    from muster.cli.doctor.connections import logged_in
    from muster.remote import jobs

    with logged_in(node) as client:
        left = jobs.clean(client, node.work_dir, node.name, node.launch)
    typer.echo(f"{node.name}: {left or f'Muster left no file in {node.work_dir}'}")
