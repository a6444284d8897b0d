"""The states of a node's life."""

from __future__ import annotations

import enum

from muster.model.stages import ROUND_STAGES


class State(enum.StrEnum):
    """A node's state."""

    REGISTERED = "registered"
    INTAKE = "intake"
    BURN_IN = "burn_in"
    VALIDATION = "validation"
    QUALIFIED = "qualified"
    CLUSTER_VALIDATION = "cluster_validation"
    PRODUCTION = "production"
    REVALIDATION = "revalidation"
    QUARANTINE = "quarantine"
    TRIAGE = "triage"
    REPAIR = "repair"
    RMA = "rma"
    RETIRED = "retired"


IN_FLIGHT = frozenset({State.INTAKE, State.BURN_IN, State.VALIDATION, State.CLUSTER_VALIDATION})
"""States of a node under test; without a run no node stays in them.

Revalidation is not among them: a node whose revalidation was inconclusive and found something waits there for the next.
"""

SERVING = frozenset({State.PRODUCTION, State.REVALIDATION})
"""States of a node in service; a node in revalidation is out of production until it passes."""

BROKEN = frozenset({State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA})
"""States of a node that is not tested until a person has it repaired; its scheduler keeps it closed."""

STATE_OF_STAGE = {
    "intake": State.INTAKE,
    "burn_in": State.BURN_IN,
    "integrity": State.VALIDATION,
    "performance": State.VALIDATION,
    "thermal": State.VALIDATION,
    "cluster_validation": State.CLUSTER_VALIDATION,
    **dict.fromkeys(ROUND_STAGES, State.CLUSTER_VALIDATION),
}
