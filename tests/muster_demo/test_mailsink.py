"""The mail sink speaks SMTP, and what it files opens in a browser."""

from __future__ import annotations

import smtplib
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from muster_demo.services import Supervisor, base_environment

PNG = b"\x89PNG\r\n\x1a\nnot really"


@pytest.fixture
def sink(tmp_path) -> Iterator[tuple[int, Path]]:
    supervisor = Supervisor(tmp_path / "logs")
    port_file = tmp_path / "port"
    command = [sys.executable, "-m", "muster_demo.mailsink", str(tmp_path / "mail"), str(port_file)]
    supervisor.start("mail", command, base_environment({}))
    supervisor.wait_until("the mail sink", port_file.exists, 20)
    yield int(port_file.read_text()), tmp_path / "mail"
    supervisor.stop()


def message() -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "muster@localhost", "fleet@localhost", "sim-h100-1: FAIL ≥"
    mail.set_content("plain: FAIL")
    mail.add_alternative('<p>FAIL</p><img src="cid:chart">', subtype="html")
    mail.get_payload()[1].add_related(PNG, "image", "png", cid="<chart>")
    mail.add_attachment(b"{}", "application", "json", filename="result.json")
    return mail


def test_mails_are_filed_whole_and_as_pages(sink) -> None:
    port, folder = sink
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as client:
        client.send_message(message())
        client.send_message(message())
    assert sorted(path.name for path in folder.iterdir()) == ["001.eml", "001.html", "002.eml", "002.html"]
    page = (folder / "001.html").read_text()
    assert "data:image/png;base64," in page
    assert "cid:" not in page


def test_an_oversized_mail_is_refused_and_not_filed(sink) -> None:
    port, folder = sink
    mail = message()
    mail.add_attachment(bytes(40 * 1024 * 1024), "application", "octet-stream", filename="big")
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as client, pytest.raises(smtplib.SMTPException):
        client.send_message(mail)
    assert list(folder.iterdir()) == []
