"""What history says of device events: errors that restarting does not mend."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from muster import store
from muster_criteria.device_events.judge import events_of, returned
from muster_criteria.device_events.policy import EventPolicy
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence


def returning_events(node: str, result: StageResult | None, policies: Sequence[EventPolicy]) -> tuple[Evidence, ...]:
    """Evidence for each error of this result that earlier boots of the same machine had too, often enough.

    What was recorded longer ago than the policy counts, or before a person repaired the node, is none.
    """
    if result is None:
        return ()
    identity = store.parts.identity_as_known(node, result.identity)
    found = events_of(result.measurements)
    now = [dataclasses.replace(event, pci=store.device_events.part_of(event, identity)) for event in found]
    evidence: list[Evidence] = []
    for policy in policies:
        if now and policy.escalation is not None:
            boots = store.device_events.standing(node, policy.escalation.within)
            boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
            evidence += returned(list(boots.values()), now, policy)
    return tuple(evidence)
