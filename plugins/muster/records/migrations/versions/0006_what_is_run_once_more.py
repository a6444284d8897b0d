"""Which of a stage's probes are to be run once more after a job: no longer the same ones for every repeat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("again", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("jobs", "again")
