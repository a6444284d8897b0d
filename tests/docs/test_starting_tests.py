"""docs/starting-tests.md: the users that docs/deploying.md sets up may send each request that is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "starting-tests.md").read_text().replace("\\\n", "")
USERS = re.search(r"^(AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS)=(.+)$", (DOCS / "deploying.md").read_text(), re.M)
REQUESTS = re.findall(r'curl (.*?)"\$AIRFLOW/api/v2/([\w/]+)', PAGE)
SENDER = re.search(r'"username": "(\w+)"', PAGE)


def test_the_user_who_is_shown_may_send_each_request_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    assert USERS is not None
    assert SENDER is not None
    monkeypatch.setenv(USERS[1], USERS[2])
    manager = SimpleAuthManager()
    user = {user.username: user for user in manager.get_users()}[SENDER[1]]
    asked = set()
    for options, path in REQUESTS:
        method = "POST" if "-X POST" in options else "GET"
        asked.add((method, path.partition("/")[0]))
        if path.startswith("dags/"):
            assert manager.is_authorized_dag(method=method, access_entity=DagAccessEntity.RUN, user=user), path
        else:
            assert manager.is_authorized_asset(method=method, user=user), path
    assert asked == {("POST", "dags"), ("GET", "assets"), ("POST", "assets")}


def test_a_request_that_is_refused_ends_with_a_status() -> None:
    """Without this option curl ends with 0, whatever the answer."""
    for path in [*DOCS.glob("*.md"), *(DOCS / "examples").glob("*.*")]:
        for line in re.findall(r"\bcurl -.*|\bcurl --.*", path.read_text()):
            assert "--fail" in line, f"{path.name}: {line}"


def test_the_token_of_the_webhook_is_renewed() -> None:
    """Airflow's tokens expire, and NetBox sends one header until it is changed."""
    from airflow.configuration import conf

    hours = conf.getint("api_auth", "jwt_expiration_time") // 3600
    example = (DOCS / "examples" / "netbox_webhook.yaml").read_text()
    for text in (example, PAGE, (DOCS / "deploying.md").read_text()):
        assert f"{hours} hours" in text
        assert "AIRFLOW__API_AUTH__JWT_EXPIRATION_TIME" in text
