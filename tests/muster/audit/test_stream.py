"""The audit stream: nothing is lost and all comes in order, whatever the receiver does; each event has its login."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster import acting, store
from muster.audit import sinks, stream
from muster.cli.doctor import doctor
from muster.errors import BadSettings, ControllerFault, NoPerson
from muster.model.queues import AuditEvent, AuditLag
from muster.model.states import State
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import writing
from tests.muster import fleet
from tests.muster.audit import receivers

pytestmark = pytest.mark.usefixtures("fleet_db")

NODE = "gpu-0001"


def write(number: int, begin: int = 0) -> None:
    """Events with reasons that would break a line, a frame or a terminal."""
    if begin == 0:
        store.nodes.add(fleet.new_node(NODE))
    with acting.under("airflow:ada"), writing() as session:
        for each in range(begin, begin + number):
            reason = f"remark {each}\n<34>1 \x1b[31m ü " + "x" * 40
            access.write_event(session, NODE, State.REGISTERED, State.REGISTERED, "Ada", reason, {})


@pytest.mark.both_dialects
def test_a_decision_that_concerns_no_node_is_audited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_CERTIFICATE_KEY_FILE", str(tmp_path / "key"))
    for key in ("sent-again", "dropped"):
        store.outbox.add(key, b"x")
    with acting.under("os:ada"):
        store.outbox.resend("sent-again", "Ada", "the server is mended")
        store.outbox.drop("dropped", "Ada", "of last year")
        assert not store.outbox.drop("unknown", "Ada", "of last year")
        store.signing.replace_key("Ada", "the old one was lost")
        with pytest.raises(ControllerFault):
            store.signing.replace_key("Ada", "a key is there")
    for refused in (store.outbox.resend, store.outbox.drop):
        with pytest.raises(NoPerson):
            refused("sent-again", "Ada", " ")
    with pytest.raises(NoPerson):
        store.signing.replace_key("admin", "why not")
    events = store.audit.batch("siem", 9)
    assert [(each.kind, each.node, each.actor, each.login) for each in events] == [("audit", "", "Ada", "os:ada")] * 3
    assert [each.evidence.get("mail") for each in events] == ["sent-again", "dropped", None]
    assert [each.reason.rpartition(": ")[2] for each in events] == [
        "the server is mended", "of last year", "the old one was lost",
    ]  # fmt: skip


def configure(monkeypatch: pytest.MonkeyPatch, **configured: dict[str, Any]) -> None:
    monkeypatch.setenv("MUSTER_AUDIT_SINKS", json.dumps(configured, default=str))


def first_seen(got: list[dict[str, Any]]) -> list[int]:
    """Ids in the order of their first delivery."""
    return list(dict.fromkeys(event["id"] for event in got))


def everything() -> list[int]:
    return [event.id for event in store.audit.batch("none", 10**6)]


def lag(sink: str) -> AuditLag:
    return next(each for each in store.audit.lags() if each.sink == sink)


def test_syslog_that_breaks_midway_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = receivers.certificate(tmp_path)
    with receivers.syslog(pem) as receiver:
        configure(monkeypatch, siem={"kind": "syslog", "host": "127.0.0.1", "port": receiver.port, "ca_file": pem})
        write(700)
        receiver.faults = ["reset", "silent", "", "reset"]
        assert stream.deliver() == {"siem": 0}
        assert (lag("siem").waiting, bool(lag("siem").last_error)) == (len(everything()), True)
        assert stream.deliver() == {"siem": 0}  # "silent": it has all of them, and did not confirm
        assert stream.deliver() == {"siem": stream.BATCH}
        assert stream.deliver() == {"siem": len(everything()) - stream.BATCH}
        assert first_seen(receiver.got) == everything()
        assert (lag("siem").waiting, lag("siem").last_error) == (0, "")
        last = receiver.got[-1]
        assert (last["login"], last["kind"], last["node"]) == ("airflow:ada", "audit", NODE)
        assert receiver.headers[-1].startswith("<109>1 ")


def test_a_receiver_that_confirms_nothing_can_be_configured_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = receivers.certificate(tmp_path)
    with receivers.syslog(pem) as receiver:
        place = {"kind": "syslog", "host": "127.0.0.1", "port": receiver.port, "ca_file": pem, "confirm": False}
        configure(monkeypatch, siem=place)
        write(3)
        receiver.faults = ["silent"]
        assert stream.deliver() == {"siem": len(everything())}


@contextlib.contextmanager
def http_receiver(folder: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> Iterator[receivers.Receiver]:
    """A receiver over HTTP, to which events are sent with the token of a file."""
    pem = receivers.certificate(folder)
    (folder / "token").write_text(token)
    with receivers.web(pem) as receiver:
        url = f"https://127.0.0.1:{receiver.port}/in"
        configure(monkeypatch, siem={"kind": "http", "url": url, "ca_file": pem, "token_file": folder / "token"})
        yield receiver


def test_http_that_fails_midway_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver(tmp_path, monkeypatch, "t0ken\n") as receiver:
        write(1200)
        receiver.faults = ["500", "drop", "302", "", "mute", "413"]
        sent = [stream.deliver()["siem"] for _ in range(6)]
        assert sent[:3] == [0, 0, 0]
        assert sum(sent) == len(everything())
        assert first_seen(receiver.got) == everything()
        assert set(receiver.headers) == {"Bearer t0ken"}


def test_a_batch_is_no_larger_than_receivers_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that is larger by itself is sent alone."""
    pem = receivers.certificate(tmp_path)
    write(1)
    large = 250
    with writing() as session:
        for number in range(500):
            evidence = {"before": "x" * (2 * stream.BATCH_BYTES if number == large else 3000)}
            access.write_event(session, NODE, State.REGISTERED, State.REGISTERED, "Ada", "changed", evidence)
    before = len(everything()) - 500 + large
    with receivers.web(pem) as receiver:
        url = f"https://127.0.0.1:{receiver.port}/in"
        configure(monkeypatch, siem={"kind": "http", "url": url, "ca_file": pem})
        receiver.most = 300_000
        assert stream.deliver() == {"siem": before}
        receiver.most = 600_000
        assert stream.deliver() == {"siem": 500 - large}
        assert [event["id"] for event in receiver.got] == everything()


def test_a_slow_receiver_keeps_no_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    plain = sinks.FileSink.send

    def send(self: sinks.FileSink, events: Sequence[AuditEvent]) -> None:
        nonlocal now
        now += 20.0 if self.path.name == "slow" else 0.0
        plain(self, events)

    monkeypatch.setattr(sinks.FileSink, "send", send)
    monkeypatch.setattr(stream, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(stream, "BATCH", 10)
    configure(monkeypatch, **{name: {"kind": "file", "path": tmp_path / name} for name in ("slow", "quick")})
    write(200)
    assert stream.deliver() == {"slow": 30, "quick": len(everything())}
    assert stream.deliver() == {"slow": 30, "quick": 0}


def test_a_token_that_no_header_can_hold_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver(tmp_path, monkeypatch, "t0ken\nand more\n"):
        write(1)
        assert stream.deliver() == {"siem": 0}
        assert lag("siem").last_error
        assert "t0ken" not in lag("siem").last_error


def test_a_day_without_receiver_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver that is down keeps no other waiting, and gets all that was written meanwhile."""
    pem = receivers.certificate(tmp_path)
    with receivers.syslog(pem) as receiver:
        port = receiver.port
    siem = {"kind": "syslog", "host": "127.0.0.1", "port": port, "ca_file": pem}
    configure(monkeypatch, siem=siem, disk={"kind": "file", "path": tmp_path / "audit.jsonl"})
    for hour in range(24):
        write(10, begin=hour * 10)
        delivered = stream.deliver()
        assert (delivered["siem"], delivered["disk"] >= 10) == (0, True)
    assert lag("siem").waiting == len(everything())
    with receivers.syslog(pem, port) as receiver:
        assert stream.deliver() == {"siem": len(everything()), "disk": 0}
        assert first_seen(receiver.got) == everything()
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == everything()


def test_a_receiver_under_another_certificate_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = receivers.certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other = receivers.certificate(tmp_path / "other")
    write(1)
    with receivers.syslog(pem) as receiver, receivers.web(pem) as site:
        configure(
            monkeypatch,
            siem={"kind": "syslog", "host": "127.0.0.1", "port": receiver.port, "ca_file": other},
            site={"kind": "http", "url": f"https://127.0.0.1:{site.port}/", "ca_file": other},
            named={"kind": "syslog", "host": "localhost", "port": receiver.port, "ca_file": pem},
        )
        assert stream.deliver() == {"siem": 0, "site": 0, "named": 0}
        assert receiver.got == site.got == []


def test_a_torn_line_does_not_join_the_next(tmp_path: Path) -> None:
    write(2)
    path = tmp_path / "audit.jsonl"
    path.write_text('{"id": 1, "no')
    sinks.FileSink(kind="file", path=path).send(store.audit.batch("disk", 9))
    torn, *lines = path.read_text().splitlines()
    assert (torn, [json.loads(line)["id"] for line in lines]) == ('{"id": 1, "no', everything())


@pytest.mark.both_dialects
def test_an_event_that_is_committed_late_is_not_passed_over(fleet_db: str) -> None:
    """PostgreSQL gives ids when rows are inserted: a transaction that is slow to commit has the lower id."""
    if fleet_db.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    write(1)
    got: list[AuditEvent] = []
    reader = threading.Thread(target=lambda: got.extend(store.audit.batch("siem", 100)))
    with writing() as session:
        access.write_event(session, NODE, State.REGISTERED, State.REGISTERED, "slow", "first", {})
        quick = threading.Thread(target=write, args=(1, 1))
        quick.start()
        quick.join()
        reader.start()
        reader.join(1.0)
    reader.join()
    assert [event.reason[:6] for event in got][-2:] == ["first", "remark"]


@pytest.mark.both_dialects
def test_a_writer_that_keeps_the_events_locked_only_delays_a_delivery(
    fleet_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fleet_db.startswith("sqlite"):
        pytest.skip("SQLite takes no lock here")
    monkeypatch.setattr("muster.store.queues.audit.LOCK_TIMEOUT_MS", 100)
    configure(monkeypatch, disk={"kind": "file", "path": tmp_path / "audit.jsonl"})
    write(1)
    got: list[dict[str, int]] = []
    with writing() as session:
        access.write_event(session, NODE, State.REGISTERED, State.REGISTERED, "slow", "first", {})
        delivery = threading.Thread(target=lambda: got.append(stream.deliver()))
        delivery.start()
        delivery.join()
    assert got == [{"disk": 0}]
    assert lag("disk").last_error
    assert stream.deliver() == {"disk": len(everything())}


def test_a_sink_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = {"kind": "http", "url": "http://siem.example/", "token_file": "token"}
    with pytest.raises(BadSettings) as refused:
        sinks.sink("siem", {"kind": "a-secret"})
    assert "a-secret" not in str(refused.value)
    for wrong in (
        {"kind": "mail"},
        {},
        {"kind": "file"},
        {"kind": "http", "url": "no"},
        {"kind": "file", "pth": "x"},
        clear,
    ):
        configure(monkeypatch, siem=wrong)
        with pytest.raises(BadSettings, match="siem"):
            sinks.sink("siem", wrong)
        assert doctor.audit_stream(settings()).mark is doctor.Mark.MISSING


def test_one_receiver_that_cannot_be_used_keeps_no_other_waiting(
    sqlite_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: a token file that is no text, an address that is none."""
    store.nodes.add(fleet.new_node())
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    bad = {"kind": "http", "url": "https://127.0.0.1:9/T0/secret", "token_file": str(tmp_path / "token")}
    good = {"kind": "file", "path": str(tmp_path / "events")}
    monkeypatch.setenv("MUSTER_AUDIT_SINKS", json.dumps({"a": bad, "b": {"kind": "none"}, "c": good}))
    assert stream.deliver() == {"a": 0, "b": 0, "c": len((tmp_path / "events").read_text().splitlines())}
    assert [bool(each.last_error) for each in store.audit.lags()] == [True, True, False]


def test_events_of_restored_records_are_other_events(sqlite_db: Path, tmp_path: Path) -> None:
    """They are given the ids of those that were lost: a receiver that knows events by their id would drop them."""
    lost = AuditEvent(7, "2026-11-01T00:00:00+00:00", "audit", "n1", "a", "a", "Ada", "", "admitted", {})
    given = [
        json.loads(sinks.as_json(each))["uid"] for each in (lost, lost, dataclasses.replace(lost, reason="withdrawn"))
    ]
    assert given[0] == given[1] != given[2]
