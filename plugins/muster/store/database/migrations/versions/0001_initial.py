"""The initial schema: the tables of the models, and triggers that keep ``events`` append-only.

Retention may delete events that are older than ``EVENT_DAYS_MIN``.

Until 1.0.0 is released the schema is edited in the models, and `make schema` writes it next to this file. From the
release on these files are the schema of 1.0.0, and each change is a migration of its own.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

from muster.settings import EVENT_DAYS_MIN
from muster.store.database.models import Base

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

RELEASED = False
"""Whether 1.0.0 is released: from then on its tables never change."""

APPEND_ONLY = "events are append-only"


def statements(dialect: str) -> list[str]:
    """The SQL statements that create the tables of 1.0.0 on "sqlite" or "postgresql"."""
    return Path(__file__).with_name(f"{revision}.{dialect}.sql").read_text().rstrip(";\n").split(";\n")


def upgrade() -> None:
    if RELEASED:
        for statement in statements(op.get_bind().dialect.name):
            op.get_bind().exec_driver_sql(statement)
    else:
        Base.metadata.create_all(op.get_bind())
    if op.get_bind().dialect.name == "sqlite":
        young = f"WHEN OLD.at > datetime('now', '-{EVENT_DAYS_MIN} days') "
        for action, when in (("UPDATE", ""), ("DELETE", young)):
            op.execute(
                f"CREATE TRIGGER events_no_{action.lower()} BEFORE {action} ON events {when}"
                f"BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION muster_events_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF TG_OP = 'DELETE' AND OLD.at < now() - interval '{EVENT_DAYS_MIN} days' THEN RETURN OLD; END IF; "
        f"RAISE EXCEPTION '{APPEND_ONLY}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION muster_events_append_only()"
    )


def downgrade() -> None:
    Base.metadata.drop_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION muster_events_append_only()")
