"""Mails: the report about one node of a run, and the fleet's digest; sent if the mail server is there, else kept."""

from __future__ import annotations

import datetime
import itertools
import logging
from collections.abc import Sequence

from muster import store
from muster.errors import MusterError, apart
from muster.model.runs import PREEMPTED, Run, RunKey
from muster.model.states import State
from muster.reporting import mail_rules, notices
from muster.settings import settings
from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.found import Fabric
from muster_criteria.model import Verdict
from muster_reports import mail, text
from muster_reports.model import RunReport

log = logging.getLogger(__name__)
PERIODS = {"daily": datetime.timedelta(days=1), "weekly": datetime.timedelta(days=7)}
FLOOD_MAX = 2000
"""Runs that the list of an hour looks at, the latest."""


def send_report(
    run_key: RunKey, *, node: str = "", fabric: Fabric | None = None, training: Training | None = None
) -> str:
    """Render the report of the run (of ``node`` if the run tests several) and mail it to MUSTER_MAIL_TO, and by rules.

    ``fabric``, ``training``: of ``store.rounds`` and ``store.trainings``, for a block. An SMTP error is not raised.

    Returns the delivery status as text. Raises UnknownRun, BadSettings.
    """
    from muster.reporting import archive, sending

    current = settings()
    if _gave_way(store.runs.get(run_key, node=node)):
        return "not mailed: the test gave way to a user's job, and found nothing"
    report = store.reporting.run(
        run_key, run_url=current.run_page(run_key.dag_id, run_key.run_id), node=node, fabric=fabric,
        training=training,
    )  # fmt: skip
    drawn = mail.charts_of(report)
    rendered = mail.render(report, archive.keep(report, drawn), drawn)
    log.info("%s", rendered.subject)
    key = f"{run_key.dag_id}/{run_key.run_id}/{rendered.report_id}"
    keys, notifications = [], []
    delayed = False
    if current.mail_recipients:
        message = mail.build_message(rendered, current.mail_from, current.mail_recipients)
        store.outbox.add(key, message.as_bytes())
        keys.append(key)
    chosen = _rules()
    labels = store.nodes.get(report.node).labels if chosen else {}
    facts = (report.verdict, report.state_after, labels)
    for rule, recipients in mail_rules.recipients(chosen, current.mail_recipients, *facts):
        if recipients:
            found = _mail_by_rule(rule, recipients, rendered, key)
            delayed |= not found
            keys += found
        if rule.notifier:
            found = _notify_by_rule(rule, report, key)
            delayed |= not found
            notifications += found
    if delayed and not keys and not notifications:
        return "delayed until quiet hours or the hour of a flood end"
    if not keys and not notifications:
        log.warning("no report is mailed: neither MUSTER_MAIL_TO nor a rule of MUSTER_MAIL_RULES names a recipient")
        return "not mailed: no recipients"
    delivered = [sending.deliver_mail(each) for each in keys + notifications]
    sent, waiting, parked = (sum(counts) for counts in zip(*delivered, strict=True))
    return f"{sent} sent, {waiting} waiting, {parked} refused"


def _gave_way(run: Run) -> bool:
    """Whether the run was preempted and its node serves on: with each user's job this may be a test, and no news."""
    preempted = run.verdict is Verdict.SKIPPED and run.headline.startswith(PREEMPTED)
    return preempted and run.state_after is State.PRODUCTION


def _mail_by_rule(rule: mail_rules.Rule, recipients: Sequence[str], rendered: mail.Rendered, key: str) -> list[str]:
    """Queue the report, or the list of the hour if the hour has its fill. Returns the key of what may be sent now."""
    mine, due, sender = f"rule/{rule.name}/", rule.due(store.clock.now()), settings().mail_from
    if _filled(rule, mine, key):
        sentence, lines, end = _of_the_hour(rule)
        about = f"flood/{rule.name}/{_hour():%Y-%m-%dT%H}"
        store.outbox.add(about, mail.build_notice(about, sentence, sender, recipients, lines).as_bytes(), end)
        return []
    store.outbox.add(mine + key, mail.build_message(rendered, sender, recipients).as_bytes(), due)
    return [] if due else [mine + key]


def _notify_by_rule(rule: mail_rules.Rule, report: RunReport, key: str) -> list[str]:
    """As _mail_by_rule, for the rule's notifier, which gets the list of the hour as its headline."""
    due = rule.due(store.clock.now())
    if _filled(rule, f"{store.outbox.NOTIFICATION}{rule.name}/", key):
        sentence, lines, end = _of_the_hour(rule)
        known = {"node": "", "verdict": "", "state": "", "link": "", "simulated": report.simulated}
        known["headline"] = "\n- ".join([sentence, *lines[: notices.LISTED]])
        store.outbox.notify(rule.name, f"flood/{_hour():%Y-%m-%dT%H}", known, end)
        return []
    known = {
        "node": report.node, "verdict": str(report.verdict), "state": report.state_after,
        "headline": report.headline, "link": report.run_url, "simulated": report.simulated,
    }  # fmt: skip
    added = store.outbox.notify(rule.name, key, known, due)
    return [] if due else [added]


def _filled(rule: mail_rules.Rule, mine: str, key: str) -> bool:
    """Whether the hour has its fill of what the outbox keeps under ``mine``, without the report of ``key``."""
    return bool(rule.an_hour) and store.outbox.added(mine, _hour(), mine + key) >= rule.an_hour


def _of_the_hour(rule: mail_rules.Rule) -> tuple[str, list[str], datetime.datetime]:
    """The sentence and the lines about the tests of this hour, and when to send them."""
    hour = _hour()
    end = hour + datetime.timedelta(hours=1)
    labels = {node.name: node.labels for node in store.nodes.find()}
    ended = [run for run in store.runs.find(limit=FLOOD_MAX) if run.ended_at and run.ended_at >= hour]
    lines = [
        f"{'[simulated] ' if run.simulated else ''}{run.node}: {run.verdict}: {run.headline}"
        for run in ended[::-1]
        if rule.matches(run.verdict or "", run.state_after or "", labels.get(run.node, {}))
    ]
    sentence = (
        f"{len(lines)} tests ended from {hour:%H:%M} to {end:%H:%M} UTC that concern you, and you get "
        f"{text.plural(rule.an_hour, 'report')} an hour (rule {rule.name})"
    )
    return sentence, lines, rule.due(end) or end


def send_digests() -> list[str]:
    """Mail the digests that are due, each once however often this is called; returns their subjects.

    MUSTER_MAIL_TO gets the whole fleet's each week, the addresses of a rule with ``digest`` that of its labels. A
    weekly one is due on Mondays, or on the first later day of the week on which this is called.
    Raises BadSettings, and MusterError with those that could not be made, after all others are sent.
    """
    current, until = settings(), store.clock.now().replace(microsecond=0) + datetime.timedelta(seconds=1)
    wanted: list[tuple[str, str, dict[str, str], Sequence[str]]] = [("weekly", "", {}, current.mail_recipients)]
    wanted += [(rule.digest, f"{rule.name}/", rule.labels, rule.to) for rule in _rules() if rule.digest]
    if not any(recipients for *_, recipients in wanted):
        log.warning("no digest is mailed: neither MUSTER_MAIL_TO nor a rule of MUSTER_MAIL_RULES wants one")
    subjects: list[str] = []
    failed: list[str] = []
    for (every, name, labels, recipients), simulated in itertools.product(wanted, (False, True)):
        with apart(f"the {every} digest of {name.rstrip('/') or 'the fleet'}", failed):
            subjects += _send_digest(until, every, name, labels, recipients, simulated=simulated)
    if failed:
        raise MusterError(f"not sent: {'; '.join(failed)}")
    return subjects


def _send_digest(
    until: datetime.datetime, every: str, name: str, labels: dict[str, str], recipients: Sequence[str], *,
    simulated: bool,
) -> list[str]:  # fmt: skip
    """Mail one digest, unless it was; returns its subject, nothing without nodes or recipients."""
    from muster.reporting import sending
    from muster_reports.digest import render

    if not recipients:
        return []
    facts = store.ledger.fleet(until - PERIODS[every], until, simulated=simulated, labels=labels)
    if not facts.nodes:
        return []
    whose = ", ".join(f"{label}={value}" for label, value in labels.items())
    rendered = render.render(facts, whose, simulated=simulated)
    mine = f"digest/{every}/{name}{'simulated' if simulated else 'real'}/"
    key = mine + rendered.report_id
    monday = until.replace(hour=0, minute=0, second=0) - datetime.timedelta(days=until.weekday())
    if every == "weekly" and store.outbox.added(mine, monday, key):
        return []
    message = mail.build_message(rendered, settings().mail_from, recipients)
    store.outbox.add(key, message.as_bytes())
    sending.deliver_mail(key)
    return [rendered.subject]


def _rules() -> list[mail_rules.Rule]:
    return mail_rules.read(settings().mail_rules)


def _hour() -> datetime.datetime:
    return store.clock.now().replace(minute=0, second=0, microsecond=0)
