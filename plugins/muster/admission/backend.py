"""What Muster asks of the scheduler that hands nodes out, and tells it: Slurm, Kubernetes, or nobody."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

from muster.lifecycle.selection import Idle
from muster.lifecycle.transitions import State

if TYPE_CHECKING:
    from muster.records import NodeRecord

log = logging.getLogger(__name__)

BUSY = "busy"
"""A node's label by which a fleet without a connected scheduler says whether somebody uses it."""

NOT_BUSY = frozenset({"", "0", "no", "false", "idle"})


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Whether a node is allocated; ``by`` says to whom or what, for a sentence ("Slurm job 4711 of alice")."""

    allocated: bool
    by: str = ""


class AdmissionBackend(Protocol):
    """A scheduler. Every method may be called again after it was done, and raises MusterError, in one sentence, if the
    scheduler cannot be asked or told: then the node is neither loaded nor thought to be in or out of service.
    """

    def admit(self, node: str) -> None:
        """Let the scheduler hand the node out. The records have it in production already."""

    def withdraw(self, node: str, reason: str) -> None:
        """Let the scheduler hand the node out no more; what runs on it may end in peace."""

    def allocation(self, node: str) -> Allocation:
        """Whether the node is allocated, or may be."""

    def idle(self, node: str) -> Idle:
        """Whether the node is in production and nobody uses it, so that it may be tested for a while."""


class RecordOnly:
    """No scheduler is connected: our own records say what is in production, and the label ``busy`` who is at work.

    For a test that a person asks for, a production node without that label counts as allocated, since nothing here can
    tell that it is not. For idle revalidation, which a fleet without a scheduler needs as well, it counts as idle. The
    guard on the node, which looks for anybody's processes, has the last word in either case.
    """

    def admit(self, node: str) -> None:
        """Nobody is to be told. Raises UnknownNode."""
        log.info("%s is admitted: no scheduler is connected, the records alone say so", _record(node).name)

    def withdraw(self, node: str, reason: str) -> None:
        """Nobody is to be told. Raises UnknownNode."""
        log.info(
            "%s is withdrawn (%s): no scheduler is connected, the records alone say so", _record(node).name, reason
        )

    def allocation(self, node: str) -> Allocation:
        """From the node's label and state. Raises UnknownNode."""
        record = _record(node)
        said = record.labels.get(BUSY)
        if _busy(record):
            return Allocation(True, f"its label {BUSY} says {said!r}")
        if record.state is State.PRODUCTION and said is None:
            return Allocation(True, "production (no scheduler is connected that could say whether it is idle)")
        return Allocation(False)

    def idle(self, node: str) -> Idle:
        """From the node's state, label and lease. Raises UnknownNode."""
        from muster import records

        record = _record(node)
        if record.state is not State.PRODUCTION:
            return Idle(False, f"it is in {record.state}")
        if _busy(record):
            return Idle(False, f"its label {BUSY} says {record.labels[BUSY]!r}")
        lease = records.get_lease(node)
        return Idle(False, f"run {lease.run_id} of {lease.dag_id} holds it") if lease else Idle(True)


def backend() -> AdmissionBackend:
    """The backend of this fleet."""
    return RecordOnly()


def _record(node: str) -> NodeRecord:
    from muster import records

    return records.get_node(node)


def _busy(node: NodeRecord) -> bool:
    return node.labels.get(BUSY, "").strip().lower() not in NOT_BUSY
