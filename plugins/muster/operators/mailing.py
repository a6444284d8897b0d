"""Mails: the report about one node of a run, and the fleet's digest; sent if the mail server is there, else kept."""

from __future__ import annotations

import datetime
import logging

from muster import records
from muster.settings import settings

log = logging.getLogger(__name__)
DIGEST_PERIOD = datetime.timedelta(days=7)


def send_report(dag_id: str, run_id: str, *, node: str = "") -> str:
    """Render the report of the run (of ``node`` if the run tests several) and mail it. An SMTP error is not raised.

    Returns the delivery status as text. Raises UnknownRun.
    """
    from muster.operators import archive, upkeep
    from muster_reports import mail

    current = settings()
    report = records.run_report(dag_id, run_id, run_url=current.run_page(dag_id, run_id), node=node)
    rendered = mail.render(report, archive.keep(report))
    log.info("%s", rendered.subject)
    if not current.mail_recipients:
        log.warning("no report is mailed: MUSTER_MAIL_TO is empty")
        return "not mailed: no recipients"
    message = mail.build_message(rendered, current.mail_from, current.mail_recipients)
    key = f"{dag_id}/{run_id}/{rendered.report_id}"
    records.outbox_add(key, message.as_bytes())
    delivery = upkeep.deliver_mail(key)
    return f"{delivery.sent} sent, {delivery.waiting} waiting, {delivery.parked} refused"


def send_digests() -> list[str]:
    """Mail the digests of the last seven days, each once a day however often this is called; returns their subjects."""
    from muster.operators import upkeep
    from muster_reports import mail
    from muster_reports.digest import render

    current, until = settings(), datetime.datetime.now(datetime.UTC)
    if not current.mail_recipients:
        log.warning("no digest is mailed: MUSTER_MAIL_TO is empty")
        return []
    subjects = []
    for simulated in (False, True):
        facts = records.fleet_facts(until - DIGEST_PERIOD, until, simulated=simulated)
        if not facts.nodes:
            continue
        rendered = render.render(facts, "", simulated=simulated)
        message = mail.build_message(rendered, current.mail_from, current.mail_recipients)
        records.outbox_add(rendered.report_id, message.as_bytes())
        upkeep.deliver_mail(rendered.report_id)
        subjects.append(rendered.subject)
    return subjects
