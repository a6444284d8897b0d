"""The fleet records: nodes, leases, runs, measurements, verdicts, events. Other packages use this facade only.

Each function opens one short session; whatever changes a state is one transaction with its event. All raise
DatabaseNotReady, in one sentence, if the database is away or not at this version's schema. Values are frozen.
"""

from __future__ import annotations

from muster.model.certificates import Certificate, VersionChange
from muster.model.events import Approval, Event
from muster.model.figures import (
    DURATIONS_S,
    GIVE_BACK_S,
    BmcReading,
    FleetFigures,
    FleetRow,
    NodeFigure,
    NodeFigures,
    Point,
    Purged,
    Spread,
)
from muster.model.names import HOST_KEY, NODE_NAME
from muster.model.nodes import Lease, NewNode, Node
from muster.model.parts import Placement
from muster.model.queues import AuditEvent, AuditLag, OutboxMessage
from muster.model.runs import Job, OpenFinding, Run, StageVerdict
from muster.model.schedulers import ADMITTED, WITHDRAWN, Place
from muster.model.statistics import KeptGolden, KeptSnapshot, RecordedXid, Reported
from muster.store.database.engine import database_state, dispose, rehearsal, scratch, upgrade
from muster.store.database.retention import apply_retention
from muster.store.decisions.admission import admission_decision
from muster.store.decisions.certificates import (
    certificate_of,
    certificates_of,
    check_signing_key,
    uncertified,
    version_changes,
    versions_of,
)
from muster.store.decisions.signing import key_path, public_text, read_public, replace_key, signing_key
from muster.store.decisions.verdicts import (
    approvals,
    latest_verdicts,
    open_findings,
    record_approval,
    record_unanswered,
    stage_tests,
)
from muster.store.decisions.waivers import end_of, list_waivers, revoke_waiver, waive_finding, waivers_at
from muster.store.decisions.withdrawals import breaker, keep_in_service
from muster.store.fleet.goldens import goldens_for, list_goldens, withdraw_golden
from muster.store.fleet.latest import LatestStage, conclusive_stages, latest_stages
from muster.store.fleet.measured import VISITS, ZONE, excluded_from_peers, fleet_readings, node_readings
from muster.store.fleet.past_faults import previous_faults
from muster.store.fleet.peers import (
    keep_snapshot,
    last_change,
    latest_snapshot,
    list_snapshots,
    load_snapshot,
    peer_bands,
)
from muster.store.fleet.revisions import load_revision
from muster.store.fleet.running import running_versions
from muster.store.fleet.signs import certificate_ends, last_tests, note_refusal, refusals, signs, tests_since
from muster.store.fleet.xids import by_boot, part_of, recorded_xids
from muster.store.machines.adoption import adopt_nodes, rekey_node, replace_node, verify_node
from muster.store.machines.contested import confirm_part, serials_elsewhere
from muster.store.machines.leases import (
    acquire_lease,
    acquire_leases,
    fenced_nodes,
    get_lease,
    live_leases,
    raise_fence,
    release_leases,
)
from muster.store.machines.nodes import (
    add_node,
    add_nodes,
    get_node,
    list_nodes,
    move_node,
    node_events,
    touch_contact,
)
from muster.store.machines.parts import node_parts, part_history, part_runs
from muster.store.machines.pauses import pause_node, resume_node
from muster.store.machines.reported import report, reported
from muster.store.output.export import export_run
from muster.store.output.figures import fleet_figures
from muster.store.output.ledger import fleet_facts
from muster.store.output.node_metrics import judged_metrics, node_figures
from muster.store.output.overview import (
    fleet_rows,
    fleet_version,
    metric_points,
    moves_since,
    nodes_with,
    runs_under_way,
)
from muster.store.output.raw import bmc_readings, stage_attempts, stage_bytes
from muster.store.queues.audit import audit_batch, audit_command, audit_delivered, audit_failed, audit_lags
from muster.store.queues.notices import notify
from muster.store.queues.outbox import (
    NOTIFICATION,
    outbox_add,
    outbox_added,
    outbox_drop,
    outbox_failed,
    outbox_message,
    outbox_notify,
    outbox_parked,
    outbox_parked_count,
    outbox_pending,
    outbox_resend,
    outbox_sent,
    outbox_unreachable,
    outbox_waiting,
)
from muster.store.queues.schedulers import (
    ask_about_request,
    change_carried_out,
    claim_change,
    drain_again,
    forget_test_job,
    mark_again,
    note_difference,
    note_ended_job,
    note_test_job,
    place_on_scheduler,
    restore_place,
    scheduler_differences,
    scheduler_place,
    scheduler_places,
    withdraw_for_test,
)
from muster.store.testing.common_causes import neighbours
from muster.store.testing.reevaluations import provisional_verdicts, record_reevaluation
from muster.store.testing.reporting import judgements, run_report
from muster.store.testing.runs import (
    begin_run,
    begin_stage,
    count_jobs,
    find_run,
    finish_run,
    get_job,
    get_run,
    last_run,
    list_runs,
    record_job,
    run_stages,
    typical_duration_s,
)
from muster.store.testing.stages import record_stage
