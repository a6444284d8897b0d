"""The fleet records: nodes, leases, runs, measurements, verdicts, events. Other packages use this facade only.

Each function opens one short session; whatever changes a state is one transaction with its event. All raise
DatabaseNotReady, in one sentence, if the database is away or not at this version's schema. Values are frozen.
"""

from __future__ import annotations

from muster.records.admission import admission_decision
from muster.records.adoption import adopt_nodes, rekey_node, replace_node, verify_node
from muster.records.certificates import CertificateRecord, certificate_of, check_signing_key, uncertified
from muster.records.common_causes import neighbours
from muster.records.contested import confirm_part, serials_elsewhere
from muster.records.database.engine import DatabaseState, database_state, dispose, rehearsal, scratch, upgrade
from muster.records.database.retention import apply_retention
from muster.records.fleet.goldens import GoldenRecord, goldens_for, list_goldens, withdraw_golden
from muster.records.fleet.latest import LatestStage, conclusive_stages, latest_stages
from muster.records.fleet.measured import VISITS, ZONE, excluded_from_peers, fleet_readings, node_readings
from muster.records.fleet.past_faults import previous_faults
from muster.records.fleet.peers import keep_snapshot, last_change, latest_snapshot, list_snapshots, load_snapshot
from muster.records.fleet.revisions import load_revision
from muster.records.fleet.signs import signs
from muster.records.fleet.xids import XidRecord, by_boot, part_of, recorded_xids
from muster.records.leases import (
    acquire_lease,
    acquire_leases,
    fenced_nodes,
    get_lease,
    live_leases,
    raise_fence,
    release_leases,
    release_leases_of,
)
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
from muster.records.outbox import (
    outbox_add,
    outbox_failed,
    outbox_parked,
    outbox_pending,
    outbox_sent,
    outbox_waiting,
)
from muster.records.output.export import export_run
from muster.records.output.raw import StageAttempt, StageBytes, stage_attempts, stage_bytes
from muster.records.parts import node_parts, part_history, part_runs
from muster.records.reevaluations import provisional_verdicts, record_reevaluation
from muster.records.reporting import run_report
from muster.records.runs import (
    begin_run,
    begin_stage,
    count_jobs,
    find_run,
    finish_run,
    get_job,
    get_run,
    list_runs,
    record_job,
    run_stages,
    typical_duration_s,
)
from muster.records.schedulers import (
    ADMITTED,
    WITHDRAWN,
    PlaceRecord,
    change_carried_out,
    claim_change,
    drain_again,
    hold_out,
    note_difference,
    place_on_scheduler,
    put_back,
    scheduler_place,
    scheduler_places,
)
from muster.records.signing import key_path, new_key, public_text, read_public, signing_key
from muster.records.stages import record_stage
from muster.records.values import (
    HOST_KEY,
    NODE_NAME,
    ApprovalRecord,
    EventRecord,
    JobRecord,
    LeaseRecord,
    NewNode,
    NodeRecord,
    OpenFinding,
    OutboxMessage,
    PlacementRecord,
    Purged,
    RunRecord,
    SnapshotRecord,
    StageSummary,
    StageVerdict,
)
from muster.records.verdicts import (
    approvals,
    latest_verdicts,
    open_findings,
    record_approval,
    record_unanswered,
    stage_passes,
)
from muster.records.waivers import list_waivers, revoke_waiver, waive_finding, waivers_at
from muster.records.withdrawals import breaker, keep_in_service

__all__ = [
    "ADMITTED",
    "HOST_KEY",
    "NODE_NAME",
    "VISITS",
    "WITHDRAWN",
    "ZONE",
    "ApprovalRecord",
    "CertificateRecord",
    "DatabaseState",
    "EventRecord",
    "GoldenRecord",
    "JobRecord",
    "LatestStage",
    "LeaseRecord",
    "NewNode",
    "NodeRecord",
    "OpenFinding",
    "OutboxMessage",
    "PlaceRecord",
    "PlacementRecord",
    "Purged",
    "RunRecord",
    "SnapshotRecord",
    "StageAttempt",
    "StageBytes",
    "StageSummary",
    "StageVerdict",
    "XidRecord",
    "acquire_lease",
    "acquire_leases",
    "add_node",
    "add_nodes",
    "admission_decision",
    "adopt_nodes",
    "apply_retention",
    "approvals",
    "begin_run",
    "begin_stage",
    "breaker",
    "by_boot",
    "certificate_of",
    "change_carried_out",
    "check_signing_key",
    "claim_change",
    "conclusive_stages",
    "confirm_part",
    "count_jobs",
    "database_state",
    "dispose",
    "drain_again",
    "excluded_from_peers",
    "export_run",
    "fenced_nodes",
    "find_run",
    "finish_run",
    "fleet_readings",
    "get_job",
    "get_lease",
    "get_node",
    "get_run",
    "goldens_for",
    "hold_out",
    "keep_in_service",
    "keep_snapshot",
    "key_path",
    "last_change",
    "last_contact",
    "latest_snapshot",
    "latest_stages",
    "latest_verdicts",
    "list_goldens",
    "list_nodes",
    "list_runs",
    "list_snapshots",
    "list_waivers",
    "live_leases",
    "load_revision",
    "load_snapshot",
    "move_node",
    "neighbours",
    "new_key",
    "node_events",
    "node_parts",
    "node_readings",
    "note_difference",
    "open_findings",
    "outbox_add",
    "outbox_failed",
    "outbox_parked",
    "outbox_pending",
    "outbox_sent",
    "outbox_waiting",
    "part_history",
    "part_of",
    "part_runs",
    "place_on_scheduler",
    "previous_faults",
    "provisional_verdicts",
    "public_text",
    "put_back",
    "raise_fence",
    "read_public",
    "record_approval",
    "record_job",
    "record_reevaluation",
    "record_stage",
    "record_unanswered",
    "recorded_xids",
    "rehearsal",
    "rekey_node",
    "release_leases",
    "release_leases_of",
    "replace_node",
    "revoke_waiver",
    "run_report",
    "run_stages",
    "scheduler_place",
    "scheduler_places",
    "scratch",
    "serials_elsewhere",
    "signing_key",
    "signs",
    "stage_attempts",
    "stage_bytes",
    "stage_passes",
    "touch_contact",
    "typical_duration_s",
    "uncertified",
    "upgrade",
    "verify_node",
    "waive_finding",
    "waivers_at",
    "withdraw_golden",
]
