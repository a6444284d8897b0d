"""``make schema``: the tables of 1.0.0 as SQL, and records of a fleet in flight under it, for the tests of upgrades.

Run it after each change of the models until 1.0.0 is released. From then on a change is a migration of its own.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from muster import store
from muster.store.database import engine
from muster.store.database.models import Base
from tests.muster.store import in_flight
from tests.support.servers import sshd

MIGRATIONS = Path(engine.__file__).parent / "migrations"
RECORDS = Path(__file__).with_name("records-1.0.0.sql")
_ROWS = ("INSERT", "DELETE", "CREATE TABLE alembic_version", "CREATE TABLE backup")
"""How the statements begin that ``0001.sqlite.sql`` does not hold."""
DIALECTS: dict[str, Dialect] = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}


def initial() -> ModuleType:
    """The module of the initial migration."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    found: ModuleType = ScriptDirectory.from_config(config).get_revision("0001").module
    return found


def tables(dialect: Dialect) -> Iterator[str]:
    """The statements that make the models' tables, always in one order."""
    for table in Base.metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=dialect)).strip().replace(" \n", "\n")
        for index in sorted(table.indexes, key=lambda each: str(each.name)):
            yield str(CreateIndex(index).compile(dialect=dialect)).strip()


def records() -> str:
    """Records of a fleet in flight, as SQL that fills the tables of 1.0.0 on SQLite, and makes a back-up of them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MUSTER_HOME": folder, sshd.CONNECTION: sshd.connection(), "MUSTER_DATABASE_URL": ""}
        store.engine.upgrade()
        in_flight.begin()
        saved = Path(folder) / "saved"
        store.backup.save(saved)
        store.engine.dispose()
        with sqlite3.connect(saved) as held:
            return "".join(f"{each}\n" for each in held.iterdump() if each.startswith(_ROWS))


def main() -> int:
    """Write the files; status 1 once 1.0.0 is released."""
    if initial().RELEASED:
        print("1.0.0 is released, and its schema stays as it is: write a migration instead", file=sys.stderr)
        return 1
    for name, dialect in DIALECTS.items():
        whole = "".join(f"{statement};\n" for statement in tables(dialect))
        (MIGRATIONS / "versions" / f"0001.{name}.sql").write_text(whole)
    RECORDS.write_text(records())
    return 0


if __name__ == "__main__":
    sys.exit(main())
