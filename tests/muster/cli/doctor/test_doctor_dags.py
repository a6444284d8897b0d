"""``muster doctor`` names DAGs that stopped."""

from __future__ import annotations

import datetime

import httpx
import pytest

from muster import store
from muster.cli.doctor import doctor
from muster.cli.doctor.checks import Mark
from muster.integration.airflow_api import AirflowClient
from muster.model import dags
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from tests.muster import fleet
from tests.muster.integration.test_airflow_api import Airflow

ALL = dags.STOPPED_AFTER


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, sqlite_db: str) -> Airflow:
    api = Airflow()
    made = AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(api))
    monkeypatch.setattr(AirflowClient, "from_settings", lambda: made)
    return api


@pytest.mark.parametrize(
    ("state", "hours", "found"),
    [("success", 0.5, 0), ("success", 2, len(ALL) - 2), ("failed", 0, len(ALL)), ("success", -2, len(ALL))],
)
def test_a_dag_whose_last_run_failed_or_is_long_ago_or_dated_ahead_is_missing(
    airflow: Airflow, state: str, hours: float, found: int
) -> None:
    end = (store.clock.now() - datetime.timedelta(hours=hours)).isoformat()
    airflow.override = lambda _: httpx.Response(200, json={"dag_runs": [{"state": state, "end_date": end}]})
    with AirflowClient.from_settings() as client:
        checks = list(doctor.stopped(client, dict.fromkeys(dags.ALL, False)))
    assert [each.mark for each in checks] == [Mark.MISSING] * found


@pytest.mark.parametrize(("hours", "found"), [(0, 0), (2, len(ALL) - 2), (99, len(ALL))])
def test_a_dag_without_an_ended_run_is_missing_once_nodes_are_enrolled_for_so_long(
    airflow: Airflow, hours: float, found: int
) -> None:
    airflow.override = lambda _: httpx.Response(200, json={"dag_runs": []})
    with AirflowClient.from_settings() as client:
        assert list(doctor.stopped(client, dict.fromkeys(dags.ALL, False))) == [], "there is no node yet"
        store.nodes.add(fleet.new_node("a"))
        with writing() as session:
            session.get_one(NodeRow, "a").added_at -= datetime.timedelta(hours=hours)
        checks = list(doctor.stopped(client, dict.fromkeys(dags.ALL, False)))
    assert [each.mark for each in checks] == [Mark.MISSING] * found


def test_records_that_are_away_end_no_examination_of_schedules(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", "postgresql+psycopg://u:p@127.0.0.1:1/m")
    with AirflowClient.from_settings() as client:
        assert list(doctor.stopped(client, dict.fromkeys(dags.ALL, False))) == []
