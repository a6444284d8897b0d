"""A person's decisions about one node, from its page or the command line: each is made, and stated with its effects."""

from __future__ import annotations

import dataclasses
import shlex

from muster import store
from muster.admission import entry
from muster.admission.service import carry_out
from muster.errors import MusterError
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.preview import risks_of_move, risks_of_pause
from muster.settings import settings
from muster_reports import advice


@dataclasses.dataclass(frozen=True)
class Change:
    """A change that was made: ``sentence`` states it; ``effects``: on scheduler, certificate and mail."""

    sentence: str
    risks: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()


def move(node: str, to: State, person: str, reason: str, *, dry_run: bool) -> Change:
    """Move the node, as ``entry.move`` does."""
    before = store.nodes.get(node)
    risks, effects = risks_of_move(before.state, to, shadow=before.shadow), entry.effects(before, to)
    moved = entry.move(node, to, person, reason, dry_run=dry_run)
    lacks = placeless(before)
    what = f"it goes from {before.state} to {moved.state}"
    if moved.state is before.state:
        what = f"what is known of it in {to} is accepted{', and its shadow mode ends' if before.shadow else ''}"
    if before.held_run and not moved.held_run:
        what += "; the verdict is no longer held"
    return Change(f"{what}{lacks and f'; {lacks}'}", risks, effects)


def placeless(before: Node) -> str:
    """Returns a sentence if a retired node comes back without its place in a scheduler, which ended; else ""."""
    if before.state is not State.RETIRED or not settings().schedulers or store.schedulers.place(before.name):
        return ""
    command = f"muster node scheduler {shlex.quote(before.name)} --cluster … --reason …"
    return f"it has no place in a scheduler, and serves in the records alone without `{command}`"


def waive(finding: str, until: str, person: str, reason: str, *, of: str = "") -> Change:
    """Accept a finding until a day has passed. ``of``: the node of which it must be an open finding; "" for any.

    Raises MusterError, and as ``store.waivers.give``.
    """
    end = store.waivers.end_of(until)
    if of and finding not in {each.finding.id for each in store.verdicts.open_findings(of)}:
        raise MusterError(f"{of} has no open finding {finding!r}")
    given = store.waivers.give(finding, end, person, reason)
    what = f"{given.what} of {given.subject or f'{given.device} of {given.node}'}"
    unless = (
        f"unless it is clearly worse than now, or another: {given.observed}" if given.extents else "however far it goes"
    )
    again = advice.way_to_test(given.node, store.nodes.get(given.node).state)
    return Change(
        f"{what} is waived {given}; recorded verdicts stay. Then {again}",
        (f"{what} no longer fails a test until {given.last_day}, {unless}",),
    )


def keep(node: str, held: RunKey | None, person: str, reason: str) -> Change:
    """Keep a node in service although the verdict of the run ``held`` would withdraw it."""
    kept = store.withdrawals.keep_in_service(node, person, reason, held=held)
    return Change(
        f"it stays in {kept.state} despite the verdict of {held}",
        ("its findings stay open, and no decision about them is requested again",),
    )


def let_open(node: str, person: str, reason: str, *, dry_run: bool) -> Change:
    """Let the node's scheduler open it after the records were restored from a back-up."""
    opened = store.schedulers.let_open(node, person, reason)
    trouble = "" if dry_run else carry_out(node)
    return Change(
        f"its scheduler may open it, as it is in {opened.state}" + (f"; it waits: {trouble}" if trouble else ""),
        ("what was found of it since the back-up was made is not in the records",),
    )


def pause(node: str, until: str, person: str, reason: str) -> Change:
    """Keep all tests away from the node until a day has passed."""
    paused, lease = store.pauses.pause(node, store.waivers.end_of(until), person, reason), store.leases.get(node)
    return Change(f"its tests are {paused.pause}", risks_of_pause(paused.state, lease.run_id if lease else ""))


def resume(node: str, person: str, reason: str) -> Change:
    """End the pause of the node's tests."""
    store.pauses.resume(node, person, reason)
    return Change("its pause is over")


def mark(node: str, person: str, reason: str) -> Change:
    """Mark the node as a lemon."""
    marked = store.lemons.mark(node, person, reason)
    risk = f"its state stays {marked.state}; once out of production, it enters it by a person's decision alone"
    return Change(f"it is {marked.lemon}", (risk,))


def unmark(node: str, person: str, reason: str) -> Change:
    """Remove the lemon mark from the node."""
    store.lemons.clear(node, person, reason)
    return Change("it is no lemon any more")


def verify(node: str, person: str, reason: str) -> Change:
    """End the node's shadow mode without a test."""
    done = store.adoption.verify(node, person, reason)
    return Change(done, ("it was never proven, and a FAIL will withdraw it from production",))
