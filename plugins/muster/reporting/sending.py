"""Sends what waits in the outbox: mails by SMTP, then notifications by their rules' notifiers."""

from __future__ import annotations

import datetime
import email
import email.policy
import functools
import logging
import smtplib
from collections.abc import Collection, Sequence
from email.message import EmailMessage
from typing import NamedTuple

from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.sdk.exceptions import AirflowException

from muster import store
from muster.model.queues import OutboxMessage, Refusal
from muster.reporting import notifying
from muster.settings import settings

log = logging.getLogger(__name__)

MAILS_AT_ONCE = 100
PERMANENT, LEAVES = 500, 421
"""SMTP codes: the lowest that is final, and that of a server that ends the connection (RFC 5321 3.8)."""
FRESH = datetime.timedelta(minutes=2)
"""How long only the run that queued a mail tries to send it: two senders would send it twice."""


class Delivery(NamedTuple):
    """Numbers of mails: sent, waiting for a retry, and parked (refused permanently)."""

    sent: int
    waiting: int
    parked: int


def deliver_mail(key: str | None = None) -> Delivery:
    """Send what is due in the outbox, mails first, then notifications; or only the one of ``key``.

    What is refused for now waits, longer each time; a mail with a permanent refusal (5xx) is parked, as is a
    notification that was not sent within a day. If some recipients are refused, the others still get the mail. If the
    server cannot be reached, all mails stay due.
    """
    now = store.clock.now()
    sent = _send_mails(_due(key, now, notifications=False)) + _notify(key, now)
    parked = [mail for mail in store.outbox.parked() if key is None or mail.key == key]
    if parked and key is None:
        first = parked[0]
        log.warning("%d are parked and not tried again, first %s: %s", len(parked), first.key, first.last_error)
    return Delivery(sent, store.outbox.waiting(key), len(parked))


def _due(
    key: str | None, now: datetime.datetime, *, notifications: bool, but_of: Collection[str] = ()
) -> list[OutboxMessage]:
    """What is to be sent now. ``but_of``: rules whose notifications are left out."""
    due = store.outbox.pending(MAILS_AT_ONCE, due=key is None, key=key, notifications=notifications, but_of=but_of)
    return [each for each in due if key is not None or each.attempts or not now - FRESH <= each.created_at <= now]


def _send_mails(pending: Sequence[OutboxMessage]) -> int:
    """Returns how many were accepted; ends at once if the server cannot be reached."""
    sent = 0
    for each in pending:
        connected, message = False, b""
        try:
            # One connection per mail: a refused mail must not break the next ones.
            with SmtpHook(smtp_conn_id=settings().smtp_conn_id) as hook:
                connected = True
                if not store.outbox.take(each) or not (message := store.outbox.message(each.id)):
                    continue
                refusal = _send(hook, message, each.recipients)
        except (AirflowException, OSError) as error:
            if connected:
                store.outbox.failed(each.id, message, str(error)[:500])
            else:
                store.outbox.unreachable(each.id, str(error)[:500])
            log.warning("mail cannot be sent now (%s); it is kept and sent by the housekeeping DAG", error)
            break
        except Exception as error:  # one that cannot be read or encoded keeps no other waiting
            log.exception("%s", each.key)
            refusal = Refusal(f"it cannot be sent: {type(error).__name__}: {error}"[:500], permanent=False)
        sent += _settle(each, message, refusal)
    return sent


def _notify(key: str | None, now: datetime.datetime) -> int:
    """Returns how many were sent. A rule that failed is skipped, since each attempt may take half a minute; what waits
    behind its notifications, or behind those that are too old, is sent.
    """
    sent = 0
    down: set[str] = set()
    while True:
        known, given_up = len(down), False
        for each in _due(key, now, notifications=True, but_of=down):
            rule = notifying.rule_of(each.key)
            if rule in down or not store.outbox.take(each) or not (message := store.outbox.message(each.id)):
                continue
            refusal = notifying.send(each.key, message, now, each.last_error)
            if refusal is not None and refusal.permanent:
                given_up = True
            elif refusal is not None:
                down.add(rule)
            sent += _settle(each, message, refusal)
        if (len(down) == known and not given_up) or key is not None:
            return sent


def _settle(tried: OutboxMessage, message: bytes, refusal: Refusal | None) -> bool:
    """Record how the attempt ended; returns whether it was accepted."""
    if refusal is None:
        # Until this is recorded, only this process knows that it was sent, and the mail would be sent again.
        store.patience.outlasting(functools.partial(store.outbox.sent, tried.id, message))
        return True
    store.outbox.failed(tried.id, message, refusal.reason, park=refusal.permanent, recipients=refusal.recipients)
    then = "it is parked" if refusal.permanent else "it is tried again later"
    log.warning("%s was not accepted (%s); %s", tried.key, refusal.reason, then)
    return False


def _send(hook: SmtpHook, raw: bytes, recipients: Sequence[str]) -> Refusal | None:
    """Send one mail to ``recipients``, () for all of its header. Raises OSError if the connection breaks."""
    message = email.message_from_bytes(raw, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    client = hook._smtp_client
    assert isinstance(client, smtplib.SMTP)
    try:
        refused = client.send_message(message, to_addrs=recipients or None)
    except smtplib.SMTPRecipientsRefused as error:
        refused = error.recipients
    except smtplib.SMTPException as error:
        code = error.smtp_code if isinstance(error, smtplib.SMTPResponseException) else 0
        return Refusal(str(error)[:500], code >= PERMANENT)
    if not refused:
        return None
    reasons = "; ".join(f"{name}: {code} {text.decode(errors='replace')}" for name, (code, text) in refused.items())
    codes = [code for code, _ in refused.values()]
    # smtplib ends the connection at once: recipients for whom it gives no reason have not got the mail either.
    names = () if LEAVES in codes else tuple(refused)
    return Refusal(reasons[:500], all(code >= PERMANENT for code in codes), names)
