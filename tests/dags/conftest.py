"""A fleet for DAG runs inside the test's own process: records, a node behind a real sshd, a mail sink, our DAGs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import airflow_home, sshd

assert airflow_home.HOME, "before anything imports Airflow"

from aiosmtpd.controller import Controller  # noqa: E402
from aiosmtpd.handlers import Message  # noqa: E402

from muster import records  # noqa: E402

NODE = "this-node"


class Mailbox(Message):
    """Keeps what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.mails.append(message)


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Airflow's metadata database, with our DAGs in it."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def mailbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    box = Mailbox()
    port = sshd.free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    yield box
    controller.stop()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty fleet records."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "muster"))
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.3")
    records.upgrade()
    yield tmp_path / "muster"
    records.dispose()


@pytest.fixture
def server(tmp_path: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sshd.Sshd]:
    """This machine as a node, enrolled as cpu-generic."""
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    with sshd.running(tmp_path / "node", {"MUSTER_BOOT_ID_FILE": str(boot)}) as started:
        monkeypatch.setenv("MUSTER_SSH_KEY_FILE", str(started.key_file))
        node = started.node(NODE)
        records.add_node(
            records.NewNode(
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
