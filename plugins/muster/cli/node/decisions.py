"""``muster node move``, ``keep``, ``open``, ``pause``, ``resume``, ``lemon``, ``verify``: a person's decisions."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, decided
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Name, Reason, given
from muster.model.states import State


@messages
def move(
    name: Name,
    to: Annotated[State, typer.Argument(help="The state to move it to.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Move a node on a person's decision; into production only if the admission gate does not refuse it.

    For a node that is in production already, it accepts what its last test left unjudged.
    """
    from muster.admission import changes

    decided(name, lambda: changes.move(name, to, show.person(who), given(reason), dry_run=dry_run), dry_run)


@messages
def keep(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """Keep a node in service although a verdict against it is held."""
    from muster import store
    from muster.admission import changes

    held = store.nodes.get(name).held_run
    decided(name, lambda: changes.keep(name, held, show.person(who), given(reason)), dry_run)


@messages
def let_open(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """Let a node's scheduler open it again after the records were restored from a back-up."""
    from muster.admission import changes

    decided(name, lambda: changes.let_open(name, show.person(who), given(reason), dry_run=dry_run), dry_run)


@messages
def pause(
    name: Name,
    until: Annotated[str, typer.Option(help="The last day (YYYY-MM-DD, UTC) on which no test starts.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Let no test of a node start until a day has passed; its state and its place in its scheduler stay."""
    from muster.admission import changes

    decided(name, lambda: changes.pause(name, until, show.person(who), given(reason)), dry_run)


@messages
def resume(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """End the pause of a node's tests before its last day."""
    from muster.admission import changes

    decided(name, lambda: changes.resume(name, show.person(who), given(reason)), dry_run)


@messages
def lemon(
    name: Name,
    reason: Reason,
    clear: Annotated[bool, typer.Option("--clear", help="Take the mark off.")] = False,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Mark a node as a lemon: it fails again and again, and enters production by a person's decision alone."""
    from muster.admission import changes

    change = changes.unmark if clear else changes.mark
    decided(name, lambda: change(name, show.person(who), given(reason)), dry_run)


@messages
def verify(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """End a node's shadow mode on a person's decision, without a test."""
    from muster.admission import changes

    decided(name, lambda: changes.verify(name, show.person(who), given(reason)), dry_run)
