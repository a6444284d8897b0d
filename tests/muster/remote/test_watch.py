"""A BMC that is read while a job runs: with its login, joined to what it told before, and never in the job's way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from muster import records
from muster.judging.chassis import Chassis, reading
from muster.records import JobRecord
from muster.remote import redfish
from muster.remote.bmc import Login
from muster.remote.watch import Watch

BEFORE = Chassis((reading("fan_speed", "fan0", 8000.0, None, "Fan 1"),))
JOB = JobRecord("dag", "run", "burn_in", "0.0", "running", "", chassis=BEFORE.to_json())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[JobRecord]:
    """The job as it is recorded."""
    written: list[JobRecord] = []
    monkeypatch.setattr(records, "get_job", lambda *_: JOB)
    monkeypatch.setattr(records, "record_job", written.append)
    return written


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """With which login the BMC was asked; it tells of a fan that stands still."""
    logins: list[Any] = []

    def ask(described: Any, stage: str, who: Login | None = None) -> Chassis:
        logins.append(who)
        return Chassis((reading("fan_speed", "fan0", 0.0, None, "Fan 1"),), trouble="it is slow")

    monkeypatch.setattr(redfish, "ask", ask)
    return logins


def read(**bmc: str) -> str:
    watch = Watch.of(JOB, {"url": "http://bmc", **bmc})
    assert watch is not None
    return asyncio.run(Watch(**json.loads(json.dumps(watch))).read())


def test_what_is_worse_than_before_is_kept_with_the_job(kept: list[JobRecord], asked: list[Any]) -> None:
    assert read() == "it is slow"
    (job,) = kept
    assert [each.value for each in Chassis.from_json(job.chassis).readings] == [0.0]
    assert (job.state, job.attempt_key) == (JOB.state, JOB.attempt_key)
    assert asked == [Login()]


def test_its_login_comes_from_its_connection(
    kept: list[JobRecord], asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_BMC", json.dumps({"conn_type": "http", "login": "root", "password": "secret"}))
    read(connection="my_bmc")
    assert asked == [Login("root", "secret")]
    assert "secret" not in json.dumps(Watch.of(JOB, {"url": "http://bmc", "connection": "my_bmc"}))


def test_a_connection_that_is_not_there_is_told(kept: list[JobRecord], asked: list[Any]) -> None:
    assert "there is no Airflow connection no_such_bmc" in read(connection="no_such_bmc")
    assert (kept, asked) == ([], [])


@pytest.mark.parametrize(
    ("seconds", "stage", "bmc"),
    [("0", "burn_in", {"url": "http://bmc"}), ("900", "intake", {"url": "http://bmc"}), ("900", "burn_in", {})],
)
def test_it_is_not_read_where_it_need_not_be(
    monkeypatch: pytest.MonkeyPatch, seconds: str, stage: str, bmc: dict[str, str]
) -> None:
    monkeypatch.setenv("MUSTER_BMC_SECONDS", seconds)
    assert Watch.of(JobRecord("dag", "run", stage, "0.0", "running", ""), bmc) is None
