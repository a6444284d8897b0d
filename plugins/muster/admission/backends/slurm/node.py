"""A node as Slurm shows it: its state and flags, and what is read of its drain."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pydantic

from muster_criteria.text import one_line

PREFIX = "muster: "
"""Begins the Reason of our drains, and what we write into Extra."""

WITHDRAWN = "withdrawn"
"""Follows ``PREFIX`` in the Extra of a node that Muster drained; an admission replaces it."""

_DRAIN = "DRAIN"
_INVALID = "INVALID"

_WORKED_ON = {
    "MAINTENANCE": "in maintenance",
    "REBOOT": "rebooting",
    "POWER": "powered down, or about to be",
    "UNKNOWN": "in an unknown state",
}
_KEPT = {
    "FAIL": "failing",
    "BLOCKED": "blocked by a job that has its part of the topology for itself",
}
_AWAY = {
    "NOT_RESPONDING": "not responding",
    "DOWN": "down",
    "ERROR": "in error",
    "FUTURE": "a future node",
    _INVALID: "registered with other resources than slurm.conf gives it",
}
"""Beginnings of states and flags of nodes that are not opened, nor tested in service. Those of ``_WORKED_ON``, on which
others may be at work, and of ``_KEPT`` are not free even drained.
"""

_PROMISED = {"RESERVED": "a reservation in Slurm", "PLANNED": "a job that Slurm has planned for it"}
"""Flags of nodes that are not free, and are drained and opened like any other: a drain ends no reservation."""

_USED = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})

_POWERS_UP = frozenset({"POWERED_DOWN", "POWER_UP", "POWERING_UP"})

_HARMLESS = frozenset({
    "IDLE", *_USED,
    _DRAIN, "UNDRAIN", "RESUME",
    "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", *_PROMISED,
})  # fmt: skip
"""States and flags that say nothing against a node (slurm.h, NODE_STATE_…, as of 25.11). One that is in neither list,
as of a newer version, keeps the node from counting as free, and is named."""

WAS = " (was: "
"""Begins what a drain of ours keeps of the reason that a node showed, which was not available then."""

BY = ", set by "
"""Before the user who had set such a node to DOWN; where slurmctld itself had, there is none."""

LOST = frozenset({"Not responding", "Node unexpectedly rebooted"})
"""slurmctld's reasons where it puts a node down that did not answer for longer than SlurmdTimeout, or restarted."""

_APPENDED = " : "
"""Between a reason and what slurmctld appends to it, "Not responding" or "reboot complete" (23.02 and later)."""

_AT_REGISTRATION = re.compile(r"gres/|Low |Could not unpack gres data|CoreSpec differ")
"""How the reasons begin that slurmctld puts in place of any other one when a node registers with less than slurm.conf
gives it (23.02 and later). They stay when it registers with all of it again."""

_ROOT = frozenset({"root", "0"})
_SLURMCTLDS = re.compile(
    f"{_AT_REGISTRATION.pattern}|Not responding|Node unexpectedly rebooted|(?i:reboot)|ResumeTimeout|Prolog|Epilog"
    "|Kill task failed|batch job complete failure|Duplicate job|SlurmdSpoolDir|NO NETWORK ADDRESS"
)
"""How Slurm's own reasons begin, where its user is root, as which administrators give reasons too: slurmstepd's always
is, slurmctld's where SlurmUser is.
"""


class SlurmNode(pydantic.BaseModel):
    """What is read of a node in the JSON of 22.05; newer versions are brought to its form."""

    name: str
    state: str
    state_flags: list[str] = []
    reason: str = ""
    reason_set_by_user: str | None = ""
    reason_changed_at: int = 0
    boot_time: int = 0
    extra: str = ""
    features: str = ""
    alloc_cpus: int = 0

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_newer(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        node = dict(raw)
        state, features = node.get("state"), node.get("features")
        if isinstance(state, list) and state:
            node["state"], node["state_flags"] = state[0], state[1:]
        if isinstance(features, list):
            node["features"] = ",".join(map(str, features))
        for name in ("reason_changed_at", "boot_time"):
            if isinstance(moment := node.get(name), dict):
                node[name] = moment.get("number") if moment.get("set") else 0
        return node

    @functools.cached_property
    def words(self) -> list[str]:
        """The state and its flags, as "IDLE", "DRAIN"."""
        return [self.state.upper(), *(flag.upper() for flag in self.state_flags)]

    def shows(self, begin: str) -> bool:
        """Whether its state or a flag begins so."""
        return any(word.startswith(begin) for word in self.words)

    @property
    def drained(self) -> bool:
        """Whether no job begins on it; jobs that run on it go on."""
        return _DRAIN in self.words

    @property
    def failing(self) -> bool:
        """Whether somebody set it to FAIL, which a drain would replace."""
        return self.shows("FAIL")

    @property
    def used(self) -> bool:
        """Whether jobs have it; a suspended one leaves it idle."""
        return bool(self.alloc_cpus or not _USED.isdisjoint(self.words))

    @property
    def powers_up_for_a_job(self) -> bool:
        """Whether a drain would make slurmctld requeue the jobs that have it."""
        return self.used and not _POWERS_UP.isdisjoint(self.words)

    @property
    def promised(self) -> str:
        """What it is promised to, "" without; no job begins on a drained node, whatever it is promised to."""
        return "" if self.drained else next((text for flag, text in _PROMISED.items() if flag in self.words), "")

    @property
    def worked_on(self) -> str:
        """Why others may be at work on it, "" if nothing says so; a state that Muster does not know does."""
        known = (*_WORKED_ON, *_KEPT, *_AWAY)
        unknown = [word for word in self.words if word not in _HARMLESS and not word.startswith(known)]
        text = f"in a state that Muster does not know: {one_line(' '.join(unknown))}" if unknown else ""
        return self._first_of(_WORKED_ON) or text

    @property
    def kept(self) -> str:
        """Why it is not free even drained, though this restarts no node; "" if it is."""
        return self._first_of(_KEPT)

    @property
    def apart(self) -> str:
        """Why it is neither opened nor tested in service, "" if it may be."""
        return self.worked_on or self.kept or self._first_of(_AWAY)

    @property
    def came_back(self) -> bool:
        """Whether a drained node is down only since slurmctld did not hear of it, and answers again.

        slurmctld leaves such a node down unless ReturnToService is 2: its reason is that of the drain.
        """
        ours, *appended = self.reason.split(_APPENDED)
        was = ours.partition(WAS)[2].removesuffix(")")
        others = {*self.words} - {"DOWN", _DRAIN, *_PROMISED, "CLOUD", "DYNAMIC_NORM"}
        lost = ours.startswith(PREFIX) and LOST.issuperset({*appended, *([was] if was else [])})
        return self.shows("DOWN") and self.drained and not others and lost

    def _first_of(self, texts: Mapping[str, str]) -> str:
        return next((text for begin, text in texts.items() if self.shows(begin)), "")

    def by_slurmctld(self, slurm_users: Callable[[], Collection[str]]) -> bool:
        """Whether Slurm itself gave the reason, and no person or other program."""
        user = self.reason_set_by_user
        return _SLURMCTLDS.match(self.reason) is not None if user in _ROOT else user in slurm_users()

    def taken_down_by(self, slurm_users: Callable[[], Collection[str]]) -> str:
        """Who set it to DOWN, and why, also behind a later drain of ours; "" if no person did."""
        if not self.shows("DOWN"):
            return ""
        why, user = self.reason, self.reason_set_by_user or "an unknown user"
        if why.startswith(PREFIX):
            why, _, user = why.split(_APPENDED)[0].partition(WAS)[2].removesuffix(")").rpartition(BY)
        elif not why or self.drained or self.by_slurmctld(slurm_users):
            return ""
        return one_line(f"taken down by {user}: {why}") if why else ""

    @property
    def closed_by(self) -> str:
        """Who closed it, and why, "" if it is neither drained nor failing."""
        if not (self.drained or self.failing):
            return ""
        how = "set to FAIL" if self.failing else "drained"
        if not self.reason:
            return f"{how} without a reason, as by State=DRAIN in slurm.conf"
        return one_line(f"{how} by {self.reason_set_by_user or 'an unknown user'}: {self.reason}")

    def is_ours(self, user: str, slurm_users: Callable[[], Collection[str]]) -> bool:
        """Whether Muster drained it, as ``user``, also where slurmctld changed the reason since, as ``slurm_users``.

        These are asked for only if they matter.
        """
        if not self.drained or self.failing:
            return False
        begins = self.reason.startswith(PREFIX)
        if begins and self.reason_set_by_user == user:
            return True
        withdrawn = self.extra.startswith(PREFIX + WITHDRAWN) and not self.shows(_INVALID)
        replaced = withdrawn and _AT_REGISTRATION.match(self.reason) is not None
        rewritten = replaced or (begins and _APPENDED in self.reason)
        return rewritten and self.reason_set_by_user in slurm_users()


def plain(text: str) -> str:
    """Returns the text as a part of a reason: nothing in it reads as appended by slurmctld, or as kept of another
    reason and its user, and docs/examples/muster_slurm.sudoers allows no "=", which could begin another change.
    """
    one = re.sub(r"\s+:", ":", one_line(text).replace("=", ":"))
    return one.replace(WAS, " (was ").replace(BY, "; set by ").lstrip(": ")
