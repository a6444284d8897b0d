"""Airflow's connections as this machine sees them: environment variables, secrets backends, metadata database."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from muster.cli.doctor.checks import Check, Mark
from muster.errors import ControllerFault
from muster.settings import settings

if TYPE_CHECKING:
    import paramiko

    from muster.remote.connection.login import Credentials
    from muster.remote.connection.ssh import Address


HIDDEN = "it is there, and cannot be decrypted or read: another Fernet key hides stored ones"
NO_TABLES = "Airflow's database has no tables"
_NO_TABLE = ("no such table", 'relation "connection" does not exist')
"""Parts of the messages of SQLite and PostgreSQL in that case."""


@dataclasses.dataclass(frozen=True)
class Connection:
    """What ``muster doctor`` needs of an Airflow connection; ``extra`` may hold secrets and is never printed."""

    host: str
    port: int
    login: str
    password: str = dataclasses.field(repr=False)
    extra: dict[str, Any] = dataclasses.field(repr=False)


@contextlib.contextmanager
def airflow_libraries() -> Iterator[None]:
    """Use Airflow's libraries in this process as a server does; what they log goes to stderr, never into JSON."""
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")  # as `airflow connections` does: asks the database too
    os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")
    with contextlib.redirect_stdout(sys.stderr):
        # Airflow sets up logging when it is first imported, so the import belongs in here.
        import airflow.settings  # noqa: F401

        for name in ("paramiko", "airflow"):
            logging.getLogger(name).setLevel(logging.ERROR)
        yield


def find(conn_id: str) -> Connection | None:
    """The connection of that id, or None if there is none here or it cannot be decrypted."""
    with airflow_libraries():
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            found = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            return None
        return Connection(
            found.host or "", found.port or 0, found.login or "", found.password or "", dict(found.extra_dejson)
        )


def credentials() -> Credentials:
    """Returns the login of Airflow's tasks; an empty one if there certainly is no SSH connection.

    Raises ControllerFault if the connection is invalid, or may exist but cannot be read.
    """
    from muster.remote.connection.login import Credentials

    conn_id = settings().ssh_conn_id
    if found := find(conn_id):
        return Credentials.of_connection(found.login, found.password, found.extra)
    if why := trouble(conn_id):
        raise ControllerFault(
            f"the Airflow connection {conn_id} cannot be used: {why}; `muster doctor` shows what it needs"
        )
    return Credentials()


def trouble(conn_id: str) -> str:
    """Why a connection that ``find`` did not find may still exist: ``HIDDEN``, ``NO_TABLES`` or a source that fails; ""
    if every source of connections answers that it has none of that id.
    """
    with airflow_libraries():
        from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

        for source in ensure_secrets_backend_loaded():
            try:
                if source.get_connection(conn_id=conn_id):
                    return HIDDEN
            except Exception as error:  # of any type: Airflow treats each as "there is none"
                if any(words in str(error) for words in _NO_TABLE):
                    return NO_TABLES
                return f"{type(source).__name__} fails with {type(error).__name__}"
    return ""


def absent(item: str, conn_id: str, fix: str) -> Check:
    """Returns the check of a connection that ``find`` did not find; ``fix``: what provides it."""
    why = trouble(conn_id)
    seen = f"no Airflow connection {conn_id} can be read here, with {_where()}"
    fixes = {
        "": fix,
        NO_TABLES: f"airflow db migrate, and {fix}",
        HIDDEN: f"set AIRFLOW__CORE__FERNET_KEY=… as the other components have it, or {fix}",
    }
    return Check(
        Mark.MISSING,
        item,
        f"{seen}: {why}" if why else seen,
        fixes.get(why, "start what fails, or correct its setting"),
    )


def given(conn_id: str, parts: dict[str, Any]) -> str:
    """Returns the fix that provides a connection by a variable, which takes precedence over a stored connection.

    Thus no command line contains its password, and no Airflow user can change it.
    """
    return f"set AIRFLOW_CONN_{conn_id.upper()}='{json.dumps(parts, ensure_ascii=False)}' for every component"


def _where() -> str:
    """Where Airflow's command line would put a connection: its home and its database, without the password."""
    with airflow_libraries():
        from airflow.configuration import conf, get_airflow_home
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            database = make_url(conf.get("database", "sql_alchemy_conn")).set(query={}).render_as_string()
        except (ArgumentError, ValueError):
            database = "one that is no URL"
        return f"AIRFLOW_HOME={get_airflow_home()} and the database {database}"


def host_key(host: str, port: int) -> str:
    """Returns the host key that answers now, over the route of the tasks. Raises Unreachable and ControllerFault."""
    from muster.remote.connection.ssh import scan_host_key

    return scan_host_key(host, port, credentials(), timeout=settings().ssh_timeout_s)


@contextlib.contextmanager
def logged_in(node: Address) -> Iterator[paramiko.SSHClient]:
    """An SSH session to a node, with the login of Airflow's tasks. Raises what ``ssh.connect`` raises."""
    with airflow_libraries():
        from muster.integration import logins

        client = logins.connect(node, timeout=settings().ssh_timeout_s, attempts=1)
        try:
            yield client
        finally:
            client.close()
