"""A worked example of an admission backend: a scheduler that allocates the nodes of a list, one line a node.

A line is ``NAME``, or ``NAME # REASON`` for a node that is closed. ``muster:`` begins the reasons that Muster wrote.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import pydantic

from muster.admission.backend import AdmissionBackend, Mark, Seen
from muster.errors import LeftAlone, SchedulerDown

OURS = "muster: "


class NodeListSettings(pydantic.BaseModel):
    """One list, as MUSTER_SCHEDULERS gives it: {"kind": "node_list", "path": "/etc/nodes"}."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Literal["node_list"]
    path: Path


class NodeList(AdmissionBackend):
    """The list of nodes in one file."""

    def __init__(self, chosen: NodeListSettings) -> None:
        self._path = chosen.path

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """The lines of the nodes. Raises SchedulerDown."""
        return {name: _seen(reason) for name, reason in self._read().items() if name in names}

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Remove our reason; the file forgets no change. Raises LeftAlone, SchedulerDown."""
        reason = self._read().get(name, "")
        if reason and not reason.startswith(OURS):
            raise LeftAlone(f"{name} stays closed: {reason}")
        self._write(name, "")
        return ""

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Write our reason, unless there is somebody else's and the node stays. Raises SchedulerDown."""
        theirs = self._read().get(name, "")
        if theirs.startswith(OURS) or not theirs:
            self._write(name, OURS + reason)
        elif for_good:
            self._write(name, f"{OURS}{reason} (was: {theirs})")

    def _read(self) -> dict[str, str]:
        try:
            lines = [line.partition(" # ") for line in self._path.read_text().splitlines()]
        except OSError as error:
            raise SchedulerDown(f"the list {self._path} cannot be read: {error.strerror}") from None
        return {name: reason for name, _, reason in lines}

    def _write(self, name: str, reason: str) -> None:
        lines = {**self._read(), name: reason}
        text = "".join(f"{each} # {why}\n" if why else f"{each}\n" for each, why in lines.items())
        self._path.write_text(text)


def _seen(reason: str) -> Seen:
    ours = reason.startswith(OURS)
    return Seen(open=not reason, ours=ours, foreign="" if ours else reason)


BACKEND = (NodeListSettings, NodeList)
