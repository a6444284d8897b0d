"""Mails about no run, of one sentence each: put in the outbox, from where housekeeping sends them."""

from __future__ import annotations

import logging

from muster.records.database import access
from muster.records.outbox import outbox_add
from muster.settings import settings

log = logging.getLogger(__name__)


def notify(about: str, sentence: str) -> None:
    """Queue a mail with ``sentence``, at most one a day for what it is ``about`` ("drained again/gpu-0001").

    Raises nothing: what it reports comes first. Without recipients it does nothing.
    """
    from muster_reports import mail

    chosen = settings()
    if not chosen.mail_recipients:
        return
    key = f"notice/{about}/{access.now():%Y-%m-%d}"
    try:
        message = mail.build_notice(key, sentence, chosen.mail_from, chosen.mail_recipients)
        if outbox_add(key, message.as_bytes()) == "added":
            log.info("queued a mail: %s", sentence)
    except Exception:
        log.exception("no mail can be queued about: %s", sentence)
