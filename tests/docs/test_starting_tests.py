"""docs/starting-tests.md: what its requests need, and what they keep secret."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "starting-tests.md").read_text().replace("\\\n", "")
REQUESTS = re.findall(r'curl (.*?)"\$AIRFLOW/api/v2/([\w/]+)', PAGE)
TEXTS = [path.read_text() for path in (*DOCS.rglob("*.md"), *(DOCS / "examples").glob("*.*"))]
CALLS = [call for text in TEXTS for call in re.findall(r"\bcurl -.*", re.sub(r"\\\n#?", "", text))]
SENDER = re.search(r'"username": "(\w+)"', PAGE)


def test_the_roles_that_are_named_may_send_each_request_that_is_shown() -> None:
    """The role that deploying.md gives starts tests; asset events alone need the other, which this page names."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    assert SENDER is not None
    assert f"`{SENDER[1]}:op`" in PAGE
    manager, asked = SimpleAuthManager(), set()
    user, op = (SimpleAuthManagerUser(username=SENDER[1], role=role) for role in ("user", "op"))
    for options, path in REQUESTS:
        method = "POST" if "-X POST" in options else "GET"
        asked.add((method, path.partition("/")[0]))
        if path.startswith("dags/"):
            assert manager.is_authorized_dag(method=method, access_entity=DagAccessEntity.RUN, user=user), path
        else:
            assert manager.is_authorized_asset(method=method, user=op), path
            assert manager.is_authorized_asset(method=method, user=user) is (method == "GET"), path
    assert asked == {("POST", "dags"), ("GET", "assets"), ("POST", "assets")}


def test_a_request_that_is_refused_ends_with_a_status() -> None:
    """Without this option curl ends with 0, whatever the answer."""
    assert len(CALLS) > 5
    assert [call for call in CALLS if call.count("--fail") < len(re.findall(r"\bcurl -", call))] == []


def test_no_secret_stands_in_an_argument() -> None:
    assert [call for call in CALLS if re.search(r"(-H|--header) ['\"]Authorization|\"password\"", call)] == []
    assert [text for text in TEXTS if "--conn-password" in text] == []


def test_the_token_of_the_webhook_is_renewed() -> None:
    """Airflow's tokens expire, and NetBox sends one header until it is changed."""
    from airflow.configuration import conf

    hours = conf.getint("api_auth", "jwt_expiration_time") // 3600
    example = (DOCS / "examples" / "netbox_webhook.yaml").read_text()
    for text in (example, PAGE, (DOCS / "deploying.md").read_text()):
        assert f"{hours} hours" in text
        assert "AIRFLOW__API_AUTH__JWT_EXPIRATION_TIME" in text
