"""Notifications by Airflow's notifiers: retried, given up, and never in the way of a mail."""

from __future__ import annotations

import datetime
import email
import email.message
import email.policy
import json
from collections.abc import Callable
from typing import Any

import pytest

from muster import store
from muster.reporting import mailing, notices, sending
from muster_criteria.model import Verdict
from muster_demo.services import free_port
from tests.muster import fleet
from tests.muster.reporting.rules import MONDAY, Clock, Sink, chat, connection, report_of, use

pytestmark = pytest.mark.usefixtures("fleet_db", "no_server")


def test_a_notifier_of_airflow_knows_the_verdict_and_holds_up_no_mail(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    sink, port = Sink(), free_port()
    connection(monkeypatch, "chat", port)
    connection(monkeypatch, "down", free_port())
    rules = [chat("down", to=["a@x.org"]), {"name": "unknown", "notifier": "no.such.Notifier"},
             chat("chat", verdicts=["FAIL"])]  # fmt: skip
    use(monkeypatch, *rules)
    monkeypatch.setattr(sending, "deliver_mail", deliver)
    with sink.serving(port):
        connection(monkeypatch, "smtp_default", port)
        report_of("n1")
        report_of("n2", well=True)
    assert "n1 FAIL quarantine: gpu3 is slow." in sink.subjects
    assert len(sink.subjects) == 3, "one notification, and the two mails behind the notifier that is down"
    waiting = [each.key for each in store.outbox.pending()]
    assert [key.split("/")[:2] for key in waiting] == [["notify", "down"], ["notify", "unknown"]] * 2


def test_what_a_node_says_is_no_markup_of_a_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "chat", "notifier": "a.b", "an_hour": 1, "notices": True})
    said = "crashed: <!channel> <https://evil.example|approve here> @everyone [approve](https://evil.example)"
    for name in ("n1", "n2"):  # the second in a list
        store.nodes.add(fleet.new_node(name))
        lease = fleet.begin(name)
        store.runs.finish(lease.key, Verdict.INCONCLUSIVE, said)
        store.leases.release(lease.key, "over")
        mailing.send_report(lease.key)
    notices.notify("ended job 7/n1", said, of="n1")
    queued = [json.loads(store.outbox.message(each.id))["known"]["headline"] for each in store.outbox.pending()]
    assert [headline.count("‹!channel›") for headline in queued] == [1, 1, 1]
    assert not any({"<", ">", "@"} & set(headline) or "](" in headline for headline in queued)


def test_a_notification_that_failed_is_sent_by_the_next_delivery_once(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    sink, port = Sink(), free_port()
    connection(monkeypatch, "chat", port)
    use(monkeypatch, chat("chat"))
    clock = Clock(monkeypatch)
    report_of("n1")
    (key,) = [each.key for each in store.outbox.pending()]
    assert deliver(key) == (0, 1, 0)
    clock.now += datetime.timedelta(minutes=5)
    with sink.serving(port):
        assert deliver() == (1, 0, 0)
        assert deliver() == (0, 0, 0)
    assert sink.subjects == ["n1 FAIL quarantine: gpu3 is slow."]


def test_a_notification_whose_rule_is_gone_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    use(monkeypatch, chat("chat"))
    report_of("n1")
    (key,) = [each.key for each in store.outbox.pending()]
    use(monkeypatch, {"name": "chat", "to": ["a@x.org"]})
    assert deliver(key) == (0, 1, 0)
    (waiting,) = store.outbox.pending()
    assert f"muster mail drop {key}" in waiting.last_error


def test_a_rule_that_is_down_keeps_no_other_waiting_however_much_of_it_is_due(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    sink, port = Sink(), free_port()
    connection(monkeypatch, "down", free_port())
    connection(monkeypatch, "chat", port)
    use(monkeypatch, chat("down"))
    clock = Clock(monkeypatch)
    for node in range(4):
        report_of(f"n{node}")
    use(monkeypatch, chat("down"), chat("chat"))
    report_of("late")
    monkeypatch.setattr(sending, "MAILS_AT_ONCE", 3)
    clock.now += datetime.timedelta(hours=1)
    with sink.serving(port):
        assert deliver().sent == 1
    assert sink.subjects == ["late FAIL quarantine: gpu3 is slow."]


def failing(patch: pytest.MonkeyPatch, *rules: str) -> list[str]:
    """Rules whose notifiers fail at once; returns the nodes of the attempts, as they come."""
    tried: list[str] = []

    class Fails:
        def __init__(self, **_: object) -> None: ...

        def __call__(self, known: dict[str, Any]) -> None:
            tried.append(known["node"])
            raise OSError("down")

    patch.setattr("muster.reporting.notifying.import_string", lambda _path: Fails)
    use(patch, *({"name": rule, "notifier": "a.Fails"} for rule in rules))
    return tried


def test_a_notifier_that_is_down_is_tried_once_in_a_delivery_and_after_the_mails(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    sink, port = Sink(), free_port()
    connection(monkeypatch, "smtp_default", port)
    tried = failing(monkeypatch, "chat", "pager")
    clock = Clock(monkeypatch)
    for number in range(3):
        report_of(f"n{number}")
    monkeypatch.setattr(sending, "MAILS_AT_ONCE", 3)
    report = email.message.EmailMessage()
    report["Subject"], report["From"], report["To"] = "a mail", "m@x.org", "all@x.org"
    store.outbox.add("behind them", report.as_bytes())
    clock.now += datetime.timedelta(minutes=5)
    monkeypatch.setattr(sending, "FRESH", datetime.timedelta(0))
    with sink.serving(port):
        deliver()
    assert (sink.subjects, tried) == (["a mail"], ["n0", "n0"])
    deliver()
    assert tried == ["n0", "n0", "n1", "n1"], "the next delivery goes on with the others"


def test_a_notification_is_given_up_after_a_day_without_another_attempt_until_a_person_sends_it_again(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    clock = Clock(monkeypatch)
    tried = failing(monkeypatch, "chat")
    report_of("n1")
    (key,) = [each.key for each in store.outbox.pending()]
    clock.now += datetime.timedelta(hours=23)
    assert deliver(key) == (0, 1, 0)
    clock.now += datetime.timedelta(hours=2)
    assert deliver(key) == (0, 0, 1)
    assert tried == ["n1"]
    assert "OSError" in store.outbox.parked()[0].last_error
    store.outbox.resend(key, "Ada", "the pager works again")
    assert deliver(key) == (0, 1, 0)
    assert tried == ["n1", "n1"]


def test_what_is_too_old_is_given_up_at_once_and_keeps_nothing_waiting(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    clock = Clock(monkeypatch)
    tried = failing(monkeypatch, "chat")
    monkeypatch.setattr(sending, "MAILS_AT_ONCE", 3)
    for node in range(7):
        report_of(f"n{node}")
    clock.now += datetime.timedelta(hours=25)
    report_of("today")
    clock.now += datetime.timedelta(minutes=5)
    assert deliver() == (0, 1, 7)
    assert tried == ["today"]


@pytest.mark.parametrize("rule", [{"to": ["team@x.org"]}, {"notifier": "a.b"}])
def test_the_end_of_quiet_hours_brings_no_more_than_another_hour(
    monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    """Each hour of a night has its fill, and all of them come at once."""
    use(monkeypatch, {"name": "day", "an_hour": 2, "quiet": "Mon-Sun 22:00-24:00", **rule})
    clock = Clock(monkeypatch)
    midnight, hour = MONDAY.replace(hour=0, minute=0) + datetime.timedelta(days=1), datetime.timedelta(hours=1)
    clock.now = midnight - 2 * hour
    for number in range(5):
        report_of(f"n{number}")
        clock.now += hour / 3
    assert [each.retry_at for each in store.outbox.pending()] == [midnight, midnight, midnight + hour]
    clock.now = midnight
    report_of("n5")
    assert [len(store.outbox.pending(due=due)) for due in (True, False)] == [2, 3]
    clock.now = midnight + hour
    for number in range(6, 9):
        report_of(f"n{number}")
    assert [each.retry_at for each in store.outbox.pending()[3:]] == [None, None, midnight + 2 * hour]
