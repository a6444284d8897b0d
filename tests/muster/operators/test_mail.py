"""Mails against a real SMTP server: one that it refuses does not hold up those behind it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from muster import records
from muster.operators import upkeep
from muster_demo.services import free_port

pytestmark = pytest.mark.usefixtures("sqlite_db")

ANSWERS = {"refused": "554 no", "busy": "451 later", "fine": "250 OK"}


class Server:
    """Answers each mail as its subject asks."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        subject = envelope.content.decode().partition("Subject: ")[2].split()[0]
        self.tried.append(subject)
        return ANSWERS[subject]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    handler, port = Server(), free_port()
    controller = Controller(handler, hostname="127.0.0.1", port=port)
    controller.start()
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    monkeypatch.setattr(upkeep, "FRESH", datetime.timedelta(0))
    yield handler
    controller.stop()


def add(*subjects: str) -> None:
    for subject in subjects:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = subject, "muster@example.org", "fleet@example.org"
        records.outbox_add(subject, mail.as_bytes())


def test_a_refused_mail_is_parked_and_a_deferred_one_backs_off(server: Server) -> None:
    add("refused", "busy", "fine")
    assert upkeep.deliver_mail() == (1, 1, 1)
    assert server.tried == ["refused", "busy", "fine"]
    assert upkeep.deliver_mail() == (0, 1, 1), "the mail server is not asked again at once"
    assert len(server.tried) == 3
    (parked,) = records.outbox_parked()
    assert (parked.key, "554" in parked.last_error) == ("refused", True)


def test_a_run_sends_its_own_mail_behind_a_hundred_that_wait(server: Server) -> None:
    add(*(["busy"] + [f"busy {number}" for number in range(100)]), "fine")
    assert upkeep.deliver_mail("fine") == (1, 0, 0)
    assert server.tried == ["fine"]


def test_a_parked_mail_that_is_rendered_again_is_tried_again(server: Server) -> None:
    add("refused")
    upkeep.deliver_mail()
    assert records.outbox_add("refused", b"Subject: fine\nFrom: m@example.org\nTo: f@example.org\n\n") == "replaced"
    assert upkeep.deliver_mail() == (1, 0, 0)
