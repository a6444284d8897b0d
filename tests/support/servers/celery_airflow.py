"""Airflow as a fleet would deploy it, on this machine: CeleryExecutor, Redis, PostgreSQL, two workers, two triggerers.

``SETTINGS`` are what a deployment has to set beyond Airflow's defaults, with shorter times than a fleet would choose;
``plugins/muster/deploy/values.yaml`` has the same names for the Helm chart.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import psutil

from muster_demo.services import Supervisor, free_port, port_is_open
from muster_demo.stack import Stack, airflow_settings, migrate, new_login, write_password
from muster_demo.watchdog import end_all
from tests.support import airflow_home, orphans
from tests.support.servers.postgresql import PostgreSQL

WORKERS = ("worker-1", "worker-2")
TRIGGERERS = ("triggerer-1", "triggerer-2")
COMPONENTS = ("api-server", "execution-api", "scheduler", "dag-processor", *TRIGGERERS, *WORKERS)
CONCURRENCY = 3
"""Task processes of one worker."""

SETTINGS = {
    "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
    "AIRFLOW__CELERY__WORKER_PREFETCH_MULTIPLIER": "1",
    "AIRFLOW__CELERY__TASK_ACKS_LATE": "True",
    "AIRFLOW__CELERY__SYNC_PARALLELISM": "1",
    "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "600",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "90",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__CAPACITY": "1000",
    "AIRFLOW__TRIGGERER__MAX_TRIGGER_TO_SELECT_PER_LOOP": "5",
    "MUSTER_RETRY_SECONDS": "5",
    "MUSTER_BURN_SLOTS": "1000",
}


class CeleryStack(Stack):
    """The components as services, Redis before them."""

    def start(self) -> None:
        """Start Redis, and then all components at once; does not wait for them."""
        for component in COMPONENTS:
            kind, _, number = component.partition("-")
            arguments = self._arguments(kind) if number.isdigit() else self._arguments(component)
            if component in WORKERS:
                arguments = ["celery", "worker", "--skip-serve-logs", "--celery-hostname", component]
            self.supervisor.start(component, [sys.executable, "-m", "airflow", *arguments], self.environment)

    def task_processes(self, worker: str) -> list[psutil.Process]:
        """The processes of a worker that run a task at this moment."""
        running = []
        for process in self._processes(worker):
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith("airflow worker -- "):
                    running.append(process)
        return running

    def connections(self, component: str, ports: Set[int]) -> int:
        """How many connections a component has open to these ports."""
        return sum(
            bool(connection.raddr) and connection.raddr.port in ports
            for process in self._processes(component)
            for connection in process.net_connections("tcp4")
        )

    def freeze(self, component: str) -> None:
        """Suspend a component, as an overloaded machine would: it lives, but sends no heartbeat."""
        for process in self._processes(component):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self, component: str) -> None:
        """Resume a frozen component."""
        for process in self._processes(component):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self, component: str) -> None:
        """End a component and all its processes at once, as if its machine had lost power. It is not started again."""
        service = self.supervisor.services.pop(component)
        end_all([psutil.Process(service.pid)], patience_s=0)
        service.process.wait(10)

    def _processes(self, component: str) -> list[psutil.Process]:
        root = psutil.Process(self.supervisor.services[component].pid)
        return [root, *root.children(recursive=True)]


@contextlib.contextmanager
def running(
    supervisor: Supervisor,
    folder: Path,
    postgresql: PostgreSQL,
    environment: Mapping[str, str],
    concurrency: int = CONCURRENCY,
) -> Iterator[CeleryStack]:
    """All of it with our DAGs, not waited for; ``environment`` is what the components see besides these settings, or in
    place of them.
    ``concurrency``: task processes of one worker.

    The supervisor stays the caller's to stop, who may have started other services with it.
    """
    login = new_login()
    home = folder / "airflow"
    write_password(home, login.username, login.password)
    redis_port = free_port()
    settings = {
        **airflow_settings(login, home, airflow_home.ROOT / "dags", airflow_home.ROOT / "plugins"),
        # Airflow derives from it the asynchronous URL and that of Celery's results, as it does with the Helm values.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgresql.create("airflow"),
        "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{redis_port}/0",
        **SETTINGS,
        "AIRFLOW__CORE__PARALLELISM": str(concurrency * len(WORKERS)),
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(concurrency),
        "MUSTER_AIRFLOW_URL": login.url,
        **environment,
    }
    del settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"]
    migrate(settings, folder / "logs" / "migrate.log")
    stack = CeleryStack(supervisor, settings, login)
    _start_redis(supervisor, redis_port, folder, environment)
    try:
        stack.start()
        yield stack
    finally:
        supervisor.stop(["redis", *(name for name in COMPONENTS if name in supervisor.services)])
        orphans.end(home)


def _start_redis(supervisor: Supervisor, port: int, folder: Path, environment: Mapping[str, str]) -> None:
    program = shutil.which("redis-server")
    assert program, "no redis-server: tests.support.plugins.services_needed should have refused the run"
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    supervisor.start("redis", command, environment)
    supervisor.wait_until("Redis", lambda: port_is_open(port), 30)
