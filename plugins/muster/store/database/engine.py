"""Engines, sessions and the schema's version.

A process keeps one connection, because opening an SQLite file costs more than a query. A forked process keeps the
inherited engine with its compiled statements, but opens connections of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import dataclasses
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, NullPool, Pool, create_engine, event, exc, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, ProgrammingError
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.pool import QueuePool

from muster import ownership
from muster.errors import DatabaseNotReady
from muster.settings import settings

T = TypeVar("T")

SQLITE = "sqlite"

SCHEMA = "0001"
"""The migration that this code needs."""

READ_ONLY = "25006"
"""read_only_sql_transaction: PostgreSQL's answer of a standby, and of a server that was set to read only."""

NO_RIGHT = "42501"
"""insufficient_privilege: since PostgreSQL 15 only a database's owner may make tables in its schema public."""

ENDED = ("25P03", "25P04")
"""idle_in_transaction_session_timeout, transaction_timeout: the server has ended the connection."""

REFUSED = ("40P01", "54000", "55P03", "57014")
"""deadlock_detected, program_limit_exceeded, lock_not_available, query_canceled: by a database that is well."""

BUSY_TIMEOUT_MS = 30_000
"""How long a writer waits for another on SQLite: longer than any transaction of ours takes under full load."""

SILENT = {
    "connect_timeout": 5, "tcp_user_timeout": 15_000, "keepalives_idle": 10, "keepalives_interval": 5,
    "keepalives_count": 3,
}  # fmt: skip
"""libpq's options (s, ms, s, s, count), with which a PostgreSQL host that vanished silently is given up within half a
minute, rather than TCP's quarter of an hour. Options in the URL take precedence."""

LOCK_TIMEOUT_MS = 2_000
"""How long a ``hurried`` transaction waits by default for another's lock on PostgreSQL."""

before_commit: list[Callable[[Session], None]] = []
"""Called at the end of each transaction that writes; if one raises, the transaction is rolled back."""

_lock = threading.Lock()
_engines: dict[str, tuple[int, Engine]] = {}
"""By URL: the process whose connections it holds, and the engine."""

_inherited: list[Pool] = []
"""The parent process's connections, referenced so that they are not closed: SQLite forbids that in a fork."""

_checked: set[tuple[int, str]] = set()
_rehearsing: contextvars.ContextVar[bool] = contextvars.ContextVar("rehearsing", default=False)
_hurried: contextvars.ContextVar[int] = contextvars.ContextVar("hurried", default=0)
_joined: contextvars.ContextVar[Session | None] = contextvars.ContextVar("joined", default=None)


class _Session(Session):
    """Refreshes the rows that it locks: those already loaded would keep their values from before the lock."""


@event.listens_for(_Session, "do_orm_execute")
def _read_again(asked: ORMExecuteState) -> None:
    if getattr(asked.statement, "_for_update_arg", None) is not None:
        asked.update_execution_options(populate_existing=True)


def engine() -> Engine:
    """This process's engine for the records. Raises DatabaseNotReady if the URL cannot be used."""
    url = settings().records_url
    with _lock:
        if url not in _engines:
            _engines[url] = (_begun(), _make(url))
        owner, made = _engines[url]
        if owner != os.getpid():
            _inherited.append(made.pool)
            made.dispose(close=False)
            _engines[url] = (_begun(), made)
        return made


def _begun() -> int:
    """Have this process close its connections when it ends; returns its id."""
    atexit.register(dispose)
    return os.getpid()


def dispose() -> None:
    """Close this process's connections, and forget its engines."""
    with _lock:
        for pid, made in _engines.values():
            if pid == os.getpid():
                made.dispose()
            else:
                _inherited.append(made.pool)
        _engines.clear()
        _checked.clear()


@contextlib.contextmanager
def reading() -> Iterator[Session]:
    """A short session that only reads."""
    if (whole := _joined.get()) is not None:
        with translated():
            yield whole
        return
    with translated(), _Session(_ready(), expire_on_commit=False) as session:
        yield session


@contextlib.contextmanager
def writing() -> Iterator[Session]:
    """One transaction: committed when the block ends, rolled back if it raises.

    On SQLite it takes the write lock at its beginning: a reader that becomes a writer half-way could not wait for
    another writer, but would fail at once.
    """
    if (whole := _joined.get()) is not None:
        with translated():
            yield whole
            whole.flush()
        return
    bound = _ready().execution_options(muster_writes=True)
    with translated(), _Session(bound, expire_on_commit=False) as session, session.begin() as transaction:
        if (limit_ms := _hurried.get()) and bound.dialect.name != SQLITE:
            session.execute(text(f"SET LOCAL lock_timeout = {limit_ms}"))
        yield session
        for ask in before_commit:
            ask(session)
        if _rehearsing.get():
            session.flush()
            transaction.rollback()


@contextlib.contextmanager
def transaction() -> Iterator[None]:
    """Within the block, in this thread, all that is read and written is one transaction: the whole of it or nothing."""
    with writing() as session, _within(_joined, session):
        yield


def hurried(limit_ms: int = 0) -> AbstractContextManager[None]:
    """Within the block a transaction raises DatabaseNotReady if another's lock keeps it waiting for ``limit_ms``."""
    return _within(_hurried, limit_ms or LOCK_TIMEOUT_MS)


def rehearsal() -> AbstractContextManager[None]:
    """Within the block every transaction runs, raising what it would raise, and is then rolled back."""
    return _within(_rehearsing, True)


@contextlib.contextmanager
def _within(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def rehearsing() -> bool:
    """Whether the present transaction will be rolled back (``rehearsal``), so that no file may be made either."""
    return _rehearsing.get()


def upgrade() -> tuple[str | None, str]:
    """Bring the database to this version's schema; returns the versions (before, after).

    Raises DatabaseNotReady if it cannot be reached, or was written by a newer Muster.
    """
    made = engine()
    with translated():
        before = version(made)
        if before == SCHEMA:
            return before, SCHEMA
        if before is not None and before > SCHEMA:
            raise DatabaseNotReady(_newer(before))
        with changing(made) as connection:
            migrate(connection, "head")
    return before, SCHEMA


@contextlib.contextmanager
def changing(made: Engine) -> Iterator[Connection]:
    """A transaction that may change the schema; two at once take turns."""
    with _connected_for_upgrade(made) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            # SQLite's write lock makes them take turns anyway.
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('muster.upgrade'))"))
            encoding = connection.scalar(text("SHOW server_encoding"))
            if encoding not in ("UTF8", "SQL_ASCII"):  # the latter keeps the bytes that it is given: UTF-8
                raise DatabaseNotReady(
                    f"the database {_place(made)} has the encoding {encoding}, which lacks characters: make another "
                    "with createdb -E UTF8 -T template0"
                )
        yield connection


def migrate(connection: Connection, revision: str) -> None:
    """Bring the schema to the migration ``revision``, or to "head", within the connection's transaction."""
    # Alembic is imported here only: reading and writing records never pays for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


@contextlib.contextmanager
def snapshot() -> Iterator[Connection]:
    """A connection that reads all tables as of one moment, while others write. Raises DatabaseNotReady."""
    made = _ready()
    whole = {} if made.dialect.name == SQLITE else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with translated(), made.connect() as connection:
        connection.execution_options(**whole)
        with connection.begin():
            yield connection


@contextlib.contextmanager
def _connected_for_upgrade(made: Engine) -> Iterator[Connection]:
    """A connection without SQLite's foreign keys, which would delete referring rows when a table is rebuilt."""
    with made.execution_options(muster_writes=True).connect() as connection:
        if connection.dialect.name == SQLITE:
            driver: Any = connection.connection.driver_connection
            connection.detach()  # closed afterwards: the pool must not reuse it with this setting
            driver.execute("PRAGMA foreign_keys=OFF")
        yield connection


@dataclasses.dataclass(frozen=True)
class DatabaseState:
    """The configured database: its URL without the password, its schema (None: no tables), whether it is SQLite."""

    url: str
    schema: str | None
    sqlite: bool


def state() -> DatabaseState:
    """The state of the configured database. Raises DatabaseNotReady if it cannot be reached."""
    made = engine()
    return DatabaseState(_place(made), version(made), made.dialect.name == SQLITE)


def version(made: Engine) -> str | None:
    """The schema version in the database, or None if it has none. Raises DatabaseNotReady if it cannot be reached."""
    try:
        with made.connect() as connection:
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    except (OperationalError, ProgrammingError) as error:
        if _is_missing_table(error):
            return None
        raise DatabaseNotReady(_unreachable(error)) from error


def _make(url: str) -> Engine:
    parsed: URL | None = None
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != SQLITE:
            return create_engine(parsed, pool_pre_ping=True, pool_size=2, max_overflow=8, connect_args=_options(parsed))
        made = create_engine(parsed, poolclass=QueuePool, pool_size=1, max_overflow=-1)
        event.listen(made, "do_connect", _place_sqlite)
        event.listen(made, "connect", _open_sqlite)
        event.listen(made, "begin", _begin_sqlite)
        return made
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ValueError) as error:
        why = str(error)
        if parsed is None and isinstance(error, ValueError):
            # The error quotes what stands in the port's place: a part of the password, if that has an "@" and a ":".
            why = "its port is no number: percent-encode the password, give several hosts as ?host=A:1&host=B:2"
        raise DatabaseNotReady(
            f"MUSTER_DATABASE_URL cannot be used ({why}); give sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DB"
        ) from None


def apart(made: Engine) -> Engine:
    """An engine of PostgreSQL whose connections are not the pool's: its callers hold one of those already."""
    return create_engine(made.url, poolclass=NullPool, connect_args=_options(made.url))


def _options(url: URL) -> dict[str, Any]:
    silent = {name: value for name, value in SILENT.items() if name not in url.query}
    # None prepared: behind a PgBouncer in transaction mode the next transaction may have another server process.
    return {**silent, "prepare_threshold": None, "client_encoding": "utf8"}


def _place_sqlite(_dialect: Any, _record: Any, arguments: list[Any], _options: dict[str, Any]) -> None:
    """Make sure that the file's folder exists, and that what root makes there belongs to the controller's user."""
    if arguments[0] != ":memory:":
        file = Path(arguments[0])
        try:
            ownership.folder(file.parent)
            if settings().home in file.parents and not file.exists():
                file.touch()
                ownership.give(file)
        except OSError as error:
            raise DatabaseNotReady(
                f"the records' folder cannot be made: {error}; set MUSTER_HOME to one you own"
            ) from None


def _open_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would begin late and deferred; _begin_sqlite issues BEGIN instead.
    connection.isolation_level = None
    cursor: sqlite3.Cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("muster_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _ready() -> Engine:
    made = engine()
    key = (os.getpid(), str(made.url))
    if key not in _checked:
        found = version(made)
        if found != SCHEMA:
            if found is not None and found > SCHEMA:
                raise DatabaseNotReady(_newer(found))
            state = f"are at schema {found}, this version needs {SCHEMA}" if found else "are empty"
            raise DatabaseNotReady(f"the fleet records ({_place(made)}) {state}: run `muster db upgrade`")
        _checked.add(key)
    return made


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise DatabaseNotReady for a database that is lost, takes no writes or refuses our user; other errors pass."""
    try:
        yield
    except DBAPIError as error:
        if not isinstance(error, OperationalError) and _sqlstate(error) not in (READ_ONLY, NO_RIGHT, *ENDED):
            raise
        raise DatabaseNotReady(_unreachable(error)) from error
    except exc.TimeoutError as error:
        raise DatabaseNotReady(
            "every connection of this process to the fleet records is in use: try again, with fewer requests at once"
        ) from error


def _place(made: Engine) -> str:
    """The URL without its password, and with only the hosts of its query, which may hold other secrets."""
    return made.url.set(query={name: at for name, at in made.url.query.items() if name == "host"}).render_as_string()


def _newer(found: str) -> str:
    return f"the fleet records are at schema {found}, newer than this version knows ({SCHEMA}): upgrade Muster itself"


def _unreachable(error: DBAPIError) -> str:
    detail = " ".join(str(error.orig).split())
    if _sqlstate(error) == NO_RIGHT:
        return (
            f"the user of MUSTER_DATABASE_URL may not do this in the fleet records ({detail}); make it the owner of "
            "the database and its tables, as by createdb -O USER DATABASE"
        )
    if _sqlstate(error) in REFUSED:
        return f"the fleet records did not do this ({detail}): try it again"
    return f"the fleet records cannot be used ({detail}); check MUSTER_DATABASE_URL and that the database is running"


def _is_missing_table(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        return "no such table" in str(error.orig)
    return _sqlstate(error) == "42P01"  # undefined_table


def _sqlstate(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""
