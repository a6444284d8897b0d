"""What a digest is made of, as the records give it, and a finished section. Values only."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.goodput import Inputs

SERVING = frozenset({"production", "revalidation"})
OUT = frozenset({"quarantine", "triage", "repair", "rma"})
"""States of a node in service, and of one that was withdrawn."""
UNKNOWN = "unknown"
PASSED = frozenset({"PASS", "WARN"})
CONCLUSIVE = PASSED | {"FAIL"}


@dataclasses.dataclass(frozen=True)
class Node:
    """An enrolled node. ``last_pass``: when its last conclusive run without a FAIL ended.

    ``versions``: the driver and firmware that its last intake recorded.
    """

    name: str
    sku: str
    rack: str
    state: str
    added_at: datetime.datetime
    last_pass: datetime.datetime | None
    vendor: str = UNKNOWN
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Move:
    """A change of state. ``failed``: for a test that failed; ``vendor``: of a move to RMA, the machine's."""

    node: str
    at: datetime.datetime
    before: str
    after: str
    reason: str
    failed: bool = False
    vendor: str = UNKNOWN

    @property
    def withdrawn(self) -> bool:
        """Whether the node left service for a fault."""
        return self.before in SERVING and self.after in OUT


@dataclasses.dataclass(frozen=True)
class Run:
    """An ended run of one node. ``stages``: those that failed; ``tested_s``: how long its stages took in the period."""

    node: str
    run_id: str
    verdict: str
    headline: str
    started_at: datetime.datetime
    ended_at: datetime.datetime
    level: str = ""
    stages: tuple[str, ...] = ()
    tested_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """A critical finding of a run that failed. ``part``: the class of what is suspected.

    ``vendor``, ``versions``: the machine's, its driver's and its firmware's when the run began.
    """

    node: str
    part: str
    device: str
    run_id: str
    vendor: str = UNKNOWN
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Pool:
    """Spares of one SKU at the end of the period: nodes in ``service``, ``qualified`` ones that wait, ``failures`` of a
    year, their mean repair, the spares that a job of all in service ``needed`` over ``days`` days, and the largest job
    that the qualified are enough for.
    """

    sku: str
    service: int
    qualified: int
    failures: int
    repair_days: float
    days: float
    needed: int
    covers: int


@dataclasses.dataclass(frozen=True)
class Jobs:
    """What the forecast of jobs on the ``service`` nodes of a SKU is made from."""

    sku: str
    service: int
    inputs: Inputs


@dataclasses.dataclass(frozen=True)
class Repair:
    """A node that left service for a fault in the year before the period's end. ``back``: None while it is out."""

    node: str
    group: str
    out: datetime.datetime
    back: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class Escapes:
    """Of ``passes`` of a stage at a level, how many a failure in service followed, by group of faults. ``rate``: for
    each 1,000 passes, with a 90 % interval.
    """

    level: str
    stage: str
    group: str
    escapes: int
    passes: int
    rate: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Chance:
    """The chance that a stage finds a fault of a group: of simulated faults (``prior``), and with what the fleet showed
    in a year, with a 90 % interval. ``found``: faults that it found; ``missed``: escapes.
    """

    group: str
    stage: str
    prior: float
    chance: float
    low: float
    high: float
    found: int
    missed: int


@dataclasses.dataclass(frozen=True)
class Facts:
    """A period's facts, real or simulated nodes only. ``moves`` are in order of time.

    ``delivered``: {node: when it first entered production}, for those that did within the period. ``scope``: the
    options of `muster digest` that choose these nodes.
    """

    since: datetime.datetime
    until: datetime.datetime
    nodes: Mapping[str, Node]
    moves: Sequence[Move]
    runs: Sequence[Run]
    faults: Sequence[Fault]
    delivered: Mapping[str, datetime.datetime]
    scope: str = ""
    pools: Sequence[Pool] = ()
    jobs: Sequence[Jobs] = ()
    repairs: Sequence[Repair] = ()
    escapes: Sequence[Escapes] = ()
    chances: Sequence[Chance] = ()

    def withdrawals(self) -> list[Move]:
        """The moves of these nodes out of service."""
        return [move for move in self.moves if move.withdrawn and move.node in self.nodes]

    def missed(self) -> list[tuple[Run, Run]]:
        """(passed, failed) for each FAIL of a node whose conclusive run before ended well within the period."""
        before: dict[str, Run] = {}
        found = []
        for run in sorted(self.runs, key=lambda run: run.ended_at):
            if run.node not in self.nodes or run.verdict not in CONCLUSIVE:
                continue
            last = before.get(run.node)
            if run.verdict == "FAIL" and last is not None and last.verdict in PASSED:
                found.append((last, run))
            before[run.node] = run
        return found

    def hours(self) -> float:
        """Node-hours of the period, without those of retired nodes."""
        states = {node.state for node in self.nodes.values()}
        states |= {state for move in self.moves for state in (move.before, move.after)}
        return sum(self.hours_in(frozenset(states - {"retired"})).values())

    def hours_in(
        self, states: frozenset[str], until: Mapping[str, datetime.datetime] | None = None
    ) -> dict[str, float]:
        """{node: hours of the period that it spent in one of ``states``}, without nodes that spent none.

        ``until``: where counting ends earlier for a node.
        """
        ends = until or {}
        spent = dict.fromkeys(self.nodes, 0.0)
        first = {move.node: move for move in reversed(self.moves)}
        state = {name: first[name].before if name in first else node.state for name, node in self.nodes.items()}
        begun = {name: max(self.since, node.added_at) for name, node in self.nodes.items()}
        for move in self.moves:
            if move.node not in state:
                continue
            if state[move.node] in states:
                end = min(move.at, ends.get(move.node, move.at))
                spent[move.node] += max(0.0, (end - begun[move.node]).total_seconds() / 3600)
            state[move.node], begun[move.node] = move.after, max(move.at, begun[move.node])
        for name in self.nodes:
            if state[name] in states:
                end = ends.get(name, self.until)
                spent[name] += max(0.0, (end - begun[name]).total_seconds() / 3600)
        return {name: hours for name, hours in spent.items() if hours > 0}


@dataclasses.dataclass(frozen=True)
class Section:
    """One section: a sentence, a table, and all that its numbers count.

    ``bars``: for each row its share of the longest bar (0 to 1); empty: no bars. ``behind``: each thing that was
    counted, in columns ``columns``; `muster digest --rows` lists them.
    """

    title: str
    sentence: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    bars: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    behind: tuple[tuple[str, ...], ...] = ()


def when(moment: datetime.datetime) -> str:
    """A time as digests show it."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"
