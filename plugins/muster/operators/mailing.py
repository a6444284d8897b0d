"""The mail about one node of a run: archived, rendered, put in the outbox, and sent if the mail server is there."""

from __future__ import annotations

import logging

from muster import records
from muster.settings import settings

log = logging.getLogger(__name__)


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
