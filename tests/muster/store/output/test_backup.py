"""A back-up holds all records as of one moment, and what is restored from it goes on where they were."""

from __future__ import annotations

import datetime
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError

from muster import store
from muster.audit.sinks import as_json
from muster.errors import BadBackup, ControllerFault
from muster.store.database import engine
from muster.store.database.base import Base
from tests.muster import fleet
from tests.muster.store import in_flight
from tests.support.servers import sshd
from tests.support.servers.postgresql import PostgreSQL

DIALECTS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs_postgresql)]


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database on another machine, which the settings name from ``move`` on; parametrise indirectly."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'other' / 'muster.db'}"
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    with server.database("template0") as url:
        yield url


def move(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.engine.dispose()
    monkeypatch.setenv("MUSTER_DATABASE_URL", to)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "other"))


def everything() -> dict[str, list[dict[str, Any]]]:
    with engine.reading() as session:
        return {
            table.name: [dict(row) for row in session.execute(select(table).order_by(*table.primary_key)).mappings()]
            for table in Base.metadata.sorted_tables
        }


@pytest.mark.both_dialects
@pytest.mark.parametrize("elsewhere", DIALECTS, indirect=True)
def test_restored_records_are_the_same_and_the_fleet_goes_on(
    fleet_db: str, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight.begin()
    store.outbox.add("another", b"Subject: WARN\n\n\x00\xff")
    with engine.writing() as session:
        gone = session.execute(text("SELECT max(id) FROM outbox")).scalar_one()
        session.execute(text(f"DELETE FROM outbox WHERE id = {gone}"))
    before, lines = everything(), [as_json(each) for each in store.audit.batch(in_flight.SINK, 500)]
    saved = store.backup.save(tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    assert saved.rows == sum(map(len, before.values()))

    move(elsewhere, tmp_path, monkeypatch)
    assert store.backup.restore(tmp_path / "b") == saved
    assert everything() == before
    assert [as_json(each) for each in store.audit.batch(in_flight.SINK, 500)] == lines
    with pytest.raises(DBAPIError), engine.writing() as session:
        session.execute(text("UPDATE events SET reason = 'another'"))
    in_flight.assert_goes_on(tmp_path / "b")
    store.outbox.add("later", b"Subject: PASS\n\nlater")
    assert min(each.id for each in store.outbox.pending(key="later")) > gone
    with pytest.raises(BadBackup):
        store.backup.restore(tmp_path / "b")


@pytest.mark.both_dialects
def test_what_is_written_meanwhile_is_not_in_it(fleet_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("gpu-0001"))
    written: list[datetime.datetime] = []

    @event.listens_for(engine.engine(), "after_cursor_execute")
    def meanwhile(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM " in statement and "_sequence" in statement and not written:
            written.append(store.clock.now())
            store.nodes.add(fleet.new_node("gpu-0002"))

    saved = store.backup.save(tmp_path / "b")
    assert saved.made_at < written[0]
    assert len(store.nodes.find()) == 2
    assert saved.nodes == 1
    move(f"sqlite:///{tmp_path / 'other' / 'muster.db'}", tmp_path, monkeypatch)
    store.backup.restore(tmp_path / "b")
    assert {row["node"] for row in everything()["events"]} == {"gpu-0001"}


@pytest.fixture(scope="module")
def in_flight_once(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A controller's home with a fleet in flight, and its back-up: the folder of both."""
    folder = tmp_path_factory.mktemp("in_flight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(folder / "home"))
        patch.setenv(sshd.CONNECTION, sshd.connection())
        (folder / "home").mkdir()
        shutil.copy(sqlite_template, folder / "home" / "muster.db")
        in_flight.begin()
        store.backup.save(folder / "b")
        store.engine.dispose()
    return folder


@pytest.fixture
def saved(in_flight_once: Path, muster_home: Path, tmp_path: Path) -> Path:
    """The back-up of the records in this test's own home."""
    shutil.copytree(in_flight_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "b"


def test_a_backup_never_replaces_a_file_and_leaves_none_half_written(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    with pytest.raises(BadBackup):
        store.backup.save(saved)
    assert saved.read_bytes() == before
    store.signing.key_path().unlink()
    with pytest.raises(ControllerFault):
        store.backup.save(tmp_path / "without the key")
    with pytest.raises(BadBackup):
        store.backup.save(tmp_path / "none" / "b")
    assert {each.name for each in tmp_path.iterdir()} == {"b", "home"}


def test_a_backup_is_made_where_there_are_no_hard_links(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on vfat and some shares."""

    def none(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", none)
        made = store.backup.save(tmp_path / "c")
    move(f"sqlite:///{tmp_path / 'other' / 'muster.db'}", tmp_path, monkeypatch)
    assert store.backup.restore(tmp_path / "c") == made
    assert {each.name for each in tmp_path.iterdir()} >= {"b", "c", "home"}
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def damaged(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


def in_sql(*statements: str) -> Any:
    def change(file: Path) -> None:
        with sqlite3.connect(file) as held:
            for statement in statements:
                held.execute(statement)

    return change


@pytest.mark.parametrize(
    "change",
    [
        damaged,
        os.unlink,
        lambda file: file.write_bytes(b"no database"),
        in_sql("DROP TABLE backup"),
        in_sql("UPDATE alembic_version SET version_num = '9999'"),
        in_sql("DELETE FROM alembic_version"),
        in_sql("DELETE FROM backup"),
        in_sql("UPDATE backup SET key = 'no key'"),
        in_sql("UPDATE backup SET made_at = 'yesterday'"),
        in_sql("DROP TABLE outbox"),
        in_sql("DELETE FROM outbox"),
        in_sql("ALTER TABLE leases RENAME COLUMN token TO another"),
    ],
)
def test_what_is_no_whole_backup_is_refused_and_changes_nothing(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    change(saved)
    move(f"sqlite:///{tmp_path / 'other' / 'muster.db'}", tmp_path, monkeypatch)
    with pytest.raises(BadBackup) as refused:
        store.backup.restore(saved)
    assert "\n" not in str(refused.value)
    assert store.engine.state().schema is None
    assert not store.signing.key_path().exists()


def test_another_key_is_not_replaced(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move(f"sqlite:///{tmp_path / 'other' / 'muster.db'}", tmp_path, monkeypatch)
    store.signing.new_key()
    before = store.signing.key_path().read_bytes()
    with pytest.raises(ControllerFault):
        store.backup.restore(saved)
    assert store.signing.key_path().read_bytes() == before
    assert store.engine.state().schema is None
    shutil.copy(tmp_path / "home" / "certificate.key", store.signing.key_path())
    store.backup.restore(saved)
    in_flight.assert_goes_on(saved)
