"""The stages that a node goes through, in order."""

from __future__ import annotations

from collections.abc import Iterable

STAGES = ("intake", "burn_in", "integrity", "performance", "thermal")
"""The stages of a node's qualification, in order."""

CLUSTER_STAGES = ("cluster_validation",)
"""The stages that a block of nodes goes through together, after qualification."""


def in_order(stages: Iterable[str]) -> list[str]:
    """These stages in the order in which a node goes through them, others last."""
    return sorted(stages, key=lambda stage: (STAGES.index(stage) if stage in STAGES else len(STAGES), stage))
