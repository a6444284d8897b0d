"""The stages that a node goes through, in order."""

from __future__ import annotations

from collections.abc import Iterable

from muster.model.dags import CLUSTER_QUALIFICATION
from muster_criteria.stages import LEVELS as LEVELS
from muster_criteria.stages import ROUNDS_MAX
from muster_criteria.stages import STAGES as STAGES
from muster_criteria.stages import Level as Level

LOAD_STAGES = frozenset(STAGES[1:])
"""The stages that put a node under load and count against a rack's power limit."""

CLUSTER_STAGES = ("cluster_validation",)
"""The stages that a block of nodes goes through together, after qualification."""

ROUND_STAGES = tuple(f"fabric_round_{number}" for number in range(1, ROUNDS_MAX + 1))
"""The jobs of a block's rounds of pairs, which come before its stage and have no verdict of their own."""


def all_of(dag_id: str) -> tuple[str, ...]:
    """The stages that a whole run of this DAG goes through."""
    return CLUSTER_STAGES if dag_id == CLUSTER_QUALIFICATION else STAGES


def in_order(stages: Iterable[str]) -> list[str]:
    """These stages in the order in which a node goes through them, others last."""
    return sorted(stages, key=lambda stage: (STAGES.index(stage) if stage in STAGES else len(STAGES), stage))
