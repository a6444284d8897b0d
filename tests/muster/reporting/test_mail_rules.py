"""Who gets which report, when, and through what."""

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
from muster.errors import MusterError
from muster.model.runs import PREEMPTED, RunKey
from muster.reporting import mail_rules, mailing, notices, sending
from muster.settings import settings
from muster_criteria.model import Verdict
from muster_reports import charts, mail
from muster_reports.digest.facts import Facts
from tests.muster import fleet
from tests.muster.reporting.rules import MONDAY, Clock, queued, report_of, use
from tests.muster.reporting.test_notifications import failing
from tests.support import lives

pytestmark = pytest.mark.usefixtures("fleet_db", "no_server")


def test_verdicts_states_and_labels_choose_and_nobody_gets_a_report_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    use(
        monkeypatch,
        {"name": "fails", "to": ["oncall@x.org", "all@x.org"], "verdicts": ["FAIL"]},
        {"name": "team", "to": ["team@x.org", "On Call <OnCall@x.org>", "Team@x.org"], "labels": {"team": "a"}},
        {"name": "ready", "to": ["users@x.org"], "states": ["qualified"]},
    )
    report_of("n1", team="a")
    report_of("n2", team="b")
    report_of("n3", team="a", well=True)
    got = [(to, subject.split(":")[0]) for to, subject, _ in queued()]
    assert [to for to, _ in got] == [
        "all@x.org", "oncall@x.org", "team@x.org", "all@x.org", "oncall@x.org", "all@x.org",
        "team@x.org, On Call <OnCall@x.org>", "users@x.org",
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
    assert [f"n{number}: FAIL: gpu3 is slow." in mails[-1][2] for number in range(5)] == [False] * 2 + [True] * 3
    assert len(store.outbox.pending(due=True)) == 2
    clock.now += datetime.timedelta(minutes=30)
    assert len(store.outbox.pending(due=True)) == 3
    report_of("n9")
    assert len(queued()) == 4, "the next hour has its own mails"


def test_a_rule_that_is_called_as_lists_are_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "flood", "to": ["team@x.org"], "an_hour": 1})
    Clock(monkeypatch)
    for number in range(3):
        report_of(f"n{number}")
    assert len(store.outbox.pending()) == 2


@pytest.mark.both_dialects
@pytest.mark.parametrize("rule", [{"to": ["team@x.org"]}, {"notifier": "a.b"}])
def test_the_list_of_a_flood_has_each_report_that_it_replaces_once_whenever_its_run_ended(
    monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    use(monkeypatch, {"name": "team", "an_hour": 1, **rule})
    clock = Clock(monkeypatch)
    for name in ("n0", "n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    runs = [RunKey(fleet.DAG, fleet.fail(name).run_id) for name in ("n0", "n1", "n2")]
    clock.now += datetime.timedelta(minutes=31)  # the next hour
    for run in (*runs, runs[1]):
        mailing.send_report(run)
    _single, flood = store.outbox.pending()
    raw = store.outbox.message(flood.id)
    shown = json.loads(raw)["known"]["headline"] if "notifier" in rule else queued()[-1][2]
    assert shown.startswith("2 more reports from 00:00 to 01:00 UTC")
    assert [shown.count(f"{name}: FAIL: gpu3 is slow.") for name in ("n0", "n1", "n2")] == [0, 1, 1]
    store.outbox.sent(flood.id, raw)  # a person sent it before the hour was over
    assert report_of("n3") != mailing.send_report(runs[2])
    assert "n3" in store.outbox.pending()[-1].key


def test_each_address_finds_in_the_list_what_it_gets_by_no_other_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@x.org")
    oncall, lead = "oncall@x.org", "lead@x.org"
    use(
        monkeypatch,
        {"name": "oncall", "to": [oncall], "verdicts": ["FAIL"]},
        {"name": "all", "to": [oncall, "fleet@x.org", lead], "an_hour": 1},
    )
    Clock(monkeypatch)
    for node in ("n1", "n2", "n3"):
        report_of(node, well=True)
    report_of("n4")  # oncall gets it by its own rule
    for reader in (oncall, lead):
        got = " ".join(subject + text for to, subject, text in queued() if reader in to)
        assert [node for node in ("n1", "n2", "n3", "n4") if node not in got] == []
    assert [to for to, _, text in queued() if text.startswith("3 more reports")] == [f"{oncall}, {lead}"]


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
        ("", [{"name": "t", "to": ["t@x.org"], "labels": {"team": "t"}}], []),
        ("", [{"name": "t", "to": ["t@x.org"], "labels": {"team": "t"}, "notices": True}], ["t@x.org"]),
        ("", [{"name": "a", "to": ["a@x.org"]}, {"name": "b", "to": ["b@x.org"], "notices": True}], ["b@x.org"]),
        ("all@x.org", [{"name": "X Y"}], ["all@x.org"]),
    ],
)
def test_a_notice_reaches_whom_the_settings_name_and_no_rule_of_some_nodes_that_asks_for_none(
    monkeypatch: pytest.MonkeyPatch, everything: str, rules: list[dict[str, Any]], expected: list[str]
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", everything)
    use(monkeypatch, *rules)
    notices.notify("ended job 7/n1", "job 7 was ended on n1", of="n1")
    notices.notify("ended job 7/n1", "job 7 was ended on n1", of="n1")
    found = []
    for each in store.outbox.pending():
        raw = store.outbox.message(each.id)
        if each.key.startswith("notify/"):
            found.append(each.key.split("/")[1])
            assert json.loads(raw)["known"]["headline"] == "job 7 was ended on n1"
        else:
            found.append(str(email.message_from_bytes(raw, policy=email.policy.default)["To"]))
    assert found == expected


def test_a_rule_whose_mail_cannot_be_made_keeps_its_notifier(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object) -> email.message.EmailMessage:
        raise ValueError("an address that no code foresaw")

    monkeypatch.setattr(mail, "build_notice", odd)
    use(monkeypatch, {"name": "both", "to": ["a@x.org"], "notifier": "a.b"})
    notices.notify("ended job 7/n1", "job 7 was ended on n1", of="n1")
    assert [each.key.split("/")[:2] for each in store.outbox.pending()] == [["notify", "both"]]


def test_rules_that_cannot_be_read_hold_up_no_mail(
    monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., sending.Delivery]
) -> None:
    failing(monkeypatch, "chat")
    report_of("n1")
    use(monkeypatch, {"name": "X Y"})
    assert deliver(store.outbox.pending()[0].key) == (0, 1, 0)
    assert "MUSTER_MAIL_RULES" in store.outbox.pending()[0].last_error


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


def test_a_digest_that_cannot_be_made_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "labels": {"team": "a"}, "digest": "weekly"})
    store.nodes.add(fleet.new_node("n1", labels={"team": "a"}))
    made = store.ledger.fleet

    def odd(*period: datetime.datetime, labels: dict[str, str], **options: bool) -> Facts:
        if not labels:
            raise ValueError("a row that no code foresaw")
        return made(*period, labels=labels, **options)

    monkeypatch.setattr(store.ledger, "fleet", odd)
    with pytest.raises(MusterError):
        mailing.send_digests()
    assert [to for to, _, _ in queued()] == ["team@x.org"]


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


def test_a_digest_that_a_person_drops_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "w", "to": ["week@x.org"], "digest": "weekly"})
    clock = Clock(monkeypatch)
    store.nodes.add(fleet.new_node("n1"))
    mailing.send_digests()
    assert store.outbox.drop(store.outbox.pending()[0].key, "Ada", "it is of no use")
    clock.now += datetime.timedelta(days=1)
    assert mailing.send_digests() == []
    assert store.outbox.pending() == []


def test_a_digest_of_a_clock_that_was_ahead_takes_the_place_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "d", "to": ["day@x.org"], "digest": "daily"})
    clock = Clock(monkeypatch)
    store.nodes.add(fleet.new_node("n1"))
    periods: list[tuple[datetime.datetime, ...]] = []
    made = store.ledger.fleet
    monkeypatch.setattr(store.ledger, "fleet", lambda *of, **options: (periods.append(of), made(*of, **options))[1])
    for days in (700, 0):
        clock.now = MONDAY + datetime.timedelta(days=days)
        mailing.send_digests()
    assert len(queued()) == 2
    assert all(since < until for since, until in periods)


def test_the_digest_after_an_outage_begins_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        {"name": "real", "to": ["day@x.org"], "digest": "daily"},
        {"name": "w", "to": ["week@x.org"], "digest": "weekly"},
    )
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    clock = Clock(monkeypatch)
    store.nodes.add(fleet.new_node("n1"))
    made = store.ledger.fleet
    periods: list[tuple[float, datetime.datetime]] = []

    def asked_for(since: datetime.datetime, until: datetime.datetime, **options: Any) -> Facts:
        periods.append(((until - since).total_seconds() / 86400, until))
        return made(since, until, **options)

    monkeypatch.setattr(store.ledger, "fleet", asked_for)
    for days in (0, 10, 60):
        clock.now = MONDAY + datetime.timedelta(days=days)
        mailing.send_digests()
    lengths = [days for days, _ in periods if days not in (1.0, 7.0)]
    assert lengths == [10.0, 10.0, 10.0, 28.0, 28.0, 28.0]


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
        {"name": "x", "to": ["oncall@x.org, second@x.org"]},
        {"name": "taken", "to": ["a@x.org"]},
    ],
)
def test_a_rule_that_cannot_be_used_is_named(wrong: dict[str, Any]) -> None:
    usable, (why,) = mail_rules.read([{"name": "taken", "to": ["a@x.org"]}, wrong, {"name": "z", "to": ["z@x.org"]}])
    assert [rule.name for rule in usable] == ["taken", "z"]
    assert "MUSTER_MAIL_RULES" in why
    assert "\n" not in why


def test_an_address_that_cannot_be_used_keeps_no_mail_from_the_others_of_its_rule() -> None:
    (rule,), (why,) = mail_rules.read([{"name": "x", "to": ["a@x.org", "oncall"]}])
    assert rule.to == ("a@x.org",)
    assert "rule x: 'oncall' is not a mail address" in why


TWO = "oncall@x.org, second@x.org"


@pytest.mark.parametrize(
    ("everything", "wrong", "reached"),
    [
        ("all@x.org", {"name": "fails", "to": [TWO]}, ["all@x.org", "team@x.org"]),
        ("all@x.org", {"name": "X Y", "to": ["x@x.org"]}, ["all@x.org", "team@x.org"]),
        ("fleet operations", {"name": "ops", "to": ["ops@x.org"]}, ["ops@x.org", "team@x.org"]),
        ("fleet operations,all@x.org", {"name": "ops", "to": ["ops@x.org"]}, ["all@x.org", "ops@x.org", "team@x.org"]),
    ],
)
def test_one_address_or_rule_that_cannot_be_used_keeps_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch, everything: str, wrong: dict[str, Any], reached: list[str]
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", everything)
    use(monkeypatch, wrong, {"name": "team", "to": ["team@x.org"], "digest": "weekly"})
    delivered: list[str | None] = []
    monkeypatch.setattr(sending, "deliver_mail", lambda key=None: delivered.append(key) or (1, 0, 0))
    with pytest.raises(MusterError, match="MUSTER_MAIL_"):
        report_of("n1")
    assert [to for to, _, _ in queued()] == reached
    assert len(delivered) == len(reached)
    notices.notify("ended job 7/n1", "job 7 was ended on n1", of="n1")
    # Where MUSTER_MAIL_TO reaches no one, a notice goes to all rules without labels.
    assert [to for to, _, _ in queued()][len(reached) :] == (["all@x.org"] if "all@x.org" in everything else reached)
    before = len(queued())
    with pytest.raises(MusterError, match=r"MUSTER_MAIL_RULES|is not a mail address"):
        mailing.send_digests()
    assert [to for to, _, _ in queued()][before:] == [to for to in reached if to != "ops@x.org"]


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
