"""Evidence on whether a node or its network failed: reachable neighbours, and earlier lost jobs."""

from __future__ import annotations

import datetime
from collections.abc import Collection

from muster import records
from muster.records import NodeRecord
from muster.remote import outcome, ssh

RECENT = datetime.timedelta(minutes=5)
"""Triggers record a contact once a minute; a neighbour with a contact within this time was reachable."""

TRIED = 4
"""Maximum number of neighbours to contact, each with a short timeout: one that responds is enough."""

TRY_TIMEOUT_S = 3.0


def reachable_neighbours(node: NodeRecord) -> str:
    """Returns the names of other nodes that respond or did recently, "" if none; of the same rack, if it has others."""
    others = [each for each in records.list_nodes() if each.name != node.name]
    near = [each for each in others if node.rack and each.rack == node.rack] or others
    since = datetime.datetime.now(datetime.UTC) - RECENT
    reachable = [each.name for each in near if each.contact_at and each.contact_at >= since]
    if not reachable:
        reachable = [each.name for each in near[:TRIED] if _responds(each)]
    return ", ".join(reachable[:TRIED])


def _responds(node: NodeRecord) -> bool:
    try:
        ssh.scan_host_key(node.host, node.port, timeout=TRY_TIMEOUT_S)
    except ssh.Unreachable:
        return False
    return True


def lost_jobs(dag_id: str, run_id: str, stages: Collection[str]) -> int:
    """Returns how many jobs of these stages in the run were lost."""
    return records.count_jobs(dag_id, run_id, stages, outcome.LOST)
