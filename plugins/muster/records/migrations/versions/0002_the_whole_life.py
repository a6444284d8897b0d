"""Adoption and replacement, waivers of findings by id, and runs that test several nodes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Moment = sa.DateTime(timezone=True)

CONVENTION = {"uq": "uq_%(table_name)s_%(column_0_N_name)s"}


def text(name: str, default: str = "") -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default=default)


def upgrade() -> None:
    op.add_column("nodes", sa.Column("shadow", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column(
        "nodes", sa.Column("machine_since", Moment, nullable=False, server_default=sa.text("'1970-01-01 00:00:00'"))
    )
    op.execute("UPDATE nodes SET machine_since = added_at")
    op.add_column("findings", text("finding_id"))
    op.add_column("findings", text("waived"))
    name_findings()
    op.create_index("ix_findings_finding_id", "findings", ["finding_id"])
    op.add_column("waivers", text("finding_id"))
    op.add_column("waivers", text("subject"))
    op.add_column("waivers", sa.Column("labels", sa.JSON(), nullable=False, server_default="{}"))
    op.create_index("ix_waivers_subject", "waivers", ["subject"])
    with op.batch_alter_table("runs", naming_convention=CONVENTION) as runs:
        runs.drop_constraint("uq_runs_dag_id_run_id", type_="unique")
        runs.create_unique_constraint("uq_runs_dag_id_run_id_node", ["dag_id", "run_id", "node"])


def name_findings() -> None:
    """The findings' ids, as ``muster_criteria.context.waivers.finding_id`` computed them then."""
    columns: list[sa.ColumnClause[Any]] = [
        sa.column(name) for name in ("id", "node", "rule", "metric", "device", "labels", "finding_id")
    ]
    findings = sa.table("findings", *columns)
    connection = op.get_bind()
    for row in connection.execute(sa.select(findings)).mappings().all():
        labels = row["labels"] if isinstance(row["labels"], dict) else json.loads(row["labels"])
        pairs = sorted((str(key), str(value)) for key, value in labels.items())
        key = json.dumps([row["node"], row["rule"], row["metric"], row["device"], pairs])
        named = "f-" + hashlib.sha256(key.encode()).hexdigest()[:12]
        connection.execute(sa.update(findings).where(findings.c.id == row["id"]).values(finding_id=named))


def downgrade() -> None:
    with op.batch_alter_table("runs", naming_convention=CONVENTION) as runs:
        runs.drop_constraint("uq_runs_dag_id_run_id_node", type_="unique")
        runs.create_unique_constraint("uq_runs_dag_id_run_id", ["dag_id", "run_id"])
    op.drop_index("ix_waivers_subject", "waivers")
    op.drop_index("ix_findings_finding_id", "findings")
    for table, names in (
        ("waivers", ("labels", "subject", "finding_id")),
        ("findings", ("waived", "finding_id")),
        ("nodes", ("machine_since", "shadow")),
    ):
        for name in names:
            op.drop_column(table, name)
