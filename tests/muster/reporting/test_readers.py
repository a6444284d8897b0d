"""What readers of a rule with labels get of nodes that are not theirs, and when they get a digest."""

from __future__ import annotations

import dataclasses
import datetime
import email

import pytest

from muster import store
from muster.admission import entry
from muster.cli.doctor import records
from muster.cli.doctor.checks import Mark
from muster.model.breaker import Breaker
from muster.model.runs import RunKey
from muster.model.states import State
from muster.reporting import mail_rules, mailing, sending
from muster.settings import settings
from muster_criteria.context.goldens import GOLDEN, Golden
from muster_criteria.model import Verdict
from muster_reports.readers import ANOTHER, without
from tests.muster import fleet
from tests.muster.reporting.rules import MONDAY, Clock, chat, use
from tests.muster_reports.fabrics import fabric

pytestmark = pytest.mark.usefixtures("fleet_db", "no_server")

OURS, THEIRS, SERIAL = "gpu-0005", "gpu-0002", "165082"


def test_a_rule_with_labels_gets_no_other_node_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "labels": {"team": "a"}})
    for name, team in ((OURS, "a"), (THEIRS, "b")):
        store.nodes.add(fleet.new_node(name, labels={"team": team}))
    fleet.qualify(OURS, run_id="block")
    fleet.begin(THEIRS, "block")
    mailing.send_report(RunKey(fleet.DAG, "block"), node=OURS, fabric=fabric())
    found = [email.message_from_bytes(store.outbox.message(each.id)) for each in store.outbox.pending()]
    contents = [b"".join(part.get_payload(decode=True) or b"" for part in message.walk()) for message in found]
    assert [message["To"] for message in found] == ["all@x.org", "team@x.org"]
    assert [THEIRS.encode() in content for content in contents] == [True, False]


def test_a_rule_with_labels_gets_no_other_node_that_a_report_or_a_digest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "all@x.org")
    labels, alike = {"team": "a"}, f"2 of 2 nodes fail alike ({THEIRS} before this one; see {THEIRS}__delivery)"
    team = {"name": "team", "to": ["team@x.org"], "labels": labels, "digest": "weekly"}
    use(monkeypatch, team, chat("chat", labels=labels))
    for name, owner in ((OURS, "a"), (THEIRS, "b")):
        store.nodes.add(fleet.new_node(name, labels={"team": owner}))
        fleet.qualify(name)
    entry.move(OURS, State.PRODUCTION, "Ada", "now")
    cited = Golden("g-1", "ab", MONDAY, (f"gpu {SERIAL} on {THEIRS} in {fleet.DAG}/{THEIRS}__delivery",)).cited
    lease = fleet.begin(OURS, "again")
    found = (fleet.finding(rule=GOLDEN, source=cited), fleet.finding(summary=alike))
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=found)
    store.runs.finish(lease.key, Verdict.FAIL, alike)
    store.leases.release(lease.key, "over")
    mailing.send_report(lease.key)
    store.nodes.move(OURS, State.TRIAGE, "Ada", "looked at")
    store.nodes.move(OURS, State.RMA, "Ada", f"as {THEIRS} was")
    mailing.send_digests()
    contents: dict[str, bytes] = {}
    for each in store.outbox.pending():
        message = email.message_from_bytes(store.outbox.message(each.id))
        payload = b"".join(part.get_payload(decode=True) or b"" for part in message.walk())
        to = f"{message['To']} {'digest' if 'digest' in each.key else ''}"
        contents[to] = contents.get(to, b"") + payload
    named = {to: (THEIRS.encode() in each, SERIAL.encode() in each) for to, each in contents.items()}
    assert named == {
        "all@x.org ": (True, True), "team@x.org ": (False, False), "None ": (False, False),
        "all@x.org digest": (True, False), "team@x.org digest": (False, False),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("called", "hidden"),
    [
        (f"{THEIRS}.example.org:25478", True), (f"{THEIRS}-ib0", True), (THEIRS.upper(), True), ("10.1.0.2", True),
        (f"{THEIRS}.ib.example.org", True), ("10.1.0.5", False), ("login.example.org", False), ("10.1.0.20", False),
        ("[FD00::2]:29500", True), ("fd00::2:29500", True), ("fd00::20", False),
    ],
)  # fmt: skip
def test_another_node_is_hidden_by_whatever_name_a_program_gives_it(
    monkeypatch: pytest.MonkeyPatch, called: str, hidden: bool
) -> None:
    """A member that finds no block names the first one by its address, torchrun by its host."""
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "labels": {"team": "a"}})
    shared = "login.example.org"  # both are reached through it
    for name, owner, host, address in (
        (OURS, "a", shared, "10.1.0.5"), (THEIRS, "b", shared, f"{THEIRS}-ib0"), ("x", "b", "10.1.0.2", "fd00::2"),
    ):  # fmt: skip
        store.nodes.add(fleet.new_node(name, host=host, labels={"team": owner, "block_address": address}))
    lease = fleet.begin(OURS, "again")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.finding(summary=f"{called} answers nothing"),))
    store.runs.finish(lease.key, Verdict.FAIL, f"{called} answers nothing")
    mailing.send_report(lease.key)
    (found,) = (email.message_from_bytes(store.outbox.message(each.id)) for each in store.outbox.pending())
    contents = b"".join(part.get_payload(decode=True) or b"" for part in found.walk())
    assert (called.partition(":")[0].encode() in contents) is not hidden


@pytest.mark.parametrize("withdrawn", [(), (THEIRS,)])
def test_a_rule_with_labels_gets_no_count_of_other_nodes_that_left_service(
    monkeypatch: pytest.MonkeyPatch, withdrawn: tuple[str, ...]
) -> None:
    breaker = Breaker(withdrawn, 31, len(withdrawn), datetime.timedelta(days=1), 20)
    store.nodes.add(fleet.new_node(OURS))
    fleet.qualify(OURS, run_id="alone")
    report = store.reporting.run(RunKey(fleet.DAG, "alone"))
    report = dataclasses.replace(report, breaker=f"{breaker.state}: {breaker.sentence}", why_held=breaker.why)
    shown = without(report, {THEIRS})
    assert breaker.sentence not in str(dataclasses.asdict(shown))
    assert bool(shown.why_held)
    assert without(dataclasses.replace(report, why_held="the rack is hot: 5 K"), {THEIRS}).why_held.endswith("5 K")


def test_a_rule_whose_labels_no_node_has_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others = [{"name": "ours", "labels": {"team": "a"}}, {"name": "all"}, {"name": "typo", "labels": {"team": "aa"}}]
    use(monkeypatch, *({**each, "to": [f"{each['name']}@x.org"], "digest": "weekly"} for each in others))
    rules, _ = mail_rules.read(settings().mail_rules)
    assert not mail_rules.unmatched(rules, [])
    assert list(records.mail_rules(settings())) == []
    store.nodes.add(fleet.new_node(OURS, labels={"team": "a"}))
    assert len(mailing.send_digests()) == 2
    (sentence,) = mail_rules.unmatched(rules, [{"team": "a"}])
    assert "typo" in sentence
    assert sentence in caplog.messages
    (check,) = records.mail_rules(settings())
    assert (check.mark, check.message) == (Mark.ADVICE, sentence)


def test_a_node_that_is_called_like_a_gpu_hides_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "labels": {"team": "a"}})
    for name, owner in ((OURS, "a"), ("gpu3", "b")):
        store.nodes.add(fleet.new_node(name, labels={"team": owner}))
    lease = fleet.begin(OURS, "again")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.finding(device="gpu3", summary="gpu3 overheats"),))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 overheats")
    mailing.send_report(lease.key)
    (found,) = (email.message_from_bytes(store.outbox.message(each.id)) for each in store.outbox.pending())
    assert "gpu3 overheats" in found["Subject"]
    assert ANOTHER not in found["Subject"]


def test_a_digest_waits_for_the_end_of_its_rule_s_quiet_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = "Mon-Sun 22:00-24:00; Mon-Sun 00:00-07:00"
    use(monkeypatch, {"name": "team", "to": ["team@x.org"], "quiet": quiet, "digest": "weekly"})
    delivered: list[str] = []
    monkeypatch.setattr(sending, "deliver_mail", delivered.append)
    clock = Clock(monkeypatch)
    clock.now = MONDAY.replace(hour=5)
    store.nodes.add(fleet.new_node(OURS))
    clock.now = MONDAY.replace(hour=6, minute=0)
    assert len(mailing.send_digests()) == 1
    (waiting,) = store.outbox.pending()
    assert (delivered, waiting.retry_at) == ([], MONDAY.replace(hour=7, minute=0))
