"""How a scheduler differs from the records, and what Muster changes then."""

from __future__ import annotations

import datetime
import enum

from muster import store
from muster.admission.backend import Seen
from muster.model.schedulers import ABSENT, ADMITTED, CLOSED, OPEN, WITHDRAWN, Place

_SECOND = datetime.timedelta(seconds=1)
"""Schedulers record the second in which a node was created."""
_REMOVED = (
    "it is admitted, and somebody removed Muster's marks from it in {cluster}: a whole test that passes sets them "
    "again (`muster revalidate {node} --reason …`), or withdraw it with `muster node move {node} quarantine --reason …`"
)
_OTHER = (
    "it is admitted, and {cluster} shows it without Muster's marks and newer than its last test: perhaps another "
    "machine"
)


class Do(enum.Enum):
    """What Muster changes about a node in addition to the changes that its state requires."""

    NOTHING = enum.auto()
    OPEN = enum.auto()
    CLOSE_AGAIN = enum.auto()
    NEW_REASON = enum.auto()
    MARK_AGAIN = enum.auto()


def shown_as(seen: Seen | None) -> str:
    """Returns how the scheduler shows a node, in the words of the node's page and history. Pure."""
    if seen is None:
        return ABSENT
    if seen.foreign:
        return f"{seen.apart or 'closed'}: {seen.foreign}"
    return seen.apart or (OPEN if seen.open else CLOSED)


def difference_of(place: Place, seen: Seen | None) -> str:
    """Returns how the scheduler differs from the records, "" if it does not, or a change still waits. Pure."""
    if seen is None:
        return f"{place.cluster} does not know {place.name}"
    if place.waits or seen.apart:
        return ""
    if place.wanted == ADMITTED and not seen.open:
        return f"it is admitted, and closed in {place.cluster}: {seen.foreign or 'by Muster'}"
    if not place.wanted and seen.ours:
        return f"it serves in shadow mode, and {place.cluster} shows it closed by Muster: verify it, or open it there"
    if place.wanted == WITHDRAWN and seen.open:
        return f"it is in {place.state}, and open in {place.cluster}"
    return ""


def next_change(place: Place, seen: Seen | None, lost: str) -> Do:
    """Returns what to change, given what the scheduler shows. ``lost``: from ``why_lost``. Pure."""
    if seen is None:
        return Do.NOTHING
    if _held(place) and seen.open and not lost:
        return Do.OPEN
    if place.waits:
        return Do.NOTHING
    if place.wanted == WITHDRAWN:
        # A person lifted the drain, or it was lost (a reboot with nextstate=RESUME, a new Node object), but only
        # Muster admits a node. A node that is away is drained for its return.
        if not seen.ours and (seen.both or not seen.foreign):
            return Do.CLOSE_AGAIN
        # We closed it for a reason that has changed: a repair, a test or a person moved the node since. Not if the
        # records were restored: they may lack the reason, which then only the scheduler still shows.
        outdated = place.done_why != place.why and place.held_since is None
        return Do.NEW_REASON if outdated and seen.ours else Do.NOTHING
    # Set again what was lost by `scontrol reconfigure`, a new node object, or a scheduler that died before storing it.
    # By the queue, since the node may have been withdrawn meanwhile.
    drained = place.admitted and seen.drain and seen.drain == place.lifted
    return Do.MARK_AGAIN if drained or (_marks_lost(place, seen) and not lost) else Do.NOTHING


def _held(place: Place) -> bool:
    return bool(place.held) and place.wanted == ADMITTED


def _marks_lost(place: Place, seen: Seen) -> bool:
    return seen.open and (place.admitted or _held(place)) and not seen.marked


def why_lost(place: Place, seen: Seen | None) -> str:
    """Returns why an admitted node's lost marks are not set again; "" if it has them, or if its tests are newer than
    the loss and they are set again.
    """
    if seen is None or not _marks_lost(place, seen):
        return ""
    # They were set on this same object, and no later test shows again that it is qualified.
    same = seen.created is not None and place.done_at is not None and seen.created + _SECOND <= place.done_at
    removed = same and not _tested_since(place.node, place.done_at)
    other = not removed and not _tested_since(place.node, seen.created)
    lost = _REMOVED if removed else _OTHER if other else ""
    return lost.format(cluster=place.cluster, node=place.node)


def _tested_since(node: str, created: datetime.datetime | None) -> bool:
    """Whether the node's certificate is based on tests that began after ``created``; true if that is None."""
    found = store.certificates.newest(node)
    if created is None or found is None or found.tested_since is None:
        return created is None
    return found.tested_since >= created + _SECOND
