"""Supervision: services start, are watched, restart alone, and end with everything they ever started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from muster_demo import watchdog
from muster_demo.services import ServiceFailed, Supervisor, base_environment, free_port, members, port_is_open


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "logs")
    yield supervisor
    supervisor.stop(patience_s=0.5)


def children_of(pid: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 5
    while not (found := psutil.Process(pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_what_a_killed_service_left_ends_with_the_rest(supervisor) -> None:
    """As a scheduler does that is killed outright: its workers go on idle, retitled, and adopted by init."""
    first = supervisor.start("scheduler", ["sh", "-c", "sleep 300; :"], os.environ)
    (worker,) = children_of(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait(5)
    second = supervisor.start("scheduler", ["sleep", "301"], os.environ)
    assert worker.is_running()
    assert members({first.pid}) == [worker]
    supervisor.stop()
    assert not watchdog.alive(worker)
    assert second.ended()


def test_one_service_is_stopped_alone(supervisor) -> None:
    one = supervisor.start("one", ["sleep", "300"], os.environ)
    other = supervisor.start("other", ["sleep", "300"], os.environ)
    supervisor.stop(["one"])
    assert one.ended()
    assert not other.ended()
    supervisor.check()


def test_a_service_that_ignores_sigterm_is_killed(supervisor) -> None:
    stubborn = supervisor.start("stubborn", ["sh", "-c", "trap '' TERM; sleep 300; sleep 300"], os.environ)
    children_of(stubborn.pid)
    supervisor.stop(patience_s=0.5)
    assert stubborn.ended()


def test_a_service_that_ends_or_never_comes_is_named(supervisor) -> None:
    supervisor.start("dud", ["sh", "-c", "echo no database >&2; exit 4"], os.environ).process.wait(5)
    with pytest.raises(ServiceFailed, match=r"dud ended with status 4; its last lines:\nno database"):
        supervisor.wait_until("the API", lambda: False, 5)
    supervisor.stop()
    supervisor.check()
    with pytest.raises(ServiceFailed, match=r"the API did not come within 0 s"):
        supervisor.wait_until("the API", lambda: False, 0)


def test_children_do_not_inherit_somebodys_airflow(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("MUSTER_HOME", "/production")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = base_environment({"MARK": "here"})
    assert environment["MARK"] == "here"
    assert not {"AIRFLOW__CORE__EXECUTOR", "MUSTER_HOME", "PYTHONDONTWRITEBYTECODE"} & set(environment)


def test_a_free_port_is_free() -> None:
    assert not port_is_open(free_port())


def test_a_port_that_was_chosen_is_chosen_by_no_other_process() -> None:
    port = free_port()
    few = f"services.SERVICE_PORTS = range({port}, {port} + 101)"
    code = f"from muster_demo import services; {few}; print({port} in [services.free_port() for _ in range(400)])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
