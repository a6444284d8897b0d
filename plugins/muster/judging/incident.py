"""What the records say of an incident, for its evidence: findings with limits, siblings, history, parts, repairs."""

from __future__ import annotations

import dataclasses
from typing import Any

from muster import store
from muster.errors import BadSettings
from muster.model.nodes import Node
from muster.settings import settings
from muster_criteria.policy_file import BadPolicy
from muster_criteria.repair import evidence
from muster_criteria.repair.evidence import Profile

EVENTS_MAX, RUNS_MAX = 200, 20


def profiles_of(node: Node) -> list[Profile]:
    """Returns the profiles of evidence that apply to a node. Raises BadSettings for a file that cannot be used."""
    from muster_criteria.sku_files.skus import SHIPPED

    try:
        found = evidence.load([*settings().sku_folders, SHIPPED])
    except BadPolicy as error:
        raise BadSettings(str(error)) from None
    return [each for each in found if each.applies(node.sku, node.labels)]


def of_records(node: Node) -> dict[str, Any]:
    """Returns what the records hold of a node, as plain values. Raises UnknownNode."""
    found = store.verdicts.open_findings(node.name)
    metrics = {each.finding.metric for each in found}
    keys = {(each.key, each.stage) for each in found}
    siblings = [
        dataclasses.asdict(observed)
        for key, stage in sorted(keys, key=str)
        if (judgement := store.reporting.judgements(key, node=node.name).get(stage))
        for observed in judgement.observations
        if observed.metric in metrics
    ]
    return {
        "node": {"name": node.name, "sku": node.sku, "state": str(node.state), "rack": node.rack,
                 "labels": dict(node.labels), "simulated": node.simulated},
        "parts": [dataclasses.asdict(each) for each in store.parts.of_node(node.name)],
        "findings": [dataclasses.asdict(each) for each in found],
        "siblings_and_peers": siblings,
        "observations": [dataclasses.asdict(each) for each in store.health.of_node(node.name)],
        "history": [dataclasses.asdict(each) for each in store.nodes.events(node.name, EVENTS_MAX)],
        "runs": [dataclasses.asdict(each) for each in store.runs.find(node=node.name, limit=RUNS_MAX)],
        "earlier_incidents_of_its_parts": [dataclasses.asdict(each) for each in store.repairs.of_parts(node.name)],
    }  # fmt: skip
