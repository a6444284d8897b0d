"""The initial schema: the tables of the models, and triggers that keep ``events`` append-only.

Until the first release the schema is edited in the models. A release freezes it: this file then lists its tables.
"""

from __future__ import annotations

from alembic import op

from muster.records.database.models import Base

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = "events are append-only"


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind())
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
    Base.metadata.drop_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION muster_events_append_only()")
