"""Rules of mail in the settings, a clock of the tests, and a chat that receives notifications."""

from __future__ import annotations

import contextlib
import datetime
import email
import email.message
import email.policy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from muster import store
from muster.model.runs import RunKey
from muster.reporting import mailing
from tests.muster import fleet

MONDAY = datetime.datetime(2026, 11, 23, 23, 30, tzinfo=datetime.UTC)
NOTIFIER = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"


def use(patch: pytest.MonkeyPatch, *rules: dict[str, Any]) -> None:
    patch.setenv("MUSTER_MAIL_RULES", json.dumps(rules))


class Clock:
    """The time of mails and of the outbox."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = MONDAY
        patch.setattr(store.clock, "now", lambda: self.now)


def queued() -> list[tuple[str, str, str]]:
    """(recipients, subject, text) of each mail in the outbox."""
    found = []
    for each in store.outbox.pending():
        message = email.message_from_bytes(store.outbox.message(each.id), policy=email.policy.default)
        body = message.get_body(("plain",))
        assert body is not None
        found.append((str(message["To"]), str(message["Subject"]), str(body.get_content())))
    return found


def report_of(node: str, *, well: bool = False, **labels: str) -> str:
    store.nodes.add(fleet.new_node(node, labels=labels))
    run = (fleet.qualify if well else fleet.fail)(node).run_id
    return mailing.send_report(RunKey(fleet.DAG, run))


class Sink:
    """A mail server: what Airflow's own notifier sends arrives here."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        self.subjects.append(str(email.message_from_bytes(envelope.content, policy=email.policy.default)["Subject"]))
        return "250 OK"

    @contextlib.contextmanager
    def serving(self, port: int) -> Iterator[None]:
        controller = Controller(self, hostname="127.0.0.1", port=port)
        controller.start()
        try:
            yield
        finally:
            controller.stop()


def connection(patch: pytest.MonkeyPatch, name: str, port: int) -> None:
    server = {"conn_type": "smtp", "host": "127.0.0.1", "port": port}
    extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 0, "timeout": 5}
    patch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(server | {"extra": extra}))


def chat(name: str, **more: object) -> dict[str, Any]:
    """A rule that notifies through Airflow's own notifier for mails, by the connection ``name``."""
    arguments = {
        "to": "chat@x.org", "from_email": "m@x.org", "html_content": ".", "smtp_conn_id": name,
        "subject": "{{ node }} {{ verdict }} {{ state }}: {{ headline }}",
    }  # fmt: skip
    return {"name": name, "notifier": NOTIFIER, "arguments": arguments} | more
