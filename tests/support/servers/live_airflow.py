"""A real Airflow with our DAGs, each component a process of its own, watched and steered over REST."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.integration.airflow_api import RUN_OVER, AirflowClient
from muster_demo.services import Supervisor
from muster_demo.stack import Stack, airflow_settings, migrate, new_login, write_password
from tests.support import airflow_home, orphans
from tests.support.waiting import T, until

MARKS = (pytest.mark.needs_sshd, pytest.mark.needs_torch)
"""Of files whose nodes are tested by an Airflow that runs."""

SETTLE_S = 10.0
HANGS_S = 900.0


@contextlib.contextmanager
def running(folder: Path, ready: str, more: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Airflow with the environment as it is now, and ``more``; entered once it knows the DAG ``ready``."""
    home = folder / "airflow"
    login = new_login()
    write_password(home, login.username, login.password)
    supervisor = Supervisor(folder / "logs")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    environment = {
        **ours,
        **airflow_settings(login, home, airflow_home.ROOT / "dags", airflow_home.ROOT / "plugins"),
        "MUSTER_AIRFLOW_URL": login.url,
        **(more or {}),
    }
    migrate(environment, folder / "logs" / "migrate.log")
    stack = Stack(supervisor, environment, login)
    try:
        stack.start()
        stack.wait_ready(ready)
        yield stack
    finally:
        supervisor.stop()
        orphans.end(home)


class Desk:
    """The REST API as an operator uses it: runs, their tasks and logs."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.client = AirflowClient(stack.login.url, stack.login.username, stack.login.password)

    def wait(self, what: str, done: Callable[[], T]) -> T:
        """Returns the first true value of ``done()``."""
        late = f"{what} did not come; logs in {self.stack.supervisor.logs}"
        return until(done, what=lambda: late, limit_s=HANGS_S, step_s=0.5)

    def wait_over(self, dag_id: str, run_id: str) -> str:
        """The state in which the run ends."""
        return self.wait(f"the end of {run_id}", lambda: self._over(dag_id, run_id))

    def _over(self, dag_id: str, run_id: str) -> str:
        state = self.client.run_state(dag_id, run_id)
        return state if state in RUN_OVER else ""

    def settle(self) -> None:
        """Wait until a task process that deferred has ended.

        Airflow 3.3 treats a task that resumes before the process that deferred it has ended as killed.
        """
        time.sleep(SETTLE_S)

    def fail(self, dag_id: str, run_id: str) -> None:
        """Mark a run failed, as in the UI."""
        self.client._request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", json={"state": "failed"})

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """All runs of a DAG, as Airflow describes them."""
        return list(self.client._all(f"/dags/{dag_id}/dagRuns", "dag_runs"))

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """What the task's first try has logged."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
        return str(self.client._request("GET", path).text)
