"""Airflow's connections: what doctor says of those that lack, and the login with which host keys are scanned."""

from __future__ import annotations

import os
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from muster.cli.doctor import connections, doctor
from muster.cli.doctor.checks import Mark
from muster.errors import ControllerFault
from muster.remote.connection.login import Credentials
from muster.settings import settings


class Source:
    """A source of connections, which finds ``found`` or fails with it."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get_connection(self, conn_id: str) -> Any:
        """As Airflow's own sources."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


SSH, MAIL = "set AIRFLOW_CONN_MUSTER_SSH=", "set AIRFLOW_CONN_SMTP_DEFAULT="


@pytest.mark.parametrize(
    ("found", "before"),
    [
        (None, ""),
        (OperationalError("SELECT", {}, Exception("no such table: connection")), "airflow db migrate, and "),
        (OperationalError("SELECT", {}, Exception("connection refused")), None),
        (object(), "AIRFLOW__CORE__FERNET_KEY=… as the other components have it, or "),
    ],
    ids=["none", "no tables", "down", "hidden"],
)
def test_a_connection_is_given_only_where_no_source_of_them_fails(
    monkeypatch: pytest.MonkeyPatch, found: object, before: str | None
) -> None:
    monkeypatch.setattr("airflow.sdk.execution_time.supervisor.ensure_secrets_backend_loaded", lambda: [Source(found)])
    monkeypatch.setattr(connections, "find", lambda _: None)
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    for check, add in ((doctor.ssh_connection(settings()), SSH), (doctor.mail(settings()), MAIL)):
        assert check.mark is Mark.MISSING
        assert os.environ["AIRFLOW_HOME"] in check.message
        if before is None:
            assert add not in check.fix
        else:
            assert before + add in check.fix


def test_no_part_of_a_password_that_is_not_encoded_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with connections.airflow_libraries():
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:x@y:s3cret@db/airflow")
    monkeypatch.setattr(connections, "trouble", lambda _: "")
    assert "s3cret" not in connections.absent("mail", "smtp_default", "fix").message


@pytest.mark.parametrize(
    "extra", [{}, {"private_key": "none"}, {"key_file": "/nowhere/id"}], ids=["no key", "bad key", "no file"]
)
def test_a_connection_that_is_there_is_replaced_and_a_missing_file_is_put_there(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]
) -> None:
    monkeypatch.setattr(connections, "find", lambda _: connections.Connection("", 0, "muster", "", extra))
    check = doctor.ssh_connection(settings())
    assert check.mark is Mark.MISSING
    if "key_file" in extra:
        assert ("/nowhere/id" in check.message, "/nowhere/id" in check.fix, SSH in check.fix) == (True, True, False)
    else:
        assert check.fix.startswith(SSH)


def test_a_connection_of_mail_without_a_host_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find", lambda _: connections.Connection("", 0, "", "", {}))
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    assert doctor.mail(settings()).fix.startswith(MAIL)


@pytest.mark.parametrize(
    "found", [None, RuntimeError("the database is down"), object()], ids=["none", "down", "hidden"]
)
def test_an_empty_login_is_used_only_where_there_certainly_is_no_connection(
    monkeypatch: pytest.MonkeyPatch, found: object
) -> None:
    monkeypatch.setattr(
        "airflow.sdk.execution_time.supervisor.ensure_secrets_backend_loaded", lambda: [Source(None), Source(found)]
    )
    if found is None:
        assert connections.credentials() == Credentials()
    else:
        with pytest.raises(ControllerFault):
            connections.credentials()
