"""Notifications by a rule's class of Airflow's notifiers (Slack, PagerDuty, …); they wait in the outbox as mails do."""

from __future__ import annotations

import datetime
import json
import shlex

from airflow.sdk.module_loading import import_string

from muster import redaction, store
from muster.model.queues import Refusal
from muster.reporting import mail_rules
from muster.settings import settings


def rule_of(key: str) -> str:
    """The name of a notification's rule."""
    return key.removeprefix(store.outbox.NOTIFICATION).partition("/")[0]


def send(key: str, message: bytes, now: datetime.datetime, last_error: str = "") -> Refusal | None:
    """Send a notification of the outbox by the rule that its key names; returns why it was not sent, None if it was.

    One that is too old is refused for good. ``last_error``: why it was not sent before.
    """
    content = json.loads(message)
    if now >= (last := datetime.datetime.fromisoformat(content["last"])):
        why = f"given up: not sent by {last:%Y-%m-%d %H:%M} UTC{last_error and f' ({last_error})'}"
        return Refusal(why, permanent=True)
    failure = _failure(key, content["known"])
    return None if failure is None else Refusal(failure[:500], permanent=False)


def _failure(key: str, known: dict[str, object]) -> str | None:
    name = rule_of(key)
    rules, wrong = mail_rules.read(settings().mail_rules)
    rule = next((each for each in rules if each.name == name), None)
    if rule is None and wrong:
        return "; ".join(wrong)
    if rule is None or not rule.notifier:
        lacks = f"MUSTER_MAIL_RULES has no rule {name} with a notifier any more"
        return f"{lacks}: give one, or `muster mail drop {shlex.quote(key)} --reason …`"
    try:
        import_string(rule.notifier)(**rule.arguments)(known)
    except Exception as error:  # a provider's notifier may raise anything; the next delivery tries again
        return redaction.of_text(f"{rule.notifier}: {type(error).__name__}: {error}")
    return None
