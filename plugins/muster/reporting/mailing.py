"""Mails: the report about one node of a run, and the fleet's digest; sent if the mail server is there, else kept."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from muster import store
from muster.errors import MusterError, apart
from muster.model.runs import PREEMPTED, Run, RunKey
from muster.model.states import State
from muster.reporting import dispatch, mail_rules
from muster.rules import run_report
from muster.settings import settings
from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_criteria.model import Verdict
from muster_reports import mail, readers, text
from muster_reports.digest.facts import Facts
from muster_reports.model import RunReport

log = logging.getLogger(__name__)
HOUR = datetime.timedelta(hours=1)
PERIODS = {"daily": datetime.timedelta(days=1), "weekly": datetime.timedelta(days=7)}
LATE_MAX = datetime.timedelta(weeks=4)
"""The longest period of a digest after an outage: the outbox keeps the last one for 30 days."""


def send_report(
    run_key: RunKey, *, node: str = "", fabric: Fabric | None = None, training: Training | None = None
) -> str:
    """Render the report of the run (of ``node`` if the run tests several) and mail it to MUSTER_MAIL_TO, and by rules.

    ``fabric``, ``training``: of ``store.rounds`` and ``store.trainings``, for a block. An SMTP error is not raised. The
    run counts as reported once the report is queued for everyone for whom that is possible.

    Returns the delivery status as text. Raises UnknownRun, BadSettings, and MusterError with the recipients whose mail
    could not be made and the rules that cannot be used, after the others' mails were sent.
    """
    from muster.reporting import archive, sending

    current = settings()
    if _gave_way(store.runs.get(run_key, node=node)):
        store.reporting.reported(run_key, node=node)
        return "not mailed: the test gave way to a user's job, and found nothing"
    report = store.reporting.run(
        run_key, run_url=current.run_page(run_key.dag_id, run_key.run_id), node=node, fabric=fabric,
        training=training,
    )  # fmt: skip
    drawn = mail.charts_of(report)
    render = functools.partial(mail.render, archived=archive.keep(report, drawn))
    found, failed = _queue(report, lambda each: render(each, drawn=mail.charts_of(each, drawn)))
    store.reporting.reported(run_key, node=node)
    now = sorted(filter(None, found), key=lambda key: key.startswith(store.outbox.NOTIFICATION))
    delivered = [sending.deliver_mail(each) for each in now]
    if failed:
        raise MusterError(f"not mailed to all: {'; '.join(failed)}")
    if not found:
        log.warning("no report is mailed: neither MUSTER_MAIL_TO nor a rule of MUSTER_MAIL_RULES names a recipient")
        return "not mailed: no recipients"
    if not now:
        return "delayed until quiet hours or the hour of a flood end"
    sent, waiting, parked = (sum(counts) for counts in zip(*delivered, strict=True))
    return f"{sent} sent, {waiting} waiting, {parked} refused"


def _gave_way(run: Run) -> bool:
    """Whether the run was preempted and its node still serves: this may happen with each user's job, and is no news."""
    preempted = run.verdict is Verdict.SKIPPED and run.headline.startswith(PREEMPTED)
    return preempted and run.state_after is State.PRODUCTION


def _queue(report: RunReport, render: Callable[[RunReport], mail.Rendered]) -> tuple[list[str], list[str]]:
    """Queue the report for all who get it; returns the keys of what may be sent now, and "" for each that waits.

    Returns also a sentence for each recipient for whom it cannot be queued.
    """
    rendered = render(report)
    log.info("%s", rendered.subject)
    key = f"{report.dag_id}/{report.run_id}/{rendered.report_id}"

    def chosen(
        rules: Sequence[mail_rules.Rule], everyone: Sequence[str]
    ) -> Iterable[tuple[mail_rules.Rule, Sequence[str]]]:
        labels = store.nodes.get(report.node).labels if rules else {}
        return mail_rules.recipients(rules, everyone, report.verdict, report.state_after, labels)

    def mailed(recipients: Sequence[str], rule: mail_rules.Rule | None) -> str:
        if rule:
            shown = _readable(report, rule)
            return _mail_by_rule(rule, recipients, shown, rendered if shown is report else render(shown), key)
        store.outbox.add(key, mail.build_message(rendered, settings().mail_from, recipients).as_bytes())
        return key

    return dispatch.each_way(chosen, mailed, lambda rule: _notify_by_rule(rule, _readable(report, rule), key))


def _readable(report: RunReport, rule: mail_rules.Rule) -> RunReport:
    """The report as readers of the rule may see it: without the nodes of the fleet that lack the rule's labels."""
    others = store.nodes.lacking(rule.labels) - {report.node}
    shown = readers.without(report, others) if others else report
    if shown == report:
        return report
    return dataclasses.replace(shown, result_json=run_report.report_json(shown))


def _mail_by_rule(
    rule: mail_rules.Rule, recipients: Sequence[str], report: RunReport, rendered: mail.Rendered, key: str
) -> str:
    """Queue the report, or its line in the list if the hour is full. Returns its key if it may be sent now."""
    mine, due, sender = f"rule/{rule.name}/{key}", rule.due(store.clock.now()), settings().mail_from
    about = f"{store.outbox.LIST}{rule.name}/{_hour(rule):%Y-%m-%dT%H}"

    def listed(sentence: str, lines: Sequence[str]) -> bytes:
        # Its lines are of several reports, so it goes to all readers of the rule, not to those of one report.
        readers = mail_rules.but(rule.to, mail_rules.usable(settings().mail_recipients, "", []))
        return mail.build_notice(about, sentence, sender, readers, lines).as_bytes()

    if _filled(rule, f"rule/{rule.name}/", mine) and _listed(rule, about, report, key, listed):
        return ""
    store.outbox.add(mine, mail.build_message(rendered, sender, recipients).as_bytes(), due)
    return "" if due else mine


def _notify_by_rule(rule: mail_rules.Rule, report: RunReport, key: str) -> str:
    """As _mail_by_rule, for the rule's notifier, which gets the list of the hour as its headline."""
    due, mine = rule.due(store.clock.now()), f"{store.outbox.NOTIFICATION}{rule.name}/"

    def listed(sentence: str, lines: Sequence[str]) -> bytes:
        known = dispatch.known(dispatch.listed(sentence, lines), simulated=report.simulated)
        return store.outbox.notification(known, _end_of_list(rule))

    about = f"{mine}{store.outbox.LIST}{_hour(rule):%Y-%m-%dT%H}"
    if _filled(rule, mine, mine + key) and _listed(rule, about, report, key, listed):
        return ""
    known = dispatch.known(
        report.headline, node=report.node, verdict=str(report.verdict), state=report.state_after,
        link=report.run_url, simulated=report.simulated,
    )  # fmt: skip
    added = store.outbox.notify(rule.name, key, known, due)
    return "" if due else added


def _filled(rule: mail_rules.Rule, prefix: str, key: str) -> bool:
    """Whether the outbox has the hour's limit of mails under ``prefix``, not counting the report of ``key``."""
    return bool(rule.an_hour) and store.outbox.due_in(prefix, _hour(rule), HOUR, key) >= rule.an_hour


def _listed(
    rule: mail_rules.Rule, about: str, report: RunReport, key: str, made: Callable[[str, Sequence[str]], bytes]
) -> bool:
    """Add the report to the list of the hour, which the outbox keeps under ``about``; False if that was sent already.

    ``made``: the message of a sentence and lines.
    """
    hour = _hour(rule)
    span = f"{hour:%H:%M} to {hour + HOUR:%H:%M} UTC"
    line = f"{text.mark(report.simulated)}{report.node}: {report.verdict}: {report.headline}"

    def message(lines: Sequence[str]) -> bytes:
        more, limit = text.plural(len(lines), "more report"), text.plural(rule.an_hour, "report")
        return made(f"{more} from {span}, as a list: you get {limit} an hour (rule {rule.name})", lines)

    return store.outbox.gather(about, key, line, message, _end_of_list(rule))


def _end_of_list(rule: mail_rules.Rule) -> datetime.datetime:
    """When the list of this hour is sent."""
    end = _hour(rule) + HOUR
    return rule.due(end) or end


def send_digests() -> list[str]:
    """Mail the digests that are due, each once however often this is called; returns their subjects.

    MUSTER_MAIL_TO gets the whole fleet's each week, the addresses of a rule with ``digest`` that of its labels, after
    its quiet hours. A weekly one is due on Mondays, or on the first later day of the week on which this is called.
    Raises BadSettings, and MusterError with those that could not be made and the rules that cannot be used, after all
    others are sent.
    """
    current, until = settings(), store.clock.now().replace(microsecond=0) + datetime.timedelta(seconds=1)
    rules, failed = mail_rules.read(current.mail_rules)
    everyone = mail_rules.usable(current.mail_recipients, "MUSTER_MAIL_TO", failed)
    wanted: list[tuple[mail_rules.Rule | None, Sequence[str]]] = [(None, everyone)] if everyone else []
    wanted += [(rule, rule.to) for rule in rules if rule.digest and rule.to]
    for sentence in mail_rules.unmatched(rules, [node.labels for node in store.nodes.find()]):
        log.warning("%s", sentence)
    if not wanted:
        log.warning("no digest is mailed: neither MUSTER_MAIL_TO nor a rule of MUSTER_MAIL_RULES wants one")
    subjects: list[str] = []
    for (rule, recipients), simulated in itertools.product(wanted, (False, True)):
        with apart(f"the digest of {rule.name if rule else 'the fleet'}", failed):
            subjects += _send_digest(until, rule, recipients, simulated=simulated)
    if failed:
        raise MusterError(f"not all are sent: {'; '.join(failed)}")
    return subjects


def _send_digest(
    until: datetime.datetime, rule: mail_rules.Rule | None, recipients: Sequence[str], *, simulated: bool
) -> list[str]:
    """Mail one digest, unless it was; returns its subject, nothing without nodes."""
    from muster.reporting import sending
    from muster_reports.digest import render

    every, name, labels = (rule.digest, rule.name, rule.labels) if rule else ("weekly", "", {})
    mine = f"digest/{every}/{'simulated' if simulated else 'real'}/{name}/"
    midnight = until.replace(hour=0, minute=0, second=0)
    begins = midnight - datetime.timedelta(days=until.weekday()) if every == "weekly" else midnight
    if store.outbox.added(mine, begins):
        return []
    # From the end of the last one, even after an outage: no day is left out or counted twice.
    last = store.outbox.newest(mine).removeprefix(mine)
    since = datetime.datetime.fromisoformat(last) if last else until
    since = max(since, until - LATE_MAX) if since < until else until - PERIODS[every]  # a clock may have been ahead
    facts = _own(store.ledger.fleet(since, until, simulated=simulated, labels=labels), store.nodes.lacking(labels))
    if not facts.nodes:
        return []
    whose = ", ".join(f"{label}={value}" for label, value in labels.items())
    rendered = render.render(facts, whose, simulated=simulated)
    message = mail.build_message(rendered, settings().mail_from, recipients)
    due = rule.due(store.clock.now()) if rule else None
    store.outbox.add(key := f"{mine}{until.isoformat()}", message.as_bytes(), due)
    if due is None:
        sending.deliver_mail(key)
    return [rendered.subject]


def _own(facts: Facts, others: Collection[str]) -> Facts:
    """The facts for readers who may not see the nodes ``others``, which texts and ids may name."""
    if not others:
        return facts

    def own(words: str) -> str:
        # The id of a run after a block contains the block's id, in which a node's name is not a separate word.
        return readers.unnamed(words.partition("__after-")[0], others)

    return dataclasses.replace(
        facts,
        moves=[dataclasses.replace(each, reason=own(each.reason)) for each in facts.moves],
        runs=[dataclasses.replace(run, headline=own(run.headline), run_id=own(run.run_id)) for run in facts.runs],
        offenders=[dataclasses.replace(each, mark=own(each.mark)) for each in facts.offenders],
    )


def _hour(rule: mail_rules.Rule) -> datetime.datetime:
    """The hour in which a mail made now is sent: mails that wait for the end of quiet hours are all sent then."""
    now = store.clock.now()
    return (rule.due(now) or now).replace(minute=0, second=0, microsecond=0)
