"""Whether a node is somebody's right now, as the scheduler that hands it out knows: Slurm, Kubernetes, or nobody."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from muster.lifecycle import State


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Whether a node is allocated; ``by`` says to whom or what, for a sentence ("Slurm job 4711 of alice")."""

    allocated: bool
    by: str = ""


class AdmissionBackend(Protocol):
    """What Muster asks of a scheduler."""

    def allocation(self, node: str) -> Allocation:
        """Whether the node is allocated. Raises MusterError if that cannot be told: then the node is not loaded."""


class RecordOnly:
    """No scheduler is connected: our own records say what is in production, and whoever uses it is not known.

    A production node counts as allocated, since nothing here can tell that it is not; any other is free.
    """

    def allocation(self, node: str) -> Allocation:
        """From the node's state. Raises UnknownNode."""
        from muster import records

        if records.get_node(node).state is State.PRODUCTION:
            return Allocation(True, "production (no scheduler is connected that could say whether it is idle)")
        return Allocation(False)


def backend() -> AdmissionBackend:
    """The backend of this fleet."""
    return RecordOnly()
