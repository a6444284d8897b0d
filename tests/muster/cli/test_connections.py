"""The login with which the command line scans host keys: empty only where no source of connections has one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cli.doctor import connections
from muster.errors import ControllerFault
from muster.remote.login import Credentials


class Source:
    """A source of connections, which finds ``found`` or fails with it."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def get_connection(self, conn_id: str) -> Any:
        """As Airflow's own sources."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


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
