"""How Alembic runs our migrations: on the connection that ``muster.records.engine.upgrade`` hands it, nothing else."""

from __future__ import annotations

from alembic import context

from muster.records.models import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
