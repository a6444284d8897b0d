"""How a scheduler differs from the records."""

from __future__ import annotations

import datetime

from muster import store
from muster.admission.backend import Seen
from muster.model.schedulers import ADMITTED, CLOSED, OPEN, WITHDRAWN, Place

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


def shown_as(seen: Seen | None) -> str:
    """Returns how the scheduler shows a node, in the words of the node's page and history. Pure."""
    if seen is None:
        return "not at all"
    if seen.apart:
        return seen.apart
    if seen.open:
        return OPEN
    return f"closed: {seen.foreign}" if seen.foreign else CLOSED


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


def why_lost(place: Place, created: datetime.datetime | None) -> str:
    """Returns why the marks that an admitted node has lost are not set again, "" if they are: its tests are newer.

    ``created``: since when the scheduler has the node, where it records that.
    """
    # Set on this very object, and no later test says again that it is qualified.
    same = created is not None and place.done_at is not None and created + _SECOND <= place.done_at
    removed = same and not _tested_since(place.node, place.done_at)
    other = not removed and not _tested_since(place.node, created)
    lost = _REMOVED if removed else _OTHER if other else ""
    return lost.format(cluster=place.cluster, node=place.node)


def _tested_since(node: str, created: datetime.datetime | None) -> bool:
    """Whether the node's certificate rests on tests that began after ``created``, where the scheduler records it."""
    found = store.certificates.newest(node)
    if created is None or found is None or found.tested_since is None:
        return created is None
    return found.tested_since >= created + _SECOND
