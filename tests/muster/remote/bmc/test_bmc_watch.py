"""A BMC that is read while a job runs: its worst readings are kept with the job."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import tracemalloc
from typing import Any, NoReturn

import pytest

from muster import store
from muster.model.runs import Job
from muster.remote.bmc import redfish
from muster.remote.bmc import watch as bmc_watch
from muster.remote.bmc.bmc import BadBmc, Bmc, Login
from muster.remote.bmc.watch import BmcWatch
from muster_criteria.chassis import Chassis, reading
from tests.support.servers import bmc as bmcs

BEFORE = Chassis((reading("fan_speed", "fan0", 8000.0, None, "Fan 1"),))
JOB = Job("dag", "run", "burn_in", "0.0", "running", "", chassis=BEFORE.to_json())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The job as it is recorded."""
    written: list[Job] = []
    monkeypatch.setattr(store.runs, "get_job", lambda *_: JOB)

    def change(job: Job, **columns: str) -> None:
        written.append(dataclasses.replace(job, **columns))  # type: ignore[arg-type]

    monkeypatch.setattr(store.runs, "change_job", change)
    return written


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """With which login the BMC was asked, and of which machine; it reports a fan that stands still."""
    logins: list[Any] = []

    def fake_read(described: Any, stage: str, who: Login | None = None, *, serial: str) -> Chassis:
        logins.append((who, serial))
        return Chassis((reading("fan_speed", "fan0", 0.0, None, "Fan 1"),), trouble="it is slow")

    monkeypatch.setattr(redfish, "ask", fake_read)
    return logins


def read(login: Any = None) -> str:
    async def who(_bmc: Bmc) -> Login:
        if login is None:
            raise BadBmc("there is no Airflow connection no_such_bmc")
        return login

    watch = BmcWatch.of(JOB, {"url": "http://bmc"}, "S1")
    assert watch is not None
    return asyncio.run(watch.read(who))


def test_the_worst_is_kept_with_the_job(kept: list[Job], requests: list[Any]) -> None:
    assert read(Login("root", "secret")) == "it is slow"
    (job,) = kept
    assert [each.value for each in Chassis.from_json(job.chassis).readings] == [0.0]
    assert (job.state, job.attempt_key) == (JOB.state, JOB.attempt_key)
    assert requests == [(Login("root", "secret"), "S1")]


def test_the_slow_bmcs_of_a_large_block_delay_no_job_beyond_the_end_of_its_waiting() -> None:
    """Each waits for a thread between two polls of its node; the task has at least ten minutes more than the job."""
    assert math.ceil(64 / bmc_watch._THREADS._max_workers) * redfish.LIMIT_S < 600


def test_a_login_that_is_missing_is_reported(kept: list[Job], requests: list[Any]) -> None:
    assert "no_such_bmc" in read()
    assert (kept, requests) == ([], [])


@pytest.mark.parametrize(
    ("seconds", "stage", "bmc"),
    [("0", "burn_in", {"url": "http://bmc"}), ("900", "intake", {"url": "http://bmc"}), ("900", "burn_in", {})],
)
def test_it_is_not_read_where_it_need_not_be(
    monkeypatch: pytest.MonkeyPatch, seconds: str, stage: str, bmc: dict[str, str]
) -> None:
    monkeypatch.setenv("MUSTER_BMC_SECONDS", seconds)
    assert BmcWatch.of(Job("dag", "run", stage, "0.0", "running", ""), bmc, "") is None


@pytest.mark.parametrize("name", ["Location", "X-Auth-Token"])
def test_a_header_that_is_no_ascii_costs_the_reading_alone(name: str) -> None:
    with bmcs.answering(lambda _: (301, {name: "/redfish/v1/\xe9"}, b"{}")) as bmc:
        found = redfish.ask({"url": bmc.url}, "burn_in", Login("muster", "secret"), serial="")
    assert found is not None
    assert found.trouble


def test_whatever_a_reading_raises_costs_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object, **__: object) -> NoReturn:
        raise KeyError("Members")

    monkeypatch.setattr(redfish.documents, "of_chassis", odd)
    found = redfish.ask({"url": "http://127.0.0.1"}, "burn_in", Login(), serial="")
    assert found is not None
    assert found.trouble


def test_documents_that_unpack_to_many_times_their_size_take_bounded_memory() -> None:
    """A triggerer reads eight BMCs at once."""
    piece = b"[],"
    body = b'{"Chassis": [' + piece * ((redfish.CHASSIS_BYTES_MAX - 1000) // len(piece)) + b"0]}"
    with bmcs.answering(lambda _: (200, {}, body)) as bmc:
        tracemalloc.start()
        try:
            found = redfish.ask({"url": bmc.url}, "burn_in", Login(), serial="")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found is not None
    assert found.trouble
    assert peak < 160 * 2**20
