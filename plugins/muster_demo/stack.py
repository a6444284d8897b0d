"""Airflow on its embedded defaults (SQLite, LocalExecutor, one machine), with each component a service of the demo.

``airflow standalone`` neither restarts a component that died nor lets a test kill one alone. The API server runs as two
processes: the half for people writes its audit log from the event loop, and in one process would wait there for
SQLite's lock, which a task's request holds while it waits for the loop.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Mapping

import httpx

from muster_demo.hosts import Keys
from muster_demo.services import ServiceFailed, Supervisor, free_port, tail
from muster_demo.watchdog import die_with_parent

COMPONENTS = ("api-server", "execution-api", "scheduler", "dag-processor", "triggerer")
PARALLELISM = 4
"""With more tasks at once SQLite stays locked and the scheduler dies."""

SQLITE_PATIENCE_S = 30
"""Seconds that a component waits for another's transaction; SQLite's default of 5 s is short under load."""

READY_S = 180.0


@dataclasses.dataclass(frozen=True)
class Login:
    """Where Airflow listens, for people and (on its own port) for tasks, and how to enter."""

    port: int
    execution_port: int
    username: str
    password: str

    @property
    def url(self) -> str:
        """The address for people and the REST API."""
        return f"http://127.0.0.1:{self.port}"


def airflow_settings(login: Login, home: pathlib.Path, dags: pathlib.Path, plugins: pathlib.Path) -> dict[str, str]:
    """Airflow's configuration as environment variables: quick to react, small, reachable from this machine only."""
    database = f"{home / 'airflow.db'}?timeout={SQLITE_PATIENCE_S}"
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": str(PARALLELISM),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "operator:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{login.execution_port}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"sqlite+aiosqlite:///{database}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": login.url,
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API__INSTANCE_NAME": "Muster demo",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(64),
        "AIRFLOW__SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": "4",
        # A task must not fail because a busy laptop keeps it waiting.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        # The end of a task process is noticed at its next heartbeat; until then the scheduler treats a task that
        # resumed meanwhile as killed.
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__TRIGGERER__CAPACITY": "50",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # A changed file is read at once all the same; this is for files that could not be read. Each reading of all of
        # them takes two seconds of CPU time.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
    }


def write_password(home: pathlib.Path, username: str, password: str) -> None:
    """Set a login's password, which SimpleAuthManager would otherwise invent; other logins stay."""
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "passwords.json"
    preset = json.loads(passwords.read_text()) if passwords.exists() else {}
    passwords.touch(mode=0o600)
    passwords.write_text(json.dumps({**preset, username: password}))


def migrate(environment: Mapping[str, str], log: pathlib.Path) -> None:
    """Create Airflow's metadata database. Raises ServiceFailed with its last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
            check=False,
        )
    if ended.returncode != 0:
        raise ServiceFailed(f"Airflow's database could not be made; its last lines:\n{tail(log)}(log: {log})")


def healthy(url: str) -> bool:
    """Whether Airflow's health report has scheduler, triggerer, DAG processor and database as healthy."""
    try:
        answer = httpx.get(f"{url}/api/v2/monitor/health", timeout=5)
    except httpx.HTTPError:
        return False
    if answer.status_code != httpx.codes.OK:
        return False
    report = answer.json()
    parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
    return all((report.get(part) or {}).get("status") == "healthy" for part in parts)


class Stack:
    """The components as services, and how to tell that they are ready."""

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str], login: Login) -> None:
        self.supervisor = supervisor
        self.environment = dict(environment)
        self.login = login

    def start(self) -> None:
        """Start all components at once; does not wait."""
        for component in COMPONENTS:
            self.supervisor.start(
                component, [sys.executable, "-m", "airflow", *self._arguments(component)], self.environment
            )

    def _arguments(self, component: str) -> list[str]:
        if component == "api-server":
            return ["api-server", "--apps", "core", "--port", str(self.login.port)]
        if component == "execution-api":
            return ["api-server", "--apps", "execution", "--port", str(self.login.execution_port)]
        if component == "dag-processor":
            return [component]
        # Logs are on this machine's disk; a log server would take a fixed port.
        return [component, "--skip-serve-logs"]

    def wait_ready(self, dag_id: str) -> None:
        """Wait until every component is alive and the DAG can be triggered."""
        self.supervisor.wait_until("Airflow", lambda: healthy(self.login.url), READY_S)
        self.supervisor.wait_until(f"the DAG {dag_id}", lambda: self._knows(dag_id), READY_S)

    def token(self) -> str:
        """A bearer token for the REST API."""
        answer = httpx.post(
            f"{self.login.url}/auth/token",
            json={"username": self.login.username, "password": self.login.password},
            timeout=30,
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def _knows(self, dag_id: str) -> bool:
        headers = {"Authorization": f"Bearer {self.token()}"}
        answer = httpx.get(f"{self.login.url}/api/v2/dags/{dag_id}", headers=headers, timeout=30)
        return answer.status_code == httpx.codes.OK


def new_login() -> Login:
    """Free ports of this machine and a fresh password."""
    return Login(free_port(), free_port(), "operator", secrets.token_urlsafe(9))


def connections(keys: Keys, smtp_port: int) -> dict[str, str]:
    """Airflow's connections to the nodes and to the mail sink."""
    ssh = {"conn_type": "ssh", "extra": {"key_file": str(keys.private), "look_for_keys": False}}
    smtp = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": smtp_port,
        "extra": {"disable_ssl": True, "disable_tls": True, "from_email": "muster@localhost"},
    }
    return {"AIRFLOW_CONN_MUSTER_SSH": json.dumps(ssh), "AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(smtp)}
