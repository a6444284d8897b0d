"""The schema and its migrations, databases that are not there, and processes that fork."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event, select, text

from muster import store
from muster.errors import DatabaseNotReady
from muster.store.database import access, clock, engine
from muster.store.database.models import RunRow, StageRow
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.conftest import POSTGRESQL
from tests.support.servers.postgresql import PostgreSQL

BOTH = pytest.mark.parametrize("empty_db", ["sqlite", POSTGRESQL], indirect=True)


@BOTH
def test_an_empty_database_says_what_to_do_and_upgrading_twice_is_harmless(empty_db: str) -> None:
    with pytest.raises(DatabaseNotReady):
        store.nodes.find()
    assert store.engine.upgrade() == (None, engine.SCHEMA)
    assert store.engine.upgrade() == (engine.SCHEMA, engine.SCHEMA)
    assert store.nodes.find() == []


@BOTH
def test_upgrades_at_once_take_turns(empty_db: str) -> None:
    with ThreadPoolExecutor(max_workers=2) as people:
        assert {after for _, after in people.map(lambda _: upgrade_alone(), range(2))} == {engine.SCHEMA}
    assert store.nodes.find() == []


def upgrade_alone() -> tuple[str | None, str]:
    """In a process of its own, as two operators would."""
    code = "from muster import store; print(*store.engine.upgrade())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split()
    return before, after


@pytest.mark.parametrize("empty_db", [POSTGRESQL], indirect=True)
def test_records_that_take_no_writes_are_not_ready(empty_db: str) -> None:
    store.engine.upgrade()
    with engine.engine().begin() as connection:
        database = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(f"ALTER DATABASE {database} SET default_transaction_read_only = on"))
    store.engine.dispose()
    assert store.nodes.find() == []
    with pytest.raises(DatabaseNotReady):
        store.outbox.add("run-1", b"one")


@pytest.mark.parametrize("empty_db", [POSTGRESQL], indirect=True)
def test_a_user_without_the_right_to_make_tables_is_not_ready(empty_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clerk = f"clerk_{uuid.uuid4().hex}"
    with engine.engine().begin() as connection:
        connection.execute(text(f"CREATE ROLE {clerk} LOGIN"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))  # as from PostgreSQL 15 on
    try:
        monkeypatch.setenv("MUSTER_DATABASE_URL", empty_db.replace("muster@", f"{clerk}@", 1))
        with pytest.raises(DatabaseNotReady, match="owner"):
            store.engine.upgrade()
    finally:
        store.engine.dispose()
        monkeypatch.setenv("MUSTER_DATABASE_URL", empty_db)
        with engine.engine().begin() as connection:
            connection.execute(text(f"DROP ROLE {clerk}"))


def test_the_code_needs_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(engine.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == engine.SCHEMA


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize("found", ["0000", "9999"])
def test_another_schema_is_refused(found: str) -> None:
    with engine.engine().connect() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{found}'"))
        connection.commit()
    with pytest.raises(DatabaseNotReady):
        store.nodes.find()


UNUSABLE = (
    "postgresql://muster:secret@127.0.0.1:1/none",
    "postgresql://muster:x@y:secret@127.0.0.1/none",
    "postgresql://muster:pw@127.0.0.1:1,127.0.0.1:2/none",
    "nonsense",
    "oracle://x",
    "sqlite:////proc/none/muster.db",
)


@pytest.mark.parametrize("url", UNUSABLE)
def test_a_database_that_cannot_be_had_is_one_sentence(
    muster_home: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", url)
    with pytest.raises(DatabaseNotReady) as refused:
        store.nodes.find()
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("muster_home")
@pytest.mark.parametrize(
    ("url", "named"), [("sqlite:////x?timeout=abc", "abc"), ("postgresql://muster@db1:1,db2:2/none", "?host=")]
)
def test_what_cannot_be_used_in_a_url_is_named(monkeypatch: pytest.MonkeyPatch, url: str, named: str) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", url)
    with pytest.raises(DatabaseNotReady) as refused:
        store.nodes.find()
    assert named in str(refused.value)


@pytest.mark.usefixtures("muster_home")
def test_no_secret_of_the_url_is_shown_and_each_host_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = "password=secret&sslpassword=secret&host=db1:5432&host=db2:5432"
    monkeypatch.setenv("MUSTER_DATABASE_URL", f"postgresql://muster:secret@/none?{given}")
    monkeypatch.setattr(engine, "version", lambda _: None)
    with pytest.raises(DatabaseNotReady) as refused:
        store.nodes.find()
    for shown in (str(refused.value), store.engine.state().url):
        assert "secret" not in shown
        assert "db1" in shown
        assert "db2" in shown


def test_a_database_host_that_says_nothing_is_given_up(muster_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, as a proxy does whose database is gone, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"postgresql://muster@127.0.0.1:{silent.getsockname()[1]}/muster"
        monkeypatch.setenv("MUSTER_DATABASE_URL", f"{place}?connect_timeout=2")
        options: dict[str, object] = {}
        event.listen(engine.engine(), "do_connect", lambda _dialect, _record, _args, given: options.update(given))
        with pytest.raises(DatabaseNotReady):
            store.nodes.find()
    assert {name: options[name] for name in engine.SILENT} == {**engine.SILENT, "connect_timeout": "2"}


@pytest.mark.parametrize("empty_db", [POSTGRESQL], indirect=True)
def test_who_is_in_a_hurry_waits_for_no_lock(empty_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow's scheduler, which does nothing else while it releases a node."""
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 1)
    store.engine.upgrade()
    with engine.engine().begin() as other:
        other.execute(text("LOCK TABLE nodes IN EXCLUSIVE MODE"))
        with pytest.raises(DatabaseNotReady), store.engine.hurried():
            store.nodes.add(fleet.new_node())
    store.nodes.add(fleet.new_node())


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
@pytest.mark.parametrize("known", [True, False])
def test_threads_that_hold_all_connections_still_have_the_time(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    access.now()
    monkeypatch.setattr(clock, "_asked", {key: (0.0, moment) for key, (_, moment) in clock._asked.items() if known})
    all_hold, url = threading.Barrier(10), str(engine.engine().url)

    def hold(_: int) -> datetime.datetime:
        with engine.reading() as session:
            session.execute(text("SELECT 1"))
            all_hold.wait(60)
            return access.now()

    with ThreadPoolExecutor(max_workers=10) as requests:
        assert len(list(requests.map(hold, range(10)))) == 10
    assert clock._asked[url][0] > 0


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
@pytest.mark.parametrize("state", ["25P03", "25P04", "40P01", "54000", "55P03", "57014"])
def test_what_the_server_ends_or_refuses_is_one_sentence(state: str) -> None:
    raised = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"
    with pytest.raises(DatabaseNotReady) as refused, engine.reading() as session:
        session.execute(text(raised))
    assert ("database is running" in str(refused.value)) is (state in engine.ENDED)


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("muster_home")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_keeps_every_character_or_is_refused(
    encoding: str, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As createdb makes them on a server without a UTF-8 locale."""
    with postgresql.database(f"template0 ENCODING '{encoding}'") as url:
        monkeypatch.setenv("MUSTER_DATABASE_URL", url)
        if encoding == "LATIN1":
            with pytest.raises(DatabaseNotReady, match=encoding):
                store.engine.upgrade()
            return
        store.engine.upgrade()
        store.nodes.add(fleet.new_node(rack="Saal 3 – Größe ≥ 2"))
        assert store.nodes.get("gpu-0001").rack == "Saal 3 – Größe ≥ 2"


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
def test_no_statement_is_prepared() -> None:
    with engine.reading() as session:
        for _ in range(10):
            prepared = session.scalar(text("SELECT count(*) FROM pg_prepared_statements"))
    assert prepared == 0


@pytest.mark.needs_postgresql
@pytest.mark.usefixtures("postgresql_db")
def test_who_gets_no_connection_in_time_finds_the_records_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(10):
            held.enter_context(engine.reading()).execute(text("SELECT 1"))
        monkeypatch.setattr(engine.engine().pool, "_timeout", 0)
        with pytest.raises(DatabaseNotReady):
            store.nodes.find()


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.both_dialects
def test_a_forked_process_has_connections_of_its_own() -> None:
    """Airflow's workers fork after we may have been used: parent and child must not talk over one socket."""
    store.nodes.add(fleet.new_node())
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store.nodes.touch_contact("gpu-0001")
            status = 0
        finally:
            os._exit(status)
    store.nodes.touch_contact("gpu-0001")
    assert os.waitpid(pid, 0)[1] == 0
    assert store.nodes.get("gpu-0001").contact_at is not None


@pytest.mark.usefixtures("sqlite_db")
def test_a_process_opens_the_records_once_and_a_forked_one_opens_its_own() -> None:
    opened: list[int] = []
    event.listen(engine.engine(), "connect", lambda *_: opened.append(os.getpid()))
    store.nodes.add(fleet.new_node())
    store.nodes.find()
    assert opened == [os.getpid()]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store.nodes.find()
            store.nodes.find()
            status = 0 if opened[1:] == [os.getpid()] else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert [node.name for node in store.nodes.find()] == ["gpu-0001"]
    assert len(opened) == 1


def test_importing_the_records_opens_nothing(muster_home: Path) -> None:
    code = (
        "import sys, muster.store as r; from muster.store.database import engine; "
        "heavy = {'alembic', 'pyarrow', 'airflow', 'great_expectations'} & set(sys.modules); "
        "sys.exit(bool(engine._engines or heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert not muster_home.exists()


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.both_dialects
def test_a_number_of_a_stage_run_or_job_that_was_deleted_is_not_given_again() -> None:
    """Placements, goldens, certificates and failures are ordered by such numbers."""
    store.nodes.add(fleet.new_node())
    numbers: list[tuple[int, int]] = []
    for run_id in ("first", "second"):
        lease = fleet.begin(run_id=run_id)
        fleet.do_stage(lease, "intake", Verdict.PASS)
        store.leases.release(lease.key, "over")
        with engine.writing() as session:
            run = session.scalars(select(RunRow)).one()
            stage = session.scalars(select(StageRow)).one()
            numbers.append((run.id, stage.id))
            session.delete(stage)
            session.flush()
            session.delete(run)
    (run_before, stage_before), (run_after, stage_after) = numbers
    assert run_after > run_before
    assert stage_after > stage_before
