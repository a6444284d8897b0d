"""A private PostgreSQL, made of the binaries of Debian's package."""

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
from sqlalchemy import URL

from muster import store


class PostgreSQL:
    """A server of our own: socket in its folder, no network, no fsync.

    Raises FileNotFoundError where PostgreSQL is not installed; a test that needs it is refused before that.
    """

    def __init__(self, folder: Path, connections: int = 50, superuser: str = "muster") -> None:
        self.folder = folder
        self.superuser = superuser
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        initdb = str(found[-1]) if found else shutil.which("initdb")
        if not initdb:
            raise FileNotFoundError("no initdb: install PostgreSQL")
        self.bin = Path(initdb).parent
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root; its package brings the user postgres.
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_user = ["runuser", "-u", "postgres", "--"]
        data = folder / "data"
        self.call("initdb", "-D", str(data), "-U", superuser, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": folder,
            "fsync": "off",
            "max_connections": connections,
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self.call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")

    def create(self, name: str) -> str:
        """Make an empty database; gives its URL."""
        self.call("createdb", "-h", str(self.folder), "-U", self.superuser, name)
        return self.url(name)

    def call(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._as_user, str(self.bin / program), *args], capture_output=True, text=True, cwd="/", check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr or done.stdout}"

    @contextlib.contextmanager
    def database(self, template: str) -> Iterator[str]:
        """A new database for as long as the block lasts; yields its URL."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
            yield self.url(name)
            store.engine.dispose()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, database: str, user: str = "") -> str:
        """The URL for the superuser, unless ``user`` is given."""
        return f"postgresql://{user or self.superuser}@/{database}?host={self.folder}"

    @property
    def pid(self) -> int:
        """The server's own process; each connection has a child of it."""
        return int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])

    def stop(self) -> None:
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")


def copy(url: URL, source: str, target: str) -> None:
    """Replace the database ``target`` by a copy of ``source``, which has no connections, on the server of this URL."""
    plain = url.set(drivername="postgresql", database="postgres").render_as_string()
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{target}" TEMPLATE "{source}"')


@contextlib.contextmanager
def running(connections: int = 50, superuser: str = "muster") -> Iterator[PostgreSQL]:
    """A started server in a folder that its user may enter, ended and removed with the block."""
    folder = Path(tempfile.mkdtemp(prefix="muster-pg-"))
    server = PostgreSQL(folder, connections, superuser)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
