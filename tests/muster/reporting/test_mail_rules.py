"""Who gets which report, when, and through what."""

from __future__ import annotations

import contextlib
import datetime
import email
import email.message
import email.policy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from muster import store
from muster.errors import BadSettings
from muster.model.runs import PREEMPTED, RunKey
from muster.reporting import mail_rules, mailing, notices, sending
from muster.settings import settings
from muster.store.database import access
from muster_criteria.model import Verdict
from muster_demo.services import free_port
from muster_reports import charts
from tests.muster import fleet
from tests.support import lives

pytestmark = pytest.mark.usefixtures("fleet_db")

MONDAY = datetime.datetime(2026, 11, 23, 23, 30, tzinfo=datetime.UTC)
NOTIFIER = "airflow.providers.smtp.notifications.smtp.SmtpNotifier"


@pytest.fixture
def deliver() -> Callable[..., sending.Delivery]:
    """The real delivery, which ``no_server`` takes away."""
    return sending.deliver_mail


@pytest.fixture(autouse=True)
def no_server(deliver: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mail leaves the outbox."""
    monkeypatch.setattr(sending, "deliver_mail", lambda key=None: (0, store.outbox.waiting(key), 0))
    monkeypatch.delenv("MUSTER_MAIL_TO", raising=False)


def use(patch: pytest.MonkeyPatch, *rules: dict[str, Any]) -> None:
    patch.setenv("MUSTER_MAIL_RULES", json.dumps(rules))


class Clock:
    """The time of mails and of the outbox."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = MONDAY
        for module, name in ((mailing, "_now"), (sending, "_now"), (notices, "_now"), (access, "now")):
            patch.setattr(module, name, lambda: self.now)


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


def test_verdicts_states_and_labels_choose_and_nobody_gets_a_report_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    use(
        monkeypatch,
        {"name": "fails", "to": ["oncall@x.org", "all@x.org"], "verdicts": ["FAIL"]},
        {"name": "team", "to": ["team@x.org", "oncall@x.org"], "labels": {"team": "a"}},
        {"name": "ready", "to": ["users@x.org"], "states": ["qualified"]},
    )
    report_of("n1", team="a")
    report_of("n2", team="b")
    report_of("n3", team="a", well=True)
    got = [(to, subject.split(":")[0]) for to, subject, _ in queued()]
    assert [to for to, _ in got] == [
        "all@x.org", "oncall@x.org", "team@x.org", "all@x.org", "oncall@x.org", "all@x.org", "team@x.org, oncall@x.org",
        "users@x.org",
    ]  # fmt: skip


def test_the_pictures_of_a_report_are_drawn_once_for_mail_and_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are most of what the task costs."""
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    drawn: list[str] = []
    monkeypatch.setattr(charts, "draw_charts", lambda report: drawn.append(report.node) or ())
    report_of("n1")
    assert list(settings().archive_folder.rglob("n1_*"))
    assert drawn == ["n1"]


def test_quiet_hours_hold_a_mail_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = "Mon-Sun 22:00-24:00; Mon-Sun 00:00-07:00"
    use(monkeypatch, {"name": "day", "to": ["day@x.org"], "quiet": quiet}, {"name": "night", "to": ["night@x.org"]})
    clock = Clock(monkeypatch)
    report_of("n1")
    assert store.outbox.waiting() == 1, "a mail that is delayed is not late"
    assert [each.key.split("/")[1] for each in store.outbox.pending(due=True)] == ["night"]
    clock.now += datetime.timedelta(hours=7, minutes=29)
    assert len(store.outbox.pending(due=True)) == 1
    clock.now += datetime.timedelta(minutes=1)
    assert len(store.outbox.pending(due=True)) == 2


def test_a_flood_becomes_one_list_at_the_end_of_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "an_hour": 2})
    clock = Clock(monkeypatch)
    for number in range(5):
        report_of(f"n{number}")
    mailing.send_report(RunKey(fleet.DAG, "n0__new"))  # a task that is repeated
    mails = queued()
    assert len(mails) == 3
    assert [f"n{number}: FAIL: gpu3 is slow." in mails[-1][2] for number in range(5)] == [True] * 5
    assert len(store.outbox.pending(due=True)) == 2
    clock.now += datetime.timedelta(minutes=30)
    assert len(store.outbox.pending(due=True)) == 3
    report_of("n9")
    assert len(queued()) == 4, "the next hour has its own mails"


def test_quiet_hours_and_the_hours_fill_hold_notifications_too(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = {"name": "chat", "notifier": "a.b", "an_hour": 2, "quiet": "Mon-Sun 22:00-24:00"}
    use(monkeypatch, chat)
    clock = Clock(monkeypatch)
    for number in range(4):
        report_of(f"n{number}")
    midnight = MONDAY.replace(hour=0, minute=0) + datetime.timedelta(days=1)
    assert [each.retry_at for each in store.outbox.pending()] == [midnight] * 3
    assert report_of("n4").startswith("delayed")
    last = json.loads(store.outbox.message(store.outbox.pending()[-1].id))["known"]
    assert (last["node"], "n4" in last["headline"]) == ("", True)
    clock.now = midnight
    assert len(store.outbox.pending(due=True)) == 3


@pytest.mark.parametrize(
    ("everything", "rules", "expected"),
    [
        ("all@x.org", [{"name": "a", "to": ["a@x.org"]}], ["all@x.org"]),
        ("all@x.org", [{"name": "a", "to": ["a@x.org", "all@x.org"], "notices": True}], ["all@x.org", "a@x.org"]),
        ("", [{"name": "a", "to": ["a@x.org"]}, {"name": "c", "notifier": "a.b"}], ["a@x.org", "c"]),
        (
            "",
            [{"name": "a", "to": ["a@x.org"]}, {"name": "t", "to": ["t@x.org"], "labels": {"team": "t"}}],
            ["a@x.org"],
        ),
        ("", [{"name": "t", "to": ["t@x.org"], "labels": {"team": "t"}}], ["t@x.org"]),
        ("", [{"name": "a", "to": ["a@x.org"]}, {"name": "b", "to": ["b@x.org"], "notices": True}], ["b@x.org"]),
        ("all@x.org", [{"name": "X Y"}], ["all@x.org"]),
    ],
)
def test_a_notice_reaches_somebody_wherever_the_recipients_are_named(
    monkeypatch: pytest.MonkeyPatch, everything: str, rules: list[dict[str, Any]], expected: list[str]
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", everything)
    use(monkeypatch, *rules)
    notices.notify("ended job 7/n1", "job 7 was ended on n1")
    notices.notify("ended job 7/n1", "job 7 was ended on n1")
    found = []
    for each in store.outbox.pending():
        raw = store.outbox.message(each.id)
        if each.key.startswith("notify/"):
            found.append(each.key.split("/")[1])
            assert json.loads(raw)["known"]["headline"] == "job 7 was ended on n1"
        else:
            found.append(str(email.message_from_bytes(raw, policy=email.policy.default)["To"]))
    assert found == expected


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


def test_rules_that_cannot_be_read_hold_up_no_mail(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    failing(monkeypatch, "chat")
    report_of("n1")
    use(monkeypatch, {"name": "X Y"})
    assert deliver(store.outbox.pending()[0].key) == (0, 1, 0)
    assert "MUSTER_MAIL_RULES" in store.outbox.pending()[0].last_error


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


def test_a_rule_brings_the_digest_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "labels": {"team": "a"}, "digest": "weekly"})
    for name, team in (("n1", "a"), ("n2", "b")):
        store.nodes.add(fleet.new_node(name, labels={"team": team}))
    assert len(mailing.send_digests()) == 2
    (everything, first, _), (ours, second, _) = queued()
    assert (everything, ours) == ("all@x.org", "team@x.org")
    assert "the fleet" in first
    assert "team=a" in second


def test_a_weekly_digest_comes_once_a_week_even_if_a_monday_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    daily = {"name": "d", "to": ["day@x.org"], "digest": "daily"}
    use(monkeypatch, daily, {"name": "w", "to": ["week@x.org"], "digest": "weekly"})
    clock = Clock(monkeypatch)
    store.nodes.add(fleet.new_node("n1"))
    got = []
    for days in (1, 2, 6, 7, 8):  # from Tuesday on
        clock.now = MONDAY + datetime.timedelta(days=days)
        before = len(queued())
        mailing.send_digests()
        mailing.send_digests()  # a task that is repeated
        got.append([to for to, _, _ in queued()[before:]])
    one, both = ["day@x.org"], ["day@x.org", "week@x.org"]
    assert got == [both, one, one, both, one]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x"},
        {"name": "X Y", "to": ["a@x.org"]},
        {"name": "x", "to": ["a@x.org"], "verdicts": ["BAD"]},
        {"name": "x", "to": ["a@x.org"], "states": ["heaven"]},
        {"name": "x", "to": ["a@x.org"], "quiet": "at night"},
        {"name": "x", "to": ["a@x.org"], "colour": "red"},
        {"name": "x", "notifier": "a.b", "digest": "daily"},
        {"name": "taken", "to": ["a@x.org"]},
    ],
)
def test_a_rule_that_cannot_be_used_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSettings) as refused:
        mail_rules.read([{"name": "taken", "to": ["a@x.org"]}, wrong])
    assert "\n" not in str(refused.value)


def asked(node: str, run: str) -> None:
    store.nodes.add(fleet.new_node(node))
    about = store.questions.newest(node)
    store.questions.put(RunKey("admission", run), node, about, f"Admit {node}?", ["Admit", "RMA"])


def test_new_questions_are_one_mail_each_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    assert notices.tell_of_questions() == []
    asked("a", "r1")
    asked("b", "r2")
    assert notices.tell_of_questions() == ["a", "b"]
    assert notices.tell_of_questions() == []
    ((to, subject, text),) = queued()
    assert to == "ops@example.org"
    assert "a" in subject
    for run in ("r1", "r2"):
        assert f"muster approve {run} --option" in " ".join(text.split())
    asked("c", "r3")
    assert notices.tell_of_questions() == ["c"]
    assert len(queued()) == 2


def test_a_question_that_is_answered_or_outdated_is_not_mailed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    asked("a", "r1")
    asked("b", "r2")
    store.questions.answer(RunKey("admission", "r1"), "Admit", "Ada", "fine")
    fleet.fail("b")
    assert notices.tell_of_questions() == []


def test_a_test_that_gave_way_and_found_nothing_is_no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    for name, verdict, headline in (
        ("gave-way", Verdict.SKIPPED, f"{PREEMPTED}its scheduler took the node back"),
        ("skipped", Verdict.SKIPPED, "Not tested, for a fault of the controller: no key"),
    ):
        store.nodes.add(fleet.new_node(name))
        lives.in_production(name)
        lease = fleet.begin(name, name)
        store.runs.finish(lease.key, verdict, headline)
        store.leases.release(lease.key, "over")
        mailing.send_report(lease.key)
    assert ["skipped" in subject for _, subject, _ in queued()] == [True]
