"""Where a node's BMC answers and where its password is kept (never the password); what it told before a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("bmc", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("chassis", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "chassis")
    op.drop_column("nodes", "bmc")
