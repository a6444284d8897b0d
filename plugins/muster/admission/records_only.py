"""The backend of a node without a connected scheduler: its recorded state and its label ``busy`` decide."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping

from muster import store
from muster.admission.backend import AdmissionBackend, Mark, Seen
from muster.model.nodes import Node
from muster.model.states import State

log = logging.getLogger(__name__)

BUSY = "busy"
"""A node's label that marks it as in use."""

NOT_BUSY = frozenset({"", "0", "no", "false", "idle"})


_UNKNOWN = "production (without a connected scheduler, whether it is idle is unknown)"


class RecordsOnly(AdmissionBackend):
    """Changes nothing; nodes have their own names.

    A production node without that label counts as allocated for a test that a person starts, and as idle for idle
    revalidation. In either case the guard on the node then looks for running processes.
    """

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """From the nodes' states and labels."""
        return {name: seen(node, node.state is State.PRODUCTION) for name, node in store.nodes.named(names).items()}

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Does nothing."""
        log.info("%s is admitted: no scheduler is connected, only the records change", name)
        return ""

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Does nothing."""
        log.info("%s is withdrawn (%s): no scheduler is connected, only the records change", name, reason)


def seen(node: Node, serves: bool) -> Seen:
    """Returns a node that no scheduler shows, open if it ``serves``: only its label says whether it is in use."""
    busy = node.labels.get(BUSY)
    return Seen(
        open=serves,
        ours=not serves,
        used_by="" if (busy or "").strip().lower() in NOT_BUSY else f"its label {BUSY} is {busy!r}",
        unsure=_UNKNOWN if serves and busy is None else "",
    )
