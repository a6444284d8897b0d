"""Runs that end at the same moment send one mail each, and housekeeping leaves fresh mails to them."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable

import pytest
from sqlalchemy import delete, update

from muster import store
from muster.errors import DatabaseNotReady
from muster.model.queues import OutboxMessage, Refusal
from muster.reporting import notifying, sending
from muster.store.database.engine import writing
from muster.store.database.outgoing import OutboxRow
from muster_reports.mail import build_notice

pytestmark = pytest.mark.usefixtures("sqlite_db")


class Hook:
    """Stands in for the SMTP hook; ``taken`` is what the mail server was given."""

    taken: list[bytes]

    def __init__(self, smtp_conn_id: str) -> None: ...

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_error: object) -> None: ...


@pytest.fixture
def taken(monkeypatch) -> list[bytes]:
    sent: list[bytes] = []
    monkeypatch.setattr(sending, "SmtpHook", Hook)
    monkeypatch.setattr(sending, "_send", lambda _hook, raw, _recipients: sent.append(raw))
    return sent


def test_a_run_sends_its_own_mail_only(taken) -> None:
    store.outbox.add("run-1", b"one")
    store.outbox.add("run-2", b"two")
    assert sending.deliver_mail("run-2") == (1, 0, 0)
    assert sending.deliver_mail("run-1") == (1, 0, 0)
    assert sending.deliver_mail("run-1") == (0, 0, 0)
    assert taken == [b"two", b"one"]


def test_housekeeping_sends_what_failed_and_what_was_abandoned_but_nothing_fresh(taken) -> None:
    for key in ("fresh", "failed", "abandoned"):
        store.outbox.add(key, key.encode())
    waiting = {mail.key: mail.id for mail in store.outbox.pending()}
    store.outbox.failed(waiting["failed"], b"failed", "connection refused")
    long_ago = datetime.datetime.now(datetime.UTC) - 2 * sending.FRESH
    with writing() as session:
        session.execute(update(OutboxRow).where(OutboxRow.key == "abandoned").values(created_at=long_ago))
        session.execute(update(OutboxRow).where(OutboxRow.key == "failed").values(retry_at=long_ago))
    assert sending.deliver_mail() == (2, 1, 0)
    assert sorted(taken) == [b"abandoned", b"failed"]


def test_a_mail_that_was_tried_waits_for_its_time_when_it_is_made_again(taken) -> None:
    store.outbox.add("run-1", b"one")
    (tried,) = store.outbox.pending(due=True)
    store.outbox.failed(tried.id, b"one", "450 later")
    monday = store.clock.now() + datetime.timedelta(days=2)
    store.outbox.add("run-1", b"after the quiet hours", monday)
    assert store.outbox.pending(due=True) == []
    assert [each.retry_at for each in store.outbox.pending()] == [monday]


def test_a_sender_that_was_held_up_sends_nothing_that_another_has_sent_meanwhile(taken, monkeypatch) -> None:
    """Of a list that it has read before; the mail at which it was held up is its own."""
    for key in ("one", "two", "three"):
        store.outbox.add(key, key.encode())
    long_ago = datetime.datetime.now(datetime.UTC) - 2 * sending.FRESH
    with writing() as session:
        session.execute(update(OutboxRow).values(created_at=long_ago))
    others = iter([sending.deliver_mail])

    def held_up(_hook: object, raw: bytes, _recipients: object) -> None:
        for other in others:
            other()
        taken.append(raw)

    monkeypatch.setattr(sending, "_send", held_up)
    assert sending.deliver_mail().sent == 1
    assert sorted(taken) == [b"one", b"three", b"two"]
    assert store.outbox.pending() == []


@pytest.mark.parametrize("key", ["run-1", "notify/chat/run-1"])
def test_a_sender_that_was_held_up_after_its_claim_sends_no_empty_mail(taken, monkeypatch, key: str) -> None:
    """Another process has sent it meanwhile, or a person has dropped it."""
    take = store.outbox.take
    monkeypatch.setattr(notifying, "send", lambda _key, raw, *_: taken.append(raw))

    def sent(message_id: int) -> None:
        store.outbox.sent(message_id, b"one")

    for over in (sent, lambda _id: store.outbox.drop(key, "Ada", "it is out of date")):
        store.outbox.add(key, b"one")

        def held_up(seen: OutboxMessage, over: Callable[[int], object] = over) -> bool:
            claimed = take(seen)
            over(seen.id)
            return claimed

        monkeypatch.setattr(store.outbox, "take", held_up)
        assert sending.deliver_mail(key).sent == 0
        with writing() as session:
            session.execute(delete(OutboxRow))
    assert taken == []


@pytest.mark.parametrize(
    "refusal",
    [None, Refusal("try later", permanent=False), Refusal("no such user", permanent=True)],
    ids=["accepted", "deferred", "refused"],
)
def test_a_mail_that_a_person_drops_while_it_is_sent_keeps_no_other_waiting(taken, monkeypatch, refusal) -> None:
    for key in ("one", "two"):
        store.outbox.add(key, key.encode())
    with writing() as session:
        session.execute(update(OutboxRow).values(created_at=datetime.datetime.now(datetime.UTC) - 2 * sending.FRESH))

    def dropped(_hook: object, raw: bytes, _recipients: object) -> Refusal | None:
        taken.append(raw)
        return refusal if store.outbox.drop("one", "Ada", "it is out of date") else None

    monkeypatch.setattr(sending, "_send", dropped)
    sending.deliver_mail()
    assert taken == [b"one", b"two"]
    assert (store.outbox.pending(), store.outbox.parked()) == ([], [])


def test_a_mail_is_sent_once_though_the_records_are_away_when_it_was_accepted(taken, monkeypatch) -> None:
    monkeypatch.setattr(store.patience, "AGAIN_S", 0.0)
    record, away = store.outbox.sent, iter([True, True])

    def sent(message_id: int, message: bytes) -> None:
        if next(away, False):
            raise DatabaseNotReady("it restarts")
        record(message_id, message)

    monkeypatch.setattr(store.outbox, "sent", sent)
    store.outbox.add("run-1", b"one")
    assert sending.deliver_mail("run-1") == (1, 0, 0)
    assert taken == [b"one"]
    assert store.outbox.waiting() == 0


def test_records_that_stay_away_are_reported(taken, monkeypatch) -> None:
    monkeypatch.setattr(store.patience, "AWAY_S", 0.0)
    monkeypatch.setattr(store.patience, "AGAIN_S", 0.0)

    def sent(_message_id: int, _message: bytes) -> None:
        raise DatabaseNotReady("it is gone")

    monkeypatch.setattr(store.outbox, "sent", sent)
    store.outbox.add("run-1", b"one")
    with pytest.raises(DatabaseNotReady):
        sending.deliver_mail("run-1")


def made(sentence: str) -> bytes:
    """A mail whose bytes are others each time, as those of a report."""
    mail = build_notice("run-1", sentence, "muster@example.org", ["a@example.org"], ())
    mail.add_attachment(b"{}", "application", "json")
    return mail.as_bytes()


@pytest.mark.parametrize("sentence", ["one", "another"])
def test_a_mail_that_is_made_again_while_it_is_sent_goes_once_and_another_version_of_it_later(
    taken, monkeypatch, sentence: str
) -> None:
    first, made_again = made("one"), made(sentence)
    store.outbox.add("run-1", first)

    def slow(_hook: object, raw: bytes, _recipients: object) -> None:
        taken.append(raw)
        if len(taken) == 1:
            assert store.outbox.add("run-1", made_again) == "replaced"
            sending.deliver_mail("run-1")
            sending.deliver_mail()

    monkeypatch.setattr(sending, "_send", slow)
    sending.deliver_mail("run-1")
    assert taken == [first]
    sending.deliver_mail("run-1")
    assert taken == [first, made_again][: 1 + (sentence != "one")]
    assert store.outbox.pending() == []


def test_a_notification_that_is_made_again_while_it_is_sent_goes_once(monkeypatch) -> None:
    sent: list[str] = []

    def slow(key: str, *_: object) -> None:
        sent.append(key)
        store.outbox.notify("chat", "run-1", {"headline": "one"})

    monkeypatch.setattr(notifying, "send", slow)
    key = store.outbox.notify("chat", "run-1", {"headline": "one"})
    assert [sending.deliver_mail(key).sent for _ in range(2)] == [1, 0]
    assert sent == [key]


def test_a_server_that_another_process_cannot_reach_ends_no_claim() -> None:
    store.outbox.add("run-1", b"one")
    (seen,) = store.outbox.pending()
    assert store.outbox.take(seen)
    store.outbox.unreachable(seen.id, "connection refused")
    assert store.outbox.pending() == [seen]
    assert not store.outbox.take(seen)


@pytest.mark.parametrize("accepted", [True, False])
def test_how_an_attempt_ended_says_nothing_of_what_replaced_the_mail_meanwhile(accepted: bool) -> None:
    store.outbox.add("run-1", first := made("one"))
    (seen,) = store.outbox.pending()
    assert store.outbox.take(seen)
    due = store.clock.now() + datetime.timedelta(hours=8)
    store.outbox.add("run-1", made("another"), due)
    if accepted:
        store.outbox.sent(seen.id, first)
    else:
        store.outbox.failed(seen.id, first, "550 no such user", park=True, recipients=["a@example.org"])
    (waiting,) = store.outbox.pending()
    assert waiting == dataclasses.replace(seen, retry_at=due)
    assert store.outbox.take(waiting)


def test_no_line_of_a_list_is_lost_that_comes_while_it_is_sent() -> None:
    due, lines = store.clock.now(), "\n".join
    store.outbox.gather("flood", "run-1", "one", lambda each: lines(each).encode(), due)
    (waiting,) = store.outbox.pending(key="flood")
    assert store.outbox.take(waiting)
    on_its_way = store.outbox.message(waiting.id)
    assert store.outbox.gather("flood", "run-2", "two", lambda each: lines(each).encode(), due)
    store.outbox.sent(waiting.id, on_its_way)
    assert [store.outbox.message(each.id) for each in store.outbox.pending()] == [b"one\ntwo"]
