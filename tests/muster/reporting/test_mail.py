"""Mails against a real SMTP server: one that it refuses does not hold up those behind it."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import os
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from muster import store
from muster.reporting import mailing, sending
from muster_demo.services import free_port
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

ANSWERS = {"refused": "554 no", "busy": "451 later", "fine": "250 OK"}


class Server:
    """Answers each mail as its subject asks."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.unknown: dict[str, str] = {}
        self.recipients: list[list[str]] = []

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:
        if address in self.unknown:
            return self.unknown[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        subject = envelope.content.decode().partition("Subject: ")[2].split()[0]
        self.tried.append(subject)
        self.recipients.append(envelope.rcpt_tos)
        return ANSWERS[subject]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    handler, port = Server(), free_port()
    controller = Controller(handler, hostname="127.0.0.1", port=port)
    controller.start()
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
    monkeypatch.setattr(sending, "FRESH", datetime.timedelta(0))
    yield handler
    controller.stop()


def add(*subjects: str, to: str = "fleet@example.org") -> None:
    for subject in subjects:
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = subject, "muster@example.org", to
        store.outbox.add(subject, mail.as_bytes())


def test_a_refused_mail_is_parked_and_a_deferred_one_backs_off(server: Server) -> None:
    add("refused", "busy", "fine")
    assert sending.deliver_mail() == (1, 1, 1)
    assert server.tried == ["refused", "busy", "fine"]
    assert sending.deliver_mail() == (0, 1, 1), "the mail server is not asked again at once"
    assert len(server.tried) == 3
    (parked,) = store.outbox.parked()
    assert (parked.key, "554" in parked.last_error) == ("refused", True)


def test_a_run_sends_its_own_mail_behind_a_hundred_that_wait(server: Server) -> None:
    add(*(["busy"] + [f"busy {number}" for number in range(100)]), "fine")
    assert sending.deliver_mail("fine") == (1, 0, 0)
    assert server.tried == ["fine"]


def test_a_parked_mail_that_is_rendered_again_is_tried_again(server: Server) -> None:
    add("refused")
    sending.deliver_mail()
    assert store.outbox.add("refused", b"Subject: fine\nFrom: m@example.org\nTo: f@example.org\n\n") == "replaced"
    assert sending.deliver_mail() == (1, 0, 0)


def test_a_recipient_that_is_refused_is_kept_and_the_others_get_the_mail_once(server: Server) -> None:
    server.unknown = {"gone@example.org": "550 no such user", "full@example.org": "452 mailbox full"}
    add("fine", to="gone@example.org, fleet@example.org, full@example.org")
    assert sending.deliver_mail() == (0, 1, 0)
    (waiting,) = store.outbox.pending()
    assert waiting.recipients == ("full@example.org", "gone@example.org")
    assert "550" in waiting.last_error
    server.unknown.pop("full@example.org")
    assert store.outbox.add("fine", store.outbox.message(waiting.id)) == "replaced"
    assert sending.deliver_mail() == (0, 0, 1)
    (parked,) = store.outbox.parked()
    assert (parked.recipients, server.recipients) == (
        ("gone@example.org",),
        [["fleet@example.org"], ["full@example.org"]],
    )
    corrected = b"Subject: fine\nFrom: m@example.org\nTo: Fleet@example.org, new@example.org\n\n"
    assert store.outbox.add("fine", corrected) == "replaced"
    assert sending.deliver_mail() == (1, 0, 0)
    assert server.recipients[2:] == [["new@example.org"]]


def test_a_mail_of_which_the_refused_recipient_is_removed_is_sent(server: Server) -> None:
    server.unknown = {"gone@example.org": "550 no such user"}
    add("fine", to="gone@example.org, fleet@example.org")
    sending.deliver_mail()
    assert store.outbox.add("fine", b"Subject: fine\nFrom: m@example.org\nTo: fleet@example.org\n\n") == "sent already"
    assert sending.deliver_mail() == (0, 0, 0)


def test_a_server_that_leaves_amid_the_recipients_keeps_the_mail_from_none(server: Server) -> None:
    """It accepts the first, and ends the connection at the next one."""
    first, second, third = (f"{name}@example.org" for name in "abc")
    leaves, full = "421 4.3.2 shutting down", "452 mailbox full"
    add("fine", to=f"{first}, {second}, {third}")
    for unknown in ({second: leaves}, {second: full, third: full}, {third: leaves}):
        server.unknown = unknown
        store.outbox.resend("fine", "Ada", "the server is there again")
        assert sending.deliver_mail() == (0, 1, 0)
    server.unknown = {}
    store.outbox.resend("fine", "Ada", "the server is there again")
    assert sending.deliver_mail() == (1, 0, 0)
    assert server.recipients == [[first], [second, third]]


def test_a_server_that_was_down_gets_all_mails_at_the_next_delivery(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = json.loads(os.environ["AIRFLOW_CONN_SMTP_DEFAULT"])
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps({**up, "port": free_port()}))
    add("fine", "fine too")
    for _ in range(8):
        assert sending.deliver_mail() == (0, 2, 0)
    assert store.outbox.pending()[0].last_error
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(up))
    assert sending.deliver_mail() == (2, 0, 0)


def test_a_mail_and_the_history_hold_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "p4ss-w0rd"
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", f"smtp://muster:{secret}@mail.example.org")
    launch = {"kind": "python", "python": "/usr/bin/python3", "env": {"HF_TOKEN": secret}}
    node = fleet.new_node("n1", host="n1")
    store.nodes.add(node)
    store.nodes.add(dataclasses.replace(node, launch=launch))
    key = fleet.fail("n1").key
    mailing.send_report(key, node="n1")
    (mail,) = store.outbox.pending()
    message = store.outbox.message(mail.id)
    parts = [part.get_payload(decode=True) or b"" for part in message_from_bytes(message).walk()]
    unpacked = [gzip.decompress(part) if part[:2] == b"\x1f\x8b" else part for part in parts]
    assert any(b"n1" in part for part in unpacked)
    assert not any(secret.encode() in part for part in (message, *unpacked))
    assert "launch" in str(store.nodes.events("n1"))
    assert secret not in str(store.nodes.events("n1"))
