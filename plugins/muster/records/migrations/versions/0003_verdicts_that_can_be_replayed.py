"""Peer statistics, the SKU revisions that verdicts were spoken by, measurements behind findings, verdicts held back."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Moment = sa.DateTime(timezone=True)


def required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, server_default="")


def upgrade() -> None:
    op.create_table(
        "peer_snapshots",
        required("id", Id),
        required("version", sa.Text()),
        required("made_at", Moment),
        required("sku", sa.Text()),
        required("level", sa.Text()),
        required("simulated", sa.Boolean()),
        required("nodes", sa.Integer()),
        required("data", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_peer_snapshots"),
        sa.UniqueConstraint(
            "sku", "level", "simulated", "version", name="uq_peer_snapshots_sku_level_simulated_version"
        ),
    )
    op.create_table(
        "sku_revisions",
        required("sku", sa.Text()),
        required("revision", sa.Text()),
        required("kept_at", Moment),
        required("content", sa.Text()),
        sa.PrimaryKeyConstraint("sku", "revision", name="pk_sku_revisions"),
    )
    op.add_column("stages", text("snapshot"))
    op.create_index("ix_stages_snapshot", "stages", ["snapshot"])
    op.add_column("findings", sa.Column("measurements", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("nodes", text("held"))
    op.add_column("runs", text("held"))
    op.create_index("ix_events_at", "events", ["at"])


def downgrade() -> None:
    op.drop_index("ix_events_at", "events")
    op.drop_column("runs", "held")
    op.drop_column("nodes", "held")
    op.drop_column("findings", "measurements")
    op.drop_index("ix_stages_snapshot", "stages")
    op.drop_column("stages", "snapshot")
    op.drop_table("sku_revisions")
    op.drop_table("peer_snapshots")
