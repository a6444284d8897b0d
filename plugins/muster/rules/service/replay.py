"""What another health policy would have done about what was observed. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from muster.model.health import Observation
from muster.model.nodes import Node
from muster.rules.service.health import decide
from muster_criteria.health.policy import HealthAction, HealthPolicy


@dataclasses.dataclass(frozen=True)
class Replayed:
    """An observation, and what follows from it by two policies."""

    seen: Observation
    before: HealthAction
    after: HealthAction

    @property
    def changed(self) -> bool:
        """Whether the policies differ."""
        return self.before is not self.after

    @property
    def graver(self) -> bool:
        """Whether the second does more."""
        return self.after.rank > self.before.rank


def replay(
    seen: Iterable[Observation], nodes: Mapping[str, Node], before: HealthPolicy, after: HealthPolicy
) -> list[Replayed]:
    """Returns what follows by each policy from observations of these nodes, as they were at their end.

    How often a state returned, and for how long it was bad, was counted by the ``stable_s`` and ``bring_up_s`` that
    were in force; groups are those of the nodes' labels now.
    """
    return [
        Replayed(each, *(decide(each, nodes[each.node], policy, each.most) for policy in (before, after)))
        for each in seen
        if each.node in nodes
    ]
