"""What has to be done every few minutes, whatever the runs do: waiting mails, forgotten leases, old data."""

from __future__ import annotations

import datetime
import email
import email.policy
import logging
import smtplib
from collections.abc import Callable
from email.message import EmailMessage

from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk.exceptions import AirflowException

from muster import records
from muster.integration import closing
from muster.records import Purged
from muster.settings import settings

log = logging.getLogger(__name__)

MAILS_AT_ONCE = 100
FRESH = datetime.timedelta(minutes=2)
"""So long a mail that was never tried is left to the run that wrote it: two senders would send it twice."""


def deliver_mail(key: str | None = None) -> tuple[int, int]:
    """Send what waits in the outbox, or the mail of ``key`` alone: (sent, still waiting).

    A mail that cannot be sent stays, with the reason.
    """
    pending = records.outbox_pending(limit=MAILS_AT_ONCE)
    abandoned = datetime.datetime.now(datetime.UTC) - FRESH
    if key is None:
        waiting = [mail for mail in pending if mail.attempts or mail.created_at < abandoned]
    else:
        waiting = [mail for mail in pending if mail.key == key]
    sent = 0
    try:
        for mail in waiting:
            # A connection of its own for each: one refused mail must not break those behind it.
            with SmtpHook(smtp_conn_id=settings().smtp_conn_id) as hook:
                _send(hook, mail.message)
            records.outbox_sent(mail.id)
            sent += 1
    except smtplib.SMTPRecipientsRefused as error:
        records.outbox_failed(mail.id, str(error)[:500])
        log.warning("the mail server refuses all recipients of mail %s (%s); it is tried again", mail.key, error)
    except (AirflowException, OSError, smtplib.SMTPException) as error:
        records.outbox_failed(mail.id, str(error)[:500])
        log.warning("mail cannot be sent now (%s); it is kept and sent by the housekeeping DAG", error)
    return sent, len(waiting) - sent


def _send(hook: SmtpHook, raw: bytes) -> None:
    message = email.message_from_bytes(raw, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    client = hook._smtp_client
    assert isinstance(client, smtplib.SMTP)
    client.send_message(message)


def sweep_leases(is_live: Callable[[str, str], bool]) -> list[str]:
    """Free nodes whose run is over or gone, which neither its teardown nor the listener did; returns the nodes.

    ``is_live(dag_id, run_id)`` says whether a run is queued or running; one that Airflow no longer knows is not.
    """
    over = {(lease.dag_id, lease.run_id) for lease in records.live_leases()}
    freed = [
        node
        for dag_id, run_id in sorted(over)
        if not is_live(dag_id, run_id)
        for node in closing.release(dag_id, run_id, "its run was over or gone when housekeeping looked")
    ]
    if freed:
        log.warning("freed %s, whose runs were over", ", ".join(freed))
    return freed


def apply_retention() -> Purged:
    """Remove what is older than the settings keep it."""
    purged = records.apply_retention()
    log.info("removed %s", purged)
    return purged
