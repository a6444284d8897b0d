"""What a digest is made of, as the records give it, and a finished section. Values only."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

SERVING = frozenset({"production", "revalidation"})
OUT = frozenset({"quarantine", "triage", "repair", "rma"})
"""States of a node in service, and of one that was withdrawn."""


@dataclasses.dataclass(frozen=True)
class Node:
    """An enrolled node. ``last_pass``: when its last conclusive run without a FAIL ended."""

    name: str
    sku: str
    rack: str
    state: str
    added_at: datetime.datetime
    last_pass: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class Move:
    """A change of state."""

    node: str
    at: datetime.datetime
    before: str
    after: str
    reason: str

    @property
    def withdrawn(self) -> bool:
        """Whether the node left service for a fault."""
        return self.before in SERVING and self.after in OUT


@dataclasses.dataclass(frozen=True)
class Run:
    """An ended run of one node."""

    node: str
    run_id: str
    verdict: str
    headline: str
    started_at: datetime.datetime
    ended_at: datetime.datetime


@dataclasses.dataclass(frozen=True)
class Fault:
    """A critical finding of a run that failed. ``part``: the class of what is suspected."""

    node: str
    part: str
    device: str
    run_id: str


@dataclasses.dataclass(frozen=True)
class Facts:
    """A period's facts, real or simulated nodes only. ``moves`` are in order of time.

    ``delivered``: {node: when it first entered production}, for those that did within the period.
    """

    since: datetime.datetime
    until: datetime.datetime
    nodes: Mapping[str, Node]
    moves: Sequence[Move]
    runs: Sequence[Run]
    faults: Sequence[Fault]
    delivered: Mapping[str, datetime.datetime]

    def hours_in(self, states: frozenset[str]) -> dict[str, float]:
        """{node: hours of the period that it spent in one of ``states``}, without nodes that spent none."""
        spent = dict.fromkeys(self.nodes, 0.0)
        first = {move.node: move for move in reversed(self.moves)}
        state = {name: first[name].before if name in first else node.state for name, node in self.nodes.items()}
        begun = {name: max(self.since, node.added_at) for name, node in self.nodes.items()}
        for move in self.moves:
            if move.node not in state:
                continue
            if state[move.node] in states:
                spent[move.node] += (move.at - begun[move.node]).total_seconds() / 3600
            state[move.node], begun[move.node] = move.after, max(move.at, begun[move.node])
        for name in self.nodes:
            if state[name] in states:
                spent[name] += max(0.0, (self.until - begun[name]).total_seconds() / 3600)
        return {name: hours for name, hours in spent.items() if hours > 0}


@dataclasses.dataclass(frozen=True)
class Section:
    """One section: a sentence, a table, and the command that lists what is behind it.

    ``bars``: for each row its share of the longest bar (0 to 1); empty: no bars.
    """

    title: str
    sentence: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    bars: tuple[float, ...] = ()
    command: str = ""
