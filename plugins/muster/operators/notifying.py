"""Notifications by a rule's class of Airflow's notifiers (Slack, PagerDuty, …); they wait in the outbox as mails do."""

from __future__ import annotations

import json

from airflow.sdk.module_loading import import_string

from muster import records
from muster.operators import mail_rules
from muster.settings import settings
from muster_reports.model import RunReport

PREFIX = "notify/"
"""Begins the key of each notification in the outbox."""


def queue(rule: mail_rules.Rule, report: RunReport, report_key: str) -> str:
    """Put the notification of ``rule`` about ``report`` in the outbox, once; returns its key."""
    known = {
        "node": report.node, "verdict": str(report.verdict), "state": report.state_after, "headline": report.headline,
        "link": report.run_url, "simulated": report.simulated,
    }  # fmt: skip
    key = f"{PREFIX}{rule.name}/{report_key}"
    records.outbox_add(key, json.dumps(known).encode())
    return key


def send(key: str, message: bytes) -> str | None:
    """Send one notification of the outbox by the rule that its key names. Returns why it was not sent, None if it was.

    Raises BadSettings if the rules cannot be read.
    """
    name = key.removeprefix(PREFIX).partition("/")[0]
    rule = next((each for each in mail_rules.read(settings().mail_rules) if each.name == name), None)
    if rule is None or not rule.notifier:
        return f"MUSTER_MAIL_RULES has no rule {name} with a notifier any more: give one, or `muster mail drop {key}`"
    try:
        import_string(rule.notifier)(**rule.arguments)(json.loads(message))
    except Exception as error:  # a provider's notifier may raise anything; the next delivery tries again
        return f"{rule.notifier}: {type(error).__name__}: {error}"[:500]
    return None
