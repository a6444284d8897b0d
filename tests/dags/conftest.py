"""A fleet for DAG runs inside the test's own process: records, a node behind a real sshd, a mail sink, our DAGs."""

from __future__ import annotations

import contextlib
import functools
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message

from muster import store
from muster.model.nodes import NewNode
from muster_demo.services import free_port
from tests.support import airflow_home
from tests.support.plugins.skus_once import skus_checked_once  # noqa: F401 - for every test
from tests.support.plugins.statements import statements_compiled_once  # noqa: F401 - for every test
from tests.support.servers import sshd

NODE = "this-node"


class Mailbox(Message):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.mails.append(message)

    def about(self, node: str) -> list[Any]:
        """The mails whose subject names the node: at six o'clock an Airflow mails the fleet's digest too."""
        return [mail for mail in self.mails if node in mail["Subject"]]


@pytest.fixture(autouse=True)
def alarm_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's time limit would take the process's alarm clock, and with it pytest-timeout's."""
    limit = "airflow.sdk.execution_time.timeout.timeout"
    monkeypatch.setattr(limit, lambda *_args, **_options: contextlib.nullcontext())


@pytest.fixture(scope="session")
def airflow_db() -> Iterator[None]:
    """Airflow's metadata database. The first ``test()`` of a DAG parses all of ours into it; no test changes them."""
    from airflow.dag_processing import dagbag
    from airflow.utils.db import initdb

    # It sets an alarm of its own and ends all alarms with it: pytest-timeout's too.
    left = signal.getitimer(signal.ITIMER_REAL)
    initdb()
    signal.setitimer(signal.ITIMER_REAL, *left)
    with pytest.MonkeyPatch.context() as patch:
        for each in ("BundleDagBag", "sync_bag_to_db"):
            patch.setattr(dagbag, each, functools.cache(getattr(dagbag, each)))
        yield


def dag_of(dag_id: str) -> Any:
    """One of our DAGs, from its file alone."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(airflow_home.ROOT / "dags" / f"{dag_id}.py")).dags[dag_id]


@contextlib.contextmanager
def mail_sink(patch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    """A mail server to which all mail goes."""
    box = Mailbox()
    port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
    patch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    patch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    yield box
    controller.stop()


@contextlib.contextmanager
def empty_records(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fleet records without a node, in their home."""
    patch.setenv("MUSTER_HOME", str(folder / "muster"))
    patch.setenv("MUSTER_POLL_SECONDS", "0.3")
    patch.setenv(sshd.CONNECTION, sshd.connection())
    (folder / "muster").mkdir()
    (folder / "muster" / "muster.db").write_bytes(_new_database())
    yield folder / "muster"
    store.engine.dispose()


@functools.cache
def _new_database() -> bytes:
    """Made once: going through all migrations takes longer than many a test."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{folder}/muster.db")
        store.engine.upgrade()
        store.engine.dispose()
        return (Path(folder) / "muster.db").read_bytes()


@contextlib.contextmanager
def this_machine(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """This machine as a node, enrolled as cpu-generic."""
    boot = folder / "boot_id"
    boot.write_text("first\n")
    with sshd.running(folder / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as started:
        patch.setenv(sshd.CONNECTION, sshd.connection(started.key_file))
        node = started.node(NODE)
        store.nodes.add(
            NewNode(
                name=NODE,
                host=node.host,
                port=node.port,
                user=node.user or "",
                host_key=" ".join(node.host_key.split()[:2]),
                sku="cpu-generic",
                launch={"kind": "python", "python": sys.executable},
                work_dir=node.work_dir,
            )
        )
        yield started
        sshd.kill_jobs(started.home / "muster")


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    with mail_sink(monkeypatch) as box:
        yield box


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with empty_records(tmp_path, monkeypatch) as home:
        yield home


@pytest.fixture
def server(tmp_path: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    with this_machine(tmp_path, monkeypatch) as started:
        yield started
