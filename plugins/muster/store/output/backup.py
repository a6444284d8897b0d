"""Saves all fleet records to one file, and restores them from it.

The file is an SQLite database with the same tables, whatever database the records use, so it can also move records
from SQLite to PostgreSQL. A back-up of an older schema is restored as it is, then upgraded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    DateTime,
    LargeBinary,
    MetaData,
    NullPool,
    Table,
    Text,
    cast,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, InvalidRequestError, NoSuchTableError
from sqlalchemy.types import UserDefinedType

import muster
from muster import ownership
from muster.errors import BadBackup, first_line
from muster.settings import settings
from muster.store.database import access, engine
from muster.store.database.base import UtcDateTime
from muster.store.decisions import signing
from muster.store.queues import schedulers

ROWS, FILES = 2000, 20
"""Rows in memory at once: of most tables, and of those with bytes (telemetry: up to 64 MiB a row)."""

_ABOUT = "backup"
_ASIDE = {_ABOUT, "alembic_version", "sqlite_sequence"}
"""Tables of a file that hold no records."""


@dataclasses.dataclass(frozen=True)
class Backup:
    """What a file holds: the version of Muster, the schema, when it was made, and how many rows and nodes.

    ``held``: how many restored nodes are held, so that no scheduler opens them until it is known that it may.
    """

    version: str
    schema: str
    made_at: datetime.datetime
    nodes: int
    rows: int
    held: int = 0


class _JsonText(UserDefinedType[str]):
    """JSON as its text, which is kept unchanged and is not parsed."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The column's type."""
        return "JSON"

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select the text: PostgreSQL's driver would parse it."""
        return cast(column, Text)


def save(file: Path) -> Backup:
    """Write all records as of one moment, and the signing key, into ``file``, which only its owner can read.

    Raises BadBackup if the file exists or cannot be written, ControllerFault if certificates were issued and their key
    is missing, DatabaseNotReady.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if os.path.lexists(file):  # before all is copied
            raise FileExistsError
        part.touch(mode=0o600, exist_ok=False)
        made_at = access.now()  # no later than the moment that is copied
        with engine.snapshot() as source, _file(part) as made, engine.changing(made) as into:
            engine.migrate(into, engine.SCHEMA)
            rows = _copy(source, into)
            nodes, certificates = (
                into.scalar(text(f"SELECT count(*) FROM {name}")) for name in ("nodes", "certificates")
            )
            done = Backup(muster.__version__, engine.SCHEMA, made_at, nodes, rows)
            secret = signing.read_secret() if certificates or signing.key_path().exists() else None
            into.execute(
                text(f"CREATE TABLE {_ABOUT} (version TEXT, made_at TEXT, nodes INTEGER, rows INTEGER, key BLOB)")
            )
            about = {
                "version": done.version,
                "at": done.made_at.isoformat(),
                "nodes": nodes,
                "rows": rows,
                "key": secret,
            }
            into.execute(text(f"INSERT INTO {_ABOUT} VALUES (:version, :at, :nodes, :rows, :key)"), about)
        ownership.give_name(part, file)
    except FileExistsError:
        raise BadBackup(f"the back-up {file} exists already: name a new file") from None
    except OSError as error:
        raise BadBackup(f"the back-up {file} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return done


def restore(file: Path) -> Backup:
    """Restore the records and the signing key from ``file``, all or nothing; then upgrade them.

    A node that serves according to the file may have failed since, so nodes in service or close to it are held.

    Raises BadBackup if it cannot be read or comes from a newer Muster, or if there are records already, ControllerFault
    if another key is there already, DatabaseNotReady.
    """
    with _opened(file) as source:
        found, secret = _about(source, file)
        made = engine.engine()
        with engine.translated(), engine.changing(made) as into:
            if engine.version(made) is not None:
                raise BadBackup(
                    f"{file} is not restored: {engine.state().url} holds fleet records already; name an empty database"
                )
            engine.migrate(into, found.schema)
            try:
                rows = _copy(source, into)
            except (DBAPIError, NoSuchTableError, KeyError) as error:
                raise BadBackup(f"{file} is not restored, it does not fit its schema: {error}") from None
            if rows != found.rows:
                raise BadBackup(f"{file} is not restored: {rows} of its {found.rows} rows are there")
            held = schedulers.hold_all(into)
            if secret is not None:
                signing.keep_secret(secret)
    engine.upgrade()
    return dataclasses.replace(found, held=held)


def restored() -> int:
    """Hold nodes, as ``restore`` does, after records were restored in another way, as by pg_restore; returns how many.

    Raises DatabaseNotReady.
    """
    with engine.writing() as session:
        held = schedulers.hold_all(session.connection())
        what = "the fleet records were restored, and not by `muster restore`"
        access.write_remark(session, settings().who, what, {"held": held})
    return held


@contextlib.contextmanager
def _file(path: Path) -> Iterator[Any]:
    """An engine for a new file. It leaves no journal next to the file."""
    made = create_engine("sqlite://", poolclass=NullPool, creator=lambda: sqlite3.connect(path))
    try:
        yield made
    except DBAPIError as error:
        if not isinstance(error.orig, sqlite3.Error):
            raise
        raise BadBackup(f"the back-up {path} cannot be written: {error.orig}") from None
    finally:
        made.dispose()


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Connection]:
    """The file's records, for reading. Raises BadBackup."""
    where = f"file:{urllib.parse.quote(str(file.absolute()))}?mode=ro"
    made = create_engine("sqlite://", poolclass=NullPool, creator=lambda: sqlite3.connect(where, uri=True))
    try:
        with made.connect() as connection:
            found = connection.scalar(text("PRAGMA quick_check"))
            if found != "ok":
                raise BadBackup(f"the back-up {file} is damaged: {found}")
            yield connection
    except DBAPIError as error:
        if not isinstance(error.orig, sqlite3.DatabaseError):
            raise
        raise BadBackup(f"the back-up {file} cannot be read: {error.orig}") from None
    finally:
        made.dispose()


def _about(source: Connection, file: Path) -> tuple[Backup, bytes | None]:
    """What the file holds, and the key. Raises BadBackup."""
    if not inspect(source).has_table(_ABOUT):
        raise BadBackup(f"{file} is no back-up of Muster: make one with `muster backup FILE`")
    try:
        row = source.execute(text(f"SELECT version, made_at, nodes, rows, key FROM {_ABOUT}")).one()
        schema = str(source.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
        made_at = datetime.datetime.fromisoformat(row.made_at)
        if row.key is not None:
            signing.secret_of(row.key)
    except (InvalidRequestError, ValueError, TypeError) as error:
        raise BadBackup(f"the back-up {file} is damaged: {first_line(error)}") from None
    if schema > engine.SCHEMA:
        raise BadBackup(f"{file} was made by Muster {row.version}, which is newer than this one: upgrade Muster first")
    return Backup(row.version, schema, made_at, row.nodes, row.rows), row.key


def _copy(source: Connection, into: Connection) -> int:
    """Copy every table that ``into`` has; returns the number of rows."""
    there, here = _tables(source), _tables(into)
    rows = 0
    for table in here.sorted_tables:
        columns = [there.tables[table.name].c[column.name] for column in table.c]
        size = FILES if any(isinstance(column.type, LargeBinary) for column in columns) else ROWS
        found = source.execute(select(*columns).execution_options(yield_per=size))
        for batch in found.mappings().partitions():
            into.execute(insert(table), [dict(row) for row in batch])
            rows += len(batch)
        if "id" in table.c:
            _go_on(into, table.name, _last_number(source, table.name))
    return rows


def _tables(connection: Connection) -> MetaData:
    """The tables as they are in the database, which may be of an older schema than the models."""
    found = MetaData()

    @event.listens_for(found, "column_reflect")
    def _(_inspector: Any, _table: Table, column: Any) -> None:
        if isinstance(column["type"], DateTime):
            column["type"] = UtcDateTime()
        elif isinstance(column["type"], JSON):
            column["type"] = _JsonText()

    found.reflect(connection, only=lambda name, _: name not in _ASIDE)
    return found


def _last_number(source: Connection, table: str) -> int | None:
    """The last id that a row of the table was given; ids of deleted rows are not reused."""
    if source.dialect.name == engine.SQLITE:
        query = f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"
    else:
        query = f"SELECT pg_sequence_last_value(pg_get_serial_sequence('{table}', 'id')::regclass)"
    last: int | None = source.scalar(text(query))
    return last


def _go_on(into: Connection, table: str, last: int | None) -> None:
    """Let the ids of the table's next rows follow ``last``."""
    if last is None:
        return
    if into.dialect.name == engine.SQLITE:
        into.execute(text(f"DELETE FROM sqlite_sequence WHERE name = '{table}'"))
        into.execute(text(f"INSERT INTO sqlite_sequence VALUES ('{table}', {last})"))
        return
    into.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id')::regclass, {last})"))
