"""The fleet records: nodes, leases, runs, measurements, verdicts, events. Everybody else goes through this facade.

Each function opens one short session; whatever changes a state is one transaction with its event. All raise
DatabaseNotReady, in one sentence, if the database is away or not at this version's schema. Values are frozen.
"""

from __future__ import annotations

from muster.records.engine import dispose, upgrade
from muster.records.export import export_run
from muster.records.leases import acquire_lease, get_lease, live_leases, release_leases, sweep_leases
from muster.records.nodes import (
    add_node,
    add_nodes,
    get_node,
    last_contact,
    list_nodes,
    move_node,
    node_events,
    touch_contact,
)
from muster.records.outbox import outbox_add, outbox_failed, outbox_pending, outbox_sent
from muster.records.parts import node_parts, part_history
from muster.records.reporting import run_report
from muster.records.retention import apply_retention
from muster.records.runs import (
    begin_run,
    begin_stage,
    find_run,
    finish_run,
    get_job,
    get_run,
    list_runs,
    record_job,
    run_stages,
)
from muster.records.stages import record_stage
from muster.records.values import (
    EventRecord,
    JobRecord,
    LeaseRecord,
    NewNode,
    NodeRecord,
    OutboxMessage,
    PlacementRecord,
    Purged,
    RunRecord,
    StageSummary,
)

__all__ = [
    "EventRecord",
    "JobRecord",
    "LeaseRecord",
    "NewNode",
    "NodeRecord",
    "OutboxMessage",
    "PlacementRecord",
    "Purged",
    "RunRecord",
    "StageSummary",
    "acquire_lease",
    "add_node",
    "add_nodes",
    "apply_retention",
    "begin_run",
    "begin_stage",
    "dispose",
    "export_run",
    "find_run",
    "finish_run",
    "get_job",
    "get_lease",
    "get_node",
    "get_run",
    "last_contact",
    "list_nodes",
    "list_runs",
    "live_leases",
    "move_node",
    "node_events",
    "node_parts",
    "outbox_add",
    "outbox_failed",
    "outbox_pending",
    "outbox_sent",
    "part_history",
    "record_job",
    "record_stage",
    "release_leases",
    "run_report",
    "run_stages",
    "sweep_leases",
    "touch_contact",
    "upgrade",
]
