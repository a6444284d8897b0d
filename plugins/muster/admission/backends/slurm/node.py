"""A node as Slurm shows it: its state and flags, and what its drain says."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pydantic

from muster_criteria.text import one_line

PREFIX = "muster: "
"""The Reason of our drains, and what we write into Extra, begin with this."""

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
"""Beginnings of states and flags of nodes that are neither opened nor tested in service. Nodes of ``_WORKED_ON``, on
which others may be working, and of ``_KEPT`` are not free even when drained.
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
"""States and flags that say nothing against a node (slurm.h, NODE_STATE_…, as of 25.11). A word that is in none of
these lists, as of a newer version, keeps the node from counting as free, and is named."""

WAS = " (was: "
"""In our drain's reason, precedes the reason that the node, then unavailable, showed before."""

BY = ", set by "
"""Precedes the user who had drained such a node or set it to DOWN; absent if slurmctld had set it to DOWN."""

LOST = frozenset({"Not responding", "Node unexpectedly rebooted"})
"""slurmctld's reasons for setting a node DOWN that restarted, or did not answer for longer than SlurmdTimeout."""

_APPENDED = " : "
"""Between a reason and what slurmctld appends to it, "Not responding" or "reboot complete" (23.02 and later)."""

_AT_REGISTRATION = re.compile(r"gres/|Low |Could not unpack gres data|CoreSpec differ")
"""Beginnings of reasons with which slurmctld replaces any other when a node registers with fewer resources than
slurm.conf gives it (23.02 and later). They stay when it registers with all of them again."""

_ROOT = frozenset({"root", "0"})
_SLURMCTLDS = re.compile(
    f"{_AT_REGISTRATION.pattern}|Not responding|Node unexpectedly rebooted|(?i:reboot)|ResumeTimeout|Prolog|Epilog"
    "|Kill task failed|batch job complete failure|Duplicate job|SlurmdSpoolDir|NO NETWORK ADDRESS"
)
"""Beginnings of Slurm's own reasons, to tell them from an administrator's when both are set by root: slurmstepd always
runs as root, slurmctld if SlurmUser is root.
"""


class SlurmNode(pydantic.BaseModel):
    """What is read of a node, in the form of 22.05's JSON; newer forms are converted."""

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
        """The state and its flags, such as ["IDLE", "DRAIN"]."""
        return [self.state.upper(), *(flag.upper() for flag in self.state_flags)]

    def shows(self, begin: str) -> bool:
        """Whether its state or a flag begins with ``begin``."""
        return any(word.startswith(begin) for word in self.words)

    @property
    def drained(self) -> bool:
        """Whether no job begins on it; running jobs continue."""
        return _DRAIN in self.words

    @property
    def failing(self) -> bool:
        """Whether somebody set it to FAIL, which a drain would replace."""
        return self.shows("FAIL")

    @property
    def used(self) -> bool:
        """Whether jobs use it; with a suspended job it shows as idle."""
        return bool(self.alloc_cpus or not _USED.isdisjoint(self.words))

    @property
    def powers_up_for_a_job(self) -> bool:
        """Whether a drain would make slurmctld requeue the jobs that have it."""
        return self.used and not _POWERS_UP.isdisjoint(self.words)

    @property
    def promised(self) -> str:
        """What the node is promised to; "" if nothing, or if it is drained, as no job begins on it then."""
        return "" if self.drained else next((text for flag, text in _PROMISED.items() if flag in self.words), "")

    @property
    def worked_on(self) -> str:
        """Why others may be working on it; "" if nothing says so. A state unknown to Muster counts as such a reason."""
        known = (*_WORKED_ON, *_KEPT, *_AWAY)
        unknown = [word for word in self.words if word not in _HARMLESS and not word.startswith(known)]
        text = f"in a state that Muster does not know: {one_line(' '.join(unknown))}" if unknown else ""
        return self._first_of(_WORKED_ON) or text

    @property
    def kept(self) -> str:
        """Why it is not free even when drained, for a reason that restarts no node; "" if there is none."""
        return self._first_of(_KEPT)

    @property
    def apart(self) -> str:
        """Why it is neither opened nor tested in service, "" if it may be."""
        return self.worked_on or self.kept or self._first_of(_AWAY)

    @property
    def came_back(self) -> bool:
        """Whether a drained node is down only because slurmctld lost contact with it, and it answers again.

        slurmctld leaves such a node down unless ReturnToService is 2, since its reason is that of the drain.
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
        """Whether Muster drained it, as ``user``, also if slurmctld (``slurm_users``) changed the reason since.

        ``slurm_users`` is called only if needed.
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
    """Returns the text as a part of a reason, with nothing that ``_APPENDED``, ``WAS`` or ``BY`` would match, and
    without "=", which could begin another change and which docs/examples/muster_slurm.sudoers does not allow.
    """
    one = re.sub(r"\s+:", ":", one_line(text).replace("=", ":"))
    return one.replace(WAS, " (was ").replace(BY, "; set by ").lstrip(": ")
