"""A fleet database for each test: SQLite, and a private PostgreSQL that lives as long as the session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import store
from tests.support.plugins.skus_once import skus_checked_once  # noqa: F401 - for every test
from tests.support.plugins.statements import statements_compiled_once  # noqa: F401 - for every test
from tests.support.servers import sshd
from tests.support.servers.postgresql import PostgreSQL, running

POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.needs_postgresql)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "muster.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgresql_template(postgresql: PostgreSQL) -> PostgreSQL:
    _upgrade(postgresql.create("template_muster"))
    return postgresql


def _upgrade(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_DATABASE_URL", url)
        store.engine.upgrade()
        store.engine.dispose()


@pytest.fixture
def muster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A controller's home of this test's own; records are SQLite in it by default."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(sshd.CONNECTION, sshd.connection())
    monkeypatch.delenv("MUSTER_DATABASE_URL", raising=False)
    yield tmp_path / "home"
    store.engine.dispose()


@pytest.fixture
def sqlite_db(muster_home: Path, sqlite_template: Path) -> str:
    """Empty fleet records at the newest schema, on SQLite; returns their URL."""
    muster_home.mkdir(parents=True)
    shutil.copy(sqlite_template, muster_home / "muster.db")
    return f"sqlite:///{muster_home / 'muster.db'}"


@pytest.fixture
def postgresql_db(muster_home: Path, postgresql_template: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Empty fleet records at the newest schema, on PostgreSQL; yields their URL."""
    with postgresql_template.database("template_muster") as url:
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        yield url


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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``fleet_db`` is SQLite; a test marked ``both_dialects``, for its SQL or its locks, runs on PostgreSQL too."""
    if "fleet_db" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_dialects")
        metafunc.parametrize("fleet_db", ["sqlite", POSTGRESQL] if both else ["sqlite"], indirect=True)


@pytest.fixture
def fleet_db(request: pytest.FixtureRequest) -> str:
    """Empty fleet records at the newest schema; returns their URL."""
    url: str = request.getfixturevalue(f"{request.param}_db")
    return url
