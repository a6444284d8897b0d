"""The users that docs/deploying.md and the Helm values set up may do all that Muster asks of Airflow, and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

ROOT = Path(__file__).parents[2]
PAGE = re.search(r"^AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=(.+)$", (ROOT / "docs" / "deploying.md").read_text(), re.M)
VALUES = yaml.safe_load((ROOT / "plugins" / "muster" / "deploy" / "values.yaml").read_text())
ASKED: tuple[tuple[ResourceMethod, DagAccessEntity | None], ...] = (
    ("GET", None),
    ("PUT", None),  # unpause
    ("GET", DagAccessEntity.RUN),
    ("POST", DagAccessEntity.RUN),
    ("PUT", DagAccessEntity.RUN),  # a run's note
    ("GET", DagAccessEntity.TASK_INSTANCE),
    ("PUT", DagAccessEntity.TASK_INSTANCE),  # clear
    ("GET", DagAccessEntity.HITL_DETAIL),
    ("PUT", DagAccessEntity.HITL_DETAIL),
)
"""What the routes of Airflow's API that ``AirflowClient`` and the Fleet page use ask its auth manager."""


def test_both_set_up_the_same_users() -> None:
    assert PAGE is not None
    assert VALUES["config"]["core"]["simple_auth_manager_users"] == PAGE[1]


def test_what_a_person_may(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PAGE is not None
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", PAGE[1])
    manager = SimpleAuthManager()
    users = manager.get_users()
    assert {"muster", "ada"} <= {user.username for user in users}
    for user in users:
        assert all(manager.is_authorized_dag(method=way, access_entity=entity, user=user) for way, entity in ASKED)
        assert manager.is_authorized_pool(method="GET", user=user)
        assert manager.is_authorized_view(access_view=AccessView.PLUGINS, user=user)
        assert not manager.is_authorized_pool(method="PUT", user=user)
        for method in ("GET", "POST", "PUT", "DELETE"):
            assert not manager.is_authorized_variable(method=method, user=user)
            assert not manager.is_authorized_connection(method=method, user=user)


def test_a_connection_of_the_environment_comes_before_a_stored_one() -> None:
    from airflow.sdk.execution_time.secrets import DEFAULT_SECRETS_SEARCH_PATH_WORKERS
    from airflow.secrets import DEFAULT_SECRETS_SEARCH_PATH

    for path in (DEFAULT_SECRETS_SEARCH_PATH, DEFAULT_SECRETS_SEARCH_PATH_WORKERS):
        assert "EnvironmentVariablesBackend" in path[0]
