"""Notices, of one sentence each and about no run: put in the outbox, from where housekeeping sends them."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence

from muster import store
from muster.errors import BadSettings
from muster.reporting import mail_rules
from muster.settings import settings

log = logging.getLogger(__name__)


def notify(about: str, sentence: str) -> None:
    """Queue ``sentence``, at most once a day for what it is ``about`` ("drained again/gpu-0001").

    MUSTER_MAIL_TO gets it, and the rules with ``notices``. Raises nothing: what it reports comes first.
    """
    try:
        _queue(f"notice/{about}/{_now():%Y-%m-%d}", sentence)
    except Exception:
        log.exception("nothing can be queued about: %s", sentence)


def _queue(key: str, sentence: str) -> None:
    chosen = settings()
    if chosen.mail_recipients:
        _mail(key, sentence, chosen.mail_recipients)
    try:
        rules = mail_rules.read(chosen.mail_rules)
    except BadSettings as error:
        log.warning("no rule gets the notice: %s", error)
        return
    for rule, recipients in mail_rules.of_notices(rules, chosen.mail_recipients):
        if recipients:
            _mail(f"{key}/{rule.name}", sentence, recipients, rule)
        if rule.notifier:
            known = {"node": "", "verdict": "", "state": "", "headline": sentence, "link": "", "simulated": False}
            store.outbox.notify(rule.name, key, known, rule.due(_now()))


def _mail(key: str, sentence: str, recipients: Sequence[str], rule: mail_rules.Rule | None = None) -> None:
    from muster_reports import mail

    message = mail.build_notice(key, sentence, settings().mail_from, recipients)
    if store.outbox.add(key, message.as_bytes(), rule.due(_now()) if rule else None) == "added":
        log.info("queued a mail: %s", sentence)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
