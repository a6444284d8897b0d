"""The ways to send a report or a notice: MUSTER_MAIL_TO, and the recipients and notifier of each rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from muster.errors import apart
from muster.reporting import mail_rules
from muster.settings import settings

LISTED = 20
"""The most lines of a list in a notification: chats and pagers cut long texts."""

_NO_MARKUP = str.maketrans("<>@", "‹›＠")
"""Slack reads <!channel> and <https://…|words>, other services read HTML, @everyone and [words](https://…)."""


def each_way(
    chosen: Callable[[Sequence[mail_rules.Rule], Sequence[str]], Iterable[tuple[mail_rules.Rule, Sequence[str]]]],
    mail: Callable[[Sequence[str], mail_rules.Rule | None], str],
    notify: Callable[[mail_rules.Rule], str],
) -> tuple[list[str], list[str]]:
    """Queue something each way; one that fails does not stop another.

    ``chosen``: those of all rules that get it, each with its recipients, given whom MUSTER_MAIL_TO names. ``mail``
    queues it for recipients, by a rule or by MUSTER_MAIL_TO; ``notify`` for the notifier of a rule.

    Returns what ``mail`` and ``notify`` returned, and a sentence about each way that failed.
    """
    rules, failed = mail_rules.read(settings().mail_rules)
    everyone = mail_rules.usable(settings().mail_recipients, "MUSTER_MAIL_TO", failed)
    queued: list[str] = []
    if everyone:
        with apart("MUSTER_MAIL_TO", failed):
            queued.append(mail(everyone, None))
    for rule, recipients in chosen(rules, everyone):
        if recipients:
            with apart(f"rule {rule.name}", failed):
                queued.append(mail(recipients, rule))
        if rule.notifier:
            with apart(f"the notifier of rule {rule.name}", failed):
                queued.append(notify(rule))
    return queued, failed


def known(
    headline: str, *, node: str = "", verdict: str = "", state: str = "", link: str | None = "", simulated: bool = False
) -> dict[str, object]:
    """The variables of a notifier's templates. A headline may hold a node's own words, whose markup is disabled."""
    said = headline.translate(_NO_MARKUP).replace("](", "] (")
    return {
        "node": node, "verdict": verdict, "state": state, "headline": said, "link": link, "simulated": simulated,
    }  # fmt: skip


def listed(sentence: str, lines: Sequence[str]) -> str:
    """The headline of a notification with a list."""
    return "\n- ".join([sentence, *lines[:LISTED]])
