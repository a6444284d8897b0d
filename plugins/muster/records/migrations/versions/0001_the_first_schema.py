"""The first schema: nodes and parts, leases, runs with their stages and measurements, events, waivers, outbox."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True)

APPEND_ONLY = "events are append-only"


def required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def unique_where(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=True, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    create_fleet()
    create_runs()
    create_verdicts()
    make_events_append_only()


def create_fleet() -> None:
    op.create_table(
        "nodes",
        required("name", sa.Text()),
        required("host", sa.Text()),
        required("port", sa.Integer()),
        required("user", sa.Text()),
        required("host_key", sa.Text()),
        required("sku", sa.Text()),
        required("state", sa.Text()),
        required("launch", sa.JSON()),
        required("work_dir", sa.Text()),
        required("rack", sa.Text()),
        required("pool", sa.Text()),
        required("labels", sa.JSON()),
        required("simulated", sa.Boolean()),
        required("added_at", Moment),
        required("fence", sa.BigInteger()),
        required("inconclusive", sa.Integer()),
        optional("contact_at", Moment),
        sa.PrimaryKeyConstraint("name", name="pk_nodes"),
        sa.UniqueConstraint("host_key", name="uq_nodes_host_key"),
    )
    op.create_index("ix_nodes_state", "nodes", ["state"])
    op.create_table(
        "parts",
        required("id", Id),
        required("kind", sa.Text()),
        required("serial", sa.Text()),
        required("first_seen", Moment),
        sa.PrimaryKeyConstraint("id", name="pk_parts"),
        sa.UniqueConstraint("kind", "serial", name="uq_parts_kind_serial"),
    )
    op.create_table(
        "placements",
        required("id", Id),
        required("part_id", Id),
        required("node", sa.Text()),
        required("slot", sa.Text()),
        required("since", Moment),
        required("seen_at", Moment),
        optional("until", Moment),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_placements_node_nodes"),
        sa.ForeignKeyConstraint(["part_id"], ["parts.id"], name="fk_placements_part_id_parts"),
        sa.PrimaryKeyConstraint("id", name="pk_placements"),
    )
    op.create_index("ix_placements_node", "placements", ["node"])
    unique_where("uq_placements_part_open", "placements", ["part_id"], "until IS NULL")
    unique_where("uq_placements_slot_open", "placements", ["node", "slot"], "until IS NULL")
    op.create_table(
        "events",
        required("id", Id),
        required("node", sa.Text()),
        required("at", Moment),
        required("from_state", sa.Text()),
        required("to_state", sa.Text()),
        required("actor", sa.Text()),
        required("reason", sa.Text()),
        required("evidence", sa.JSON()),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_events_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_node", "events", ["node"])
    op.create_table(
        "waivers",
        required("id", Id),
        required("node", sa.Text()),
        required("rule", sa.Text()),
        required("metric", sa.Text()),
        required("device", sa.Text()),
        required("reason", sa.Text()),
        required("person", sa.Text()),
        required("created_at", Moment),
        required("until", Moment),
        optional("revoked_at", Moment),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_waivers_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_waivers"),
    )
    op.create_index("ix_waivers_node", "waivers", ["node"])
    op.create_table(
        "leases",
        required("id", Id),
        required("node", sa.Text()),
        required("dag_id", sa.Text()),
        required("run_id", sa.Text()),
        required("token", sa.BigInteger()),
        required("acquired_at", Moment),
        optional("released_at", Moment),
        required("released_reason", sa.Text()),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_leases_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
        sa.UniqueConstraint("node", "token", name="uq_leases_node_token"),
    )
    op.create_index("ix_leases_dag_id_run_id", "leases", ["dag_id", "run_id"])
    unique_where("uq_leases_node_live", "leases", ["node"], "released_at IS NULL")
    op.create_table(
        "outbox",
        required("id", Id),
        required("key", sa.Text()),
        required("message", sa.LargeBinary()),
        required("created_at", Moment),
        optional("sent_at", Moment),
        required("attempts", sa.Integer()),
        required("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.UniqueConstraint("key", name="uq_outbox_key"),
    )


def create_runs() -> None:
    op.create_table(
        "runs",
        required("id", Id),
        required("dag_id", sa.Text()),
        required("run_id", sa.Text()),
        required("node", sa.Text()),
        required("sku", sa.Text()),
        required("level", sa.Text()),
        required("reason", sa.Text()),
        optional("forced", sa.Text()),
        required("required_stages", sa.JSON()),
        required("state_before", sa.Text()),
        optional("state_after", sa.Text()),
        optional("verdict", sa.Text()),
        required("headline", sa.Text()),
        required("simulated", sa.Boolean()),
        required("identity", sa.JSON()),
        required("environment", sa.JSON()),
        required("started_at", Moment),
        optional("ended_at", Moment),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_runs_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("dag_id", "run_id", name="uq_runs_dag_id_run_id"),
    )
    op.create_index("ix_runs_node", "runs", ["node"])
    op.create_index("ix_runs_started_at", "runs", ["started_at"])
    op.create_table(
        "jobs",
        required("id", Id),
        required("run", Id),
        required("stage", sa.Text()),
        required("generation", sa.Text()),
        required("state", sa.Text()),
        required("remote_dir", sa.Text()),
        required("boot_id", sa.Text()),
        required("fence", sa.BigInteger()),
        optional("started_at", Moment),
        optional("ended_at", Moment),
        required("note", sa.Text()),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_jobs_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("run", "stage", "generation", name="uq_jobs_run_stage_generation"),
    )


def create_verdicts() -> None:
    op.create_table(
        "stages",
        required("id", Id),
        required("run", Id),
        required("stage", sa.Text()),
        required("level", sa.Text()),
        required("current", sa.Boolean()),
        required("verdict", sa.Text()),
        required("reason", sa.Text()),
        required("required", sa.Integer()),
        required("measured", sa.Integer()),
        required("judged", sa.Integer()),
        required("missing", sa.JSON()),
        required("unjudged", sa.JSON()),
        required("sku", sa.Text()),
        required("sku_version", sa.Text()),
        required("simulated", sa.Boolean()),
        required("notes", sa.JSON()),
        required("attempts", sa.Integer()),
        required("recorded_at", Moment),
        optional("started_at", Moment),
        optional("ended_at", Moment),
        required("job_end", sa.Text()),
        required("partial", sa.Boolean()),
        required("agent_sha256", sa.Text()),
        required("probes", sa.JSON()),
        required("aggregates", sa.JSON()),
        required("charts", sa.JSON()),
        required("result_sha256", sa.Text()),
        required("telemetry_sha256", sa.Text()),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_stages_run_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_stages"),
    )
    op.create_index("ix_stages_run", "stages", ["run"])
    unique_where("uq_stages_run_stage_current", "stages", ["run", "stage"], "current")
    op.create_table(
        "artifacts",
        required("id", Id),
        required("stage", Id),
        required("kind", sa.Text()),
        required("created_at", Moment),
        required("data", sa.LargeBinary()),
        sa.ForeignKeyConstraint(["stage"], ["stages.id"], name="fk_artifacts_stage_stages", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_artifacts"),
        sa.UniqueConstraint("stage", "kind", name="uq_artifacts_stage_kind"),
    )
    op.create_index("ix_artifacts_created_at", "artifacts", ["created_at"])
    op.create_table(
        "findings",
        required("id", Id),
        required("stage", Id),
        required("node", sa.Text()),
        required("rule", sa.Text()),
        required("metric", sa.Text()),
        required("device", sa.Text()),
        required("severity", sa.Text()),
        required("fault_class", sa.Text()),
        required("action", sa.Text()),
        required("observed", sa.Text()),
        required("expected", sa.Text()),
        required("source", sa.Text()),
        required("summary", sa.Text()),
        required("labels", sa.JSON()),
        required("confidence", sa.Double()),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_findings_node_nodes"),
        sa.ForeignKeyConstraint(["stage"], ["stages.id"], name="fk_findings_stage_stages", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
    )
    op.create_index("ix_findings_node", "findings", ["node"])
    op.create_index("ix_findings_stage", "findings", ["stage"])
    op.create_table(
        "measurements",
        required("id", Id),
        required("stage", Id),
        required("probe", sa.Text()),
        required("metric", sa.Text()),
        required("device", sa.Text()),
        required("unit", sa.Text()),
        optional("value", sa.Double()),
        optional("text", sa.Text()),
        required("labels", sa.JSON()),
        required("samples", sa.Integer()),
        optional("spread", sa.Double()),
        required("note", sa.Text()),
        optional("judged", sa.Integer()),
        optional("floor", sa.Double()),
        optional("ceiling", sa.Double()),
        required("source", sa.Text()),
        optional("ok", sa.Boolean()),
        sa.ForeignKeyConstraint(["stage"], ["stages.id"], name="fk_measurements_stage_stages", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
    )
    op.create_index("ix_measurements_stage", "measurements", ["stage"])


def make_events_append_only() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER events_no_{action.lower()} BEFORE {action} ON events "
                f"BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION muster_events_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{APPEND_ONLY}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION muster_events_append_only()"
    )


def downgrade() -> None:
    for table in (
        "measurements",
        "findings",
        "artifacts",
        "stages",
        "jobs",
        "runs",
        "outbox",
        "leases",
        "waivers",
        "events",
        "placements",
        "parts",
        "nodes",
    ):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION muster_events_append_only()")
