"""Digests that devices gave, the goldens made of them, and devices that are under suspicion for life."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True)


def required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def upgrade() -> None:
    op.create_table(
        "digests",
        required("id", Id),
        required("golden_id", sa.Text()),
        required("key", sa.Text()),
        required("op", sa.Text()),
        required("simulated", sa.Boolean()),
        required("digest", sa.Text()),
        required("subject", sa.Text()),
        required("device", sa.Text()),
        required("node", sa.Text()),
        required("dag_id", sa.Text()),
        required("run_id", sa.Text()),
        required("seen_at", Moment),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_digests_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_digests"),
    )
    op.create_index("ix_digests_golden_id_subject", "digests", ["golden_id", "subject"])
    op.create_table(
        "goldens",
        required("id", Id),
        required("golden_id", sa.Text()),
        required("key", sa.Text()),
        required("op", sa.Text()),
        required("simulated", sa.Boolean()),
        required("digest", sa.Text()),
        required("promoted_at", Moment),
        required("agreed", sa.JSON()),
        optional("withdrawn_at", Moment),
        required("withdrawn_by", sa.Text()),
        required("withdrawn_why", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_goldens"),
    )
    standing = sa.text("withdrawn_at IS NULL")
    op.create_index(
        "uq_goldens_golden_id_standing", "goldens", ["golden_id"], unique=True,
        sqlite_where=standing, postgresql_where=standing,
    )  # fmt: skip
    op.create_table(
        "suspects",
        required("id", Id),
        required("subject", sa.Text()),
        required("node", sa.Text()),
        required("device", sa.Text()),
        required("stage", sa.Text()),
        required("dag_id", sa.Text()),
        required("run_id", sa.Text()),
        required("since", Moment),
        required("finding_id", sa.Text()),
        required("finding", sa.JSON()),
        sa.ForeignKeyConstraint(["node"], ["nodes.name"], name="fk_suspects_node_nodes"),
        sa.PrimaryKeyConstraint("id", name="pk_suspects"),
    )
    op.create_index("ix_suspects_subject", "suspects", ["subject"])
    op.create_index("ix_suspects_node", "suspects", ["node"])


def downgrade() -> None:
    op.drop_table("suspects")
    op.drop_table("goldens")
    op.drop_table("digests")
