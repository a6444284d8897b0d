"""What the campaign did, when and to whom: the truth by which its observers judge."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Drain:
    """A node that a person of the campaign drained in its scheduler for ``reason``; ``until``: resumed, or None."""

    node: str
    reason: str
    since: float
    until: float | None = None


@dataclasses.dataclass(frozen=True)
class Restore:
    """Records that were as of ``saved`` again at ``at``, in place of those in the database ``replaced``.

    ``mails``: (Message-ID, run, node) of each mail that was filed between. ``lost``: names of jobs, hashes of results
    and keys of mails that were not sent, which the replaced records had, but not yet as of ``saved``.
    """

    saved: float
    at: float
    replaced: str
    mails: tuple[tuple[str, str, str], ...] = ()
    lost: frozenset[str] = frozenset()


class Ledger:
    """Kept in memory, and as lines of JSON in a file for those who look into a defect."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self.faults = 0
        self.lives = 0
        self.touched: set[str] = set()
        """Runs that a person of the campaign cleared, marked or deleted, or whose node left service by that person."""
        self.stuck: list[str] = []
        """Lives that did not come to an end."""
        self.machines: dict[str, list[tuple[float, bool]]] = {}
        """By node: since when its machine was healthy (False) or faulty (True), oldest first."""
        self.drains: list[Drain] = []
        self.reboots: list[tuple[str, float]] = []
        """(node, when) of each loss of power, which condemns a machine under load."""
        self.worn: list[tuple[str, float]] = []
        """(node, when) of each fault that appeared in service."""
        self.restores: list[Restore] = []

    def write(self, kind: str, **about: Any) -> None:
        """One line."""
        self._file.write(json.dumps({"at": round(time.time(), 2), "kind": kind, **about}) + "\n")

    def machine(self, node: str, *, faulty: bool) -> None:
        """The node's machine is like this from now on."""
        self.machines.setdefault(node, []).append((time.time(), faulty))
        self.write("machine", node=node, faulty=faulty)

    def rebooted(self, node: str) -> None:
        """The node loses power now."""
        self.reboots.append((node, time.time()))

    def wore(self, node: str, gpu: int) -> None:
        """A GPU of the node fails now, in service."""
        self.worn.append((node, time.time()))
        self.write("worn", node=node, gpu=gpu)

    def touch(self, run_id: str, how: str) -> None:
        """A person changes the course of a run."""
        self.touched.add(run_id)
        self.write("touched", run=run_id, how=how)

    def drained(self, node: str, reason: str) -> None:
        """A person drained the node."""
        self.drains.append(Drain(node, reason, time.time()))
        self.write("drained", node=node, reason=reason)

    def resuming(self, node: str) -> None:
        """That person is about to resume it."""
        ended = [drain for drain in self.drains if drain.node == node and drain.until is None]
        for drain in ended:
            self.drains[self.drains.index(drain)] = dataclasses.replace(drain, until=time.time())
            self.write("resumed", node=node)

    def restored(self, restore: Restore) -> None:
        """The records were restored from a back-up."""
        self.restores.append(restore)
        self.write("restored", saved=round(restore.saved, 2), replaced=restore.replaced)

    def is_drained(self, node: str) -> bool:
        """Whether a person keeps it drained now."""
        return any(drain.node == node and drain.until is None for drain in self.drains)

    def is_faulty(self, node: str) -> bool:
        """Whether its machine is faulty now."""
        return self.machines[node][-1][1]

    def is_suspect(self, node: str) -> bool:
        """Whether its machine is faulty now, or began to fail in service since it was built."""
        built, faulty = self.machines[node][-1]
        return faulty or any(name == node and at > built for name, at in self.worn)
