"""Notices, of one sentence each and about no run: put in the outbox, from where housekeeping sends them."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Sequence

from muster import store
from muster.errors import DatabaseNotReady, MusterError, UnknownNode
from muster.reporting import dispatch, mail_rules
from muster.settings import settings
from muster_reports import text

log = logging.getLogger(__name__)


def notify(about: str, sentence: str, *, of: str | bool, each: bool = False, lines: Sequence[str] = ()) -> None:
    """Queue ``sentence``, at most once a day for what it is ``about`` ("drained again/gpu-0001").

    ``of``: the node, or whether it is of simulated nodes, since it begins with their mark; about a node that has
    entered service since, it is queued again. ``lines``: a list below it. ``each``: another sentence about it is queued
    too, on the same day. MUSTER_MAIL_TO gets it, and the rules with ``notices``. Raises only DatabaseNotReady: other
    errors must not stop the caller, but after this one PostgreSQL would silently roll back the caller's transaction.
    """
    which = f"/{hashlib.sha256(sentence.encode(errors='surrogatepass')).hexdigest()[:16]}" if each else ""
    try:
        simulated, spell = (of, 0) if isinstance(of, bool) else _known(of)
        key = f"notice/{text.mark(simulated)}{about}{which}/{spell}/{store.clock.now():%Y-%m-%d}"
        _queue(key, f"{text.mark(simulated)}{sentence}", lines, simulated=simulated)
    except DatabaseNotReady:
        raise
    except Exception:
        log.exception("nothing can be queued about: %s", sentence)


def tell_of_questions() -> list[str]:
    """Queue one mail about all questions that were not mailed yet. Returns the nodes that they are about."""
    with store.engine.transaction():
        new = store.questions.unmailed()
        if not new:
            return []
        marks = {asked.node: text.mark(store.nodes.get(asked.node).simulated) for asked, _ in new}
        new.sort(key=lambda each: marks[each[0].node])  # of real nodes first: the subject is the first one's
        lines = [
            f"{marks[asked.node]}{asked.subject} Until {until:%Y-%m-%d %H:%M} UTC: `muster approve "
            f"{shlex.quote(asked.run_id)} --option … --reason …` with {', '.join(asked.options)}"
            for asked, until in new
        ]
        first, *others = new
        more = f", and {text.plural(len(others), 'other question')}" if others else ""
        mark = marks[first[0].node]
        sentence = f"{mark}{first[0].node} waits for your answer{more}: {first[0].subject}"
        _queue(f"questions/{first[0].number}", sentence, lines, simulated=bool(mark))
        store.questions.note_mailed([asked.key for asked, _ in new])
    return [asked.node for asked, _ in new]


def _known(name: str) -> tuple[bool, int]:
    """Whether the node is simulated, and its spell in service. One that the records do not know counts as real."""
    try:
        node = store.nodes.get(name)
    except UnknownNode:
        return False, 0
    return node.simulated, node.spell


def _queue(key: str, sentence: str, lines: Sequence[str], *, simulated: bool) -> None:
    """Queue it for all who get notices. Raises MusterError if there are some and none of them can get it."""
    from muster_reports import mail

    def mailed(recipients: Sequence[str], rule: mail_rules.Rule | None) -> str:
        mine, due = (f"{key}/{rule.name}", rule.due(store.clock.now())) if rule else (key, None)
        message = mail.build_notice(mine, sentence, settings().mail_from, recipients, lines)
        if store.outbox.add(mine, message.as_bytes(), due) == "added":
            log.info("queued a mail: %s", sentence)
        return mine

    def notified(rule: mail_rules.Rule) -> str:
        known = dispatch.known(dispatch.listed(sentence, lines), simulated=simulated)
        return store.outbox.notify(rule.name, key, known, rule.due(store.clock.now()))

    queued, failed = dispatch.each_way(mail_rules.of_notices, mailed, notified)
    if failed and not queued:
        raise MusterError("; ".join(failed))
    for each in failed:
        log.warning("not all get the notice: %s", each)
