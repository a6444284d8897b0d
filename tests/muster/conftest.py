"""A fleet database for each test: SQLite, and a private PostgreSQL that lives as long as the session."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from muster import records

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.needs_postgresql)


class PostgreSQL:
    """A server of our own: socket in its folder, no network, no fsync."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        initdb = str(found[-1]) if found else shutil.which("initdb")
        assert initdb, "no initdb: tests/conftest.py should have said so"
        self.bin = Path(initdb).parent
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; its package brings the user postgres.
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_user = ["runuser", "-u", "postgres", "--"]
        data = folder / "data"
        self.call("initdb", "-D", str(data), "-U", "muster", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections=50"
        self.call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        self.call("createdb", "-h", str(folder), "-U", "muster", "template_muster")

    def call(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._as_user, str(self.bin / program), *args], capture_output=True, text=True, cwd="/", check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr or done.stdout}"

    @contextlib.contextmanager
    def database(self, template: str) -> Iterator[str]:
        """A new database for as long as the block lasts; yields its URL."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(host=str(self.folder), user="muster", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
            yield self.url(name)
            records.dispose()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, database: str) -> str:
        return f"postgresql://muster@/{database}?host={self.folder}"

    def stop(self) -> None:
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    folder = Path(tempfile.mkdtemp(prefix="muster-pg-"))
    server = PostgreSQL(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "muster.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgresql_template(postgresql: PostgreSQL) -> PostgreSQL:
    _upgrade(postgresql.url("template_muster"))
    return postgresql


def _upgrade(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_DATABASE_URL", url)
        records.upgrade()
        records.dispose()


@pytest.fixture
def muster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A controller's home of this test's own; records, if not said otherwise, are SQLite in it."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MUSTER_DATABASE_URL", raising=False)
    yield tmp_path / "home"
    records.dispose()


@pytest.fixture
def sqlite_db(muster_home: Path, sqlite_template: Path) -> str:
    """Empty fleet records at the newest schema, on SQLite; returns their URL."""
    muster_home.mkdir(parents=True)
    shutil.copy(sqlite_template, muster_home / "muster.db")
    return f"sqlite:///{muster_home / 'muster.db'}"


@pytest.fixture
def empty_db(request: pytest.FixtureRequest, muster_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without a schema; parametrise indirectly with "sqlite" or POSTGRESQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{muster_home / 'muster.db'}"
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    with server.database("template0") as url:
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        yield url


@pytest.fixture(params=["sqlite", POSTGRESQL])
def fleet_db(request: pytest.FixtureRequest, muster_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Empty fleet records at the newest schema, once on SQLite and once on PostgreSQL; yields their URL."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_db")
        return
    server: PostgreSQL = request.getfixturevalue("postgresql_template")
    with server.database("template_muster") as url:
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        yield url
