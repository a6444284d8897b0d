"""Notices, of one sentence each and about no run: put in the outbox, from where housekeeping sends them."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Sequence

from muster import store
from muster.errors import MusterError, apart
from muster.reporting import mail_rules
from muster.settings import settings
from muster_reports import text

log = logging.getLogger(__name__)
LISTED = 20
"""Lines of a list in a notification: chats and pagers cut long texts."""


def notify(about: str, sentence: str, *, each: bool = False) -> None:
    """Queue ``sentence``, at most once a day for what it is ``about`` ("drained again/gpu-0001").

    ``each``: another sentence about it is queued too, on the same day. MUSTER_MAIL_TO gets it, and the rules with
    ``notices``. Raises nothing: what it reports comes first.
    """
    which = f"/{hashlib.sha256(sentence.encode(errors='surrogatepass')).hexdigest()[:16]}" if each else ""
    try:
        _queue(f"notice/{about}{which}/{store.clock.now():%Y-%m-%d}", sentence)
    except Exception:
        log.exception("nothing can be queued about: %s", sentence)


def tell_of_questions() -> list[str]:
    """Queue one mail about all questions that were not mailed yet. Returns the nodes that they are about."""
    with store.engine.transaction():
        new = store.questions.unmailed()
        if not new:
            return []
        lines = [
            f"{prefix_of(asked.node)}{asked.subject} Until {until:%Y-%m-%d %H:%M} UTC: `muster approve "
            f"{shlex.quote(asked.run_id)} --option … --reason …` with {', '.join(asked.options)}"
            for asked, until in new
        ]
        first, *others = new
        more = f", and {text.plural(len(others), 'other question')}" if others else ""
        sentence = f"{first[0].node} waits for your answer{more}: {first[0].subject}"
        _queue(f"questions/{first[0].key}", sentence, lines)
        store.questions.note_mailed([asked.key for asked, _ in new])
    return [asked.node for asked, _ in new]


def prefix_of(node: str) -> str:
    """Returns what a sentence about a simulated node begins with, "" for a real one."""
    return "[simulated] " if store.nodes.get(node).simulated else ""


def _queue(key: str, sentence: str, lines: Sequence[str] = ()) -> None:
    """Queue it for all who get notices. Raises MusterError if there are some and none of them can get it."""
    chosen, reached = settings(), False
    rules, failed = mail_rules.read(chosen.mail_rules)
    everyone = mail_rules.usable(chosen.mail_recipients, "MUSTER_MAIL_TO", failed)
    if everyone:
        with apart("MUSTER_MAIL_TO", failed):
            _mail(key, sentence, lines, everyone)
            reached = True
    for rule, recipients in mail_rules.of_notices(rules, everyone):
        with apart(f"rule {rule.name}", failed):
            if recipients:
                _mail(f"{key}/{rule.name}", sentence, lines, recipients, rule)
                reached = True
            if rule.notifier:
                headline = "\n- ".join([sentence, *lines[:LISTED]])
                known = {"node": "", "verdict": "", "state": "", "headline": headline, "link": "", "simulated": False}
                store.outbox.notify(rule.name, key, known, rule.due(store.clock.now()))
                reached = True
    if failed and not reached:
        raise MusterError("; ".join(failed))
    for each in failed:
        log.warning("not all get the notice: %s", each)


def _mail(
    key: str, sentence: str, lines: Sequence[str], recipients: Sequence[str], rule: mail_rules.Rule | None = None
) -> None:
    from muster_reports import mail

    message = mail.build_notice(key, sentence, settings().mail_from, recipients, lines)
    if store.outbox.add(key, message.as_bytes(), rule.due(store.clock.now()) if rule else None) == "added":
        log.info("queued a mail: %s", sentence)
