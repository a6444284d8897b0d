"""Whether it is the node that went away or the network: how its neighbours do, and how often it was lost before."""

from __future__ import annotations

import datetime
from collections.abc import Collection

from muster import records
from muster.records import NodeRecord
from muster.remote import attempt, ssh

RECENT = datetime.timedelta(minutes=5)
"""Triggers note a contact once a minute; a neighbour heard of within this time was reachable."""

ASKED = 4
"""So many neighbours at most are asked, with a short time each: one that answers is enough."""

ASK_TIMEOUT_S = 3.0


def reachable_neighbours(node: NodeRecord) -> str:
    """Names of other nodes that answer now or did a moment ago, "" if none: those of the same rack, if it has any."""
    others = [each for each in records.list_nodes() if each.name != node.name]
    near = [each for each in others if node.rack and each.rack == node.rack] or others
    since = datetime.datetime.now(datetime.UTC) - RECENT
    heard = [each.name for each in near if each.contact_at and each.contact_at >= since]
    if not heard:
        heard = [each.name for each in near[:ASKED] if _answers(each)]
    return ", ".join(heard[:ASKED])


def _answers(node: NodeRecord) -> bool:
    try:
        ssh.scan_host_key(node.host, node.port, timeout=ASK_TIMEOUT_S)
    except ssh.Unreachable:
        return False
    return True


def lost_jobs(dag_id: str, run_id: str, stages: Collection[str]) -> int:
    """How many jobs of these stages of the run were lost, without a word from the node."""
    return records.count_jobs(dag_id, run_id, stages, attempt.LOST)
