"""Rules that choose who gets which report, when, and through what. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import pydantic

from muster.blackout import closed, closed_until
from muster.errors import first_refused
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_reports.addresses import address


class Rule(pydantic.BaseModel):
    """One rule of MUSTER_MAIL_RULES. A report matches that has one of ``verdicts``, left its node in one of ``states``,
    and is of a node with all of ``labels``; what is empty matches everything.

    It is mailed to ``to``: at their end in the UTC windows of ``quiet``, and at most ``an_hour`` mails an hour (0: any
    number); the hour's others come as one list. Both hold for ``notifier`` too. ``notifier``: the path of a class of
    Airflow's notifiers, made with ``arguments``, whose templates know ``node``, ``verdict``, ``state``, ``headline``,
    ``link`` and ``simulated``. ``digest``: how often the addresses get the digest of the nodes with ``labels``.
    ``notices``: the rule also gets what belongs to no report, such as a user's job that was ended.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str = pydantic.Field(pattern=r"^[a-z0-9-]{1,40}$")
    to: tuple[str, ...] = ()
    notifier: str = ""
    arguments: dict[str, Any] = {}
    verdicts: tuple[Verdict, ...] = ()
    states: tuple[State, ...] = ()
    labels: dict[str, str] = {}
    quiet: str = ""
    an_hour: int = pydantic.Field(default=0, ge=0)
    digest: Literal["", "daily", "weekly"] = ""
    notices: bool = False

    @pydantic.model_validator(mode="after")
    def _usable(self) -> Rule:
        closed(self.quiet, datetime.datetime.now(datetime.UTC))
        if not self.to and not self.notifier:
            raise ValueError(f"rule {self.name} reaches no one: give to or notifier")
        if not self.to and self.digest:
            raise ValueError(f"rule {self.name}: a digest is a mail: give to")
        return self

    def matches(self, verdict: str, state: str, labels: Mapping[str, str]) -> bool:
        """Whether a report is for this rule."""
        return (
            (not self.verdicts or verdict in self.verdicts)
            and (not self.states or state in self.states)
            and all(labels.get(name) == text for name, text in self.labels.items())
        )

    def due(self, now: datetime.datetime) -> datetime.datetime | None:
        """When a mail or a notification of ``now`` may be sent; None: at once."""
        return closed_until(self.quiet, now)


def read(chosen: Sequence[Mapping[str, Any]]) -> tuple[list[Rule], list[str]]:
    """Returns the rules of MUSTER_MAIL_RULES with their usable addresses, and a sentence about each unusable rule and
    address: these do not stop the others' mails.
    """
    found: list[Rule] = []
    wrong: list[str] = []
    for number, each in enumerate(chosen, start=1):
        try:
            rule = Rule.model_validate(each)
        except pydantic.ValidationError as error:
            why = first_refused(error)
            wrong.append(f"MUSTER_MAIL_RULES: rule {number} cannot be used: {why}")
            continue
        if rule.name in {other.name for other in found}:
            wrong.append(f"MUSTER_MAIL_RULES: two rules are called {rule.name}: give each its own name")
            continue
        to = usable(rule.to, f"MUSTER_MAIL_RULES: rule {rule.name}", wrong)
        if to or rule.notifier:
            found.append(rule.model_copy(update={"to": to}))
    return found, wrong


def usable(addresses: Iterable[str], whose: str, wrong: list[str]) -> tuple[str, ...]:
    """The addresses that can be used, each mailbox once; ``wrong`` gets a sentence about each other one."""
    found: list[str] = []
    for each in addresses:
        try:
            address(each)
        except ValueError as error:
            wrong.append(f"{whose}: {error}")
        else:
            found.append(each)
    return but(found, ())


def but(addresses: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """The addresses whose mailbox none of ``others`` has, each mailbox once. Raises ValueError as ``address``."""
    found = dict.fromkeys(map(_mailbox, others), "")
    for each in addresses:
        found.setdefault(_mailbox(each), each)
    return tuple(filter(None, found.values()))


def _mailbox(text: str) -> str:
    return address(text).addr_spec.lower()


def recipients(
    rules: Sequence[Rule], everything: Sequence[str], verdict: str, state: str, labels: Mapping[str, str]
) -> list[tuple[Rule, tuple[str, ...]]]:
    """The rules that such a report matches, each with those of its addresses that do not get it already."""
    return _once([rule for rule in rules if rule.matches(verdict, state, labels)], everything)


def of_notices(rules: Sequence[Rule], everything: Sequence[str]) -> list[tuple[Rule, tuple[str, ...]]]:
    """The rules that get notices, as ``recipients`` does.

    If none asks for them and ``everything`` is empty, all rules without labels get them: a notice may name any node.
    """
    chosen = [rule for rule in rules if rule.notices]
    if not chosen and not everything:
        chosen = [rule for rule in rules if not rule.labels]
    return _once(chosen, everything)


def unmatched(rules: Sequence[Rule], nodes: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence about each rule whose labels no node has; none without nodes. ``nodes``: the labels of each."""
    return [
        f"MUSTER_MAIL_RULES: rule {rule.name} gets no report and no digest, since no node has its labels"
        for rule in rules
        if nodes and not any(rule.labels.items() <= labels.items() for labels in nodes)
    ]


def _once(rules: Sequence[Rule], everything: Sequence[str]) -> list[tuple[Rule, tuple[str, ...]]]:
    """A mailbox gets a mail once: as one of ``everything``, else by the first rule."""
    seen = list(everything)
    found = []
    for rule in rules:
        found.append((rule, but(rule.to, seen)))
        seen += rule.to
    return found
