"""The interface to the scheduler that allocates nodes (Slurm, Kubernetes), and the backend without one."""

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
"""A node's label that marks it as in use in a fleet without a connected scheduler."""

NOT_BUSY = frozenset({"", "0", "no", "false", "idle"})


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Whether a node is allocated; ``by``: to whom or what ("Slurm job 4711 of alice")."""

    allocated: bool
    by: str = ""


class AdmissionBackend(Protocol):
    """A scheduler. Every method is idempotent and raises MusterError if the
    scheduler does not answer: then the node is not tested, and its state in the scheduler is unknown.
    """

    def admit(self, node: str) -> None:
        """Let the scheduler allocate the node, which the records have in production already."""

    def withdraw(self, node: str, reason: str) -> None:
        """Stop the scheduler from allocating the node; running jobs may finish."""

    def allocation(self, node: str) -> Allocation:
        """Whether the node is allocated, or may be."""

    def idle(self, node: str) -> Idle:
        """Whether the node is in production and unused, so that it may be tested."""


class RecordOnly:
    """No scheduler is connected: a node's recorded state and its label ``busy`` decide.

    A production node without that label counts as allocated for a test that a person starts, and as idle for idle
    revalidation. In either case the guard on the node then looks for running processes.
    """

    def admit(self, node: str) -> None:
        """Does nothing. Raises UnknownNode."""
        log.info("%s is admitted: no scheduler is connected, only the records change", _record(node).name)

    def withdraw(self, node: str, reason: str) -> None:
        """Does nothing. Raises UnknownNode."""
        log.info("%s is withdrawn (%s): no scheduler is connected, only the records change", _record(node).name, reason)

    def allocation(self, node: str) -> Allocation:
        """From the node's label and state. Raises UnknownNode."""
        record = _record(node)
        busy = record.labels.get(BUSY)
        if _busy(record):
            return Allocation(True, f"its label {BUSY} is {busy!r}")
        if record.state is State.PRODUCTION and busy is None:
            return Allocation(True, "production (without a connected scheduler, whether it is idle is unknown)")
        return Allocation(False)

    def idle(self, node: str) -> Idle:
        """From the node's state, label and lease. Raises UnknownNode."""
        from muster import records

        record = _record(node)
        if record.state is not State.PRODUCTION:
            return Idle(False, f"it is in {record.state}")
        if _busy(record):
            return Idle(False, f"its label {BUSY} is {record.labels[BUSY]!r}")
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
