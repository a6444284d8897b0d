"""Records of 1.0.0 with a fleet in flight come up to this version's schema, which is what the models say."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from muster import store
from muster.errors import BadBackup
from muster.store.database import engine
from muster.store.database.models import Base
from tests.muster.conftest import POSTGRESQL
from tests.muster.store import in_flight
from tests.muster.store.database.schema import DIALECTS, RECORDS, initial, tables

BOTH = pytest.mark.parametrize("empty_db", ["sqlite", POSTGRESQL], indirect=True)
RENEW = "run `make schema`" if not initial().RELEASED else "1.0.0 is released: write a migration for this change"


def differences(connection: Connection) -> list[Any]:
    """How the database differs from the models."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return compare_metadata(context, Base.metadata)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_until_its_release_the_tables_of_1_0_0_are_the_models(dialect: str) -> None:
    """After it they stay, and ``test_the_newest_schema_is_the_models`` compares what the migrations make of them."""
    assert initial().RELEASED or initial().statements(dialect) == list(tables(DIALECTS[dialect])), RENEW


@BOTH
def test_the_tables_of_1_0_0_can_be_made(empty_db: str) -> None:
    with engine.changing(engine.engine()) as connection:
        for statement in initial().statements(connection.dialect.name):
            connection.exec_driver_sql(statement)
        assert initial().RELEASED or differences(connection) == [], RENEW


@BOTH
def test_the_newest_schema_is_the_models(empty_db: str) -> None:
    store.engine.upgrade()
    with engine.engine().connect() as connection:
        assert differences(connection) == [], RENEW


@BOTH
def test_a_fleet_in_flight_under_1_0_0_goes_on_after_the_upgrade(empty_db: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "saved") as held:
        for statement in initial().statements("sqlite"):
            held.execute(statement)
        held.executescript(RECORDS.read_text())
    try:
        assert store.backup.restore(tmp_path / "saved").schema == "0001"
    except BadBackup as error:
        pytest.fail(f"{RENEW}: {error}")
    assert store.engine.state().schema == engine.SCHEMA
    in_flight.assert_goes_on(tmp_path / "saved")
