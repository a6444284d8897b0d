"""What a digest is made of, as the records give it, and a finished section. Values only."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.goodput import Inputs

SERVING = frozenset({"production", "revalidation"})
OUT = frozenset({"quarantine", "triage", "repair", "rma"})
"""States of a node in service, and of one that was withdrawn."""
UNKNOWN = "unknown"
RECORD_REPAIR_DAYS, RECORD_WEIGHT = 5.5, 5
"""Mean repair of a public record (``service.spares.RECORD``), and how many failures it adds to the fleet's own.
This project's choice, since a small fleet sees few failures."""
WITH_RECORD = f"with the public record's {RECORD_REPAIR_DAYS:g} days as {RECORD_WEIGHT} repairs"
PASSED = frozenset({"PASS", "WARN"})
CONCLUSIVE = PASSED | {"FAIL"}


@dataclasses.dataclass(frozen=True)
class Node:
    """An enrolled node, ``state`` as at the end of the period. ``last_pass``: the oldest of the
    last passes of its machine's stages, warnings included; None if some stage never passed.

    ``versions``: the driver and firmware that it reported last.
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
    """A change of state. ``failed``: whether a failed test is the reason. ``vendor`` and ``part``, for a move to RMA:
    the machine's vendor, and the class of the part that was suspected last.
    """

    node: str
    at: datetime.datetime
    before: str
    after: str
    reason: str
    failed: bool = False
    vendor: str = UNKNOWN
    part: str = UNKNOWN

    @property
    def withdrawn(self) -> bool:
        """Whether the node left service for a fault."""
        return self.before in SERVING and self.after in OUT


@dataclasses.dataclass(frozen=True)
class Run:
    """An ended run of one node. ``machine``: the number of the machine that has the node's name."""

    node: str
    run_id: str
    verdict: str
    headline: str
    started_at: datetime.datetime
    ended_at: datetime.datetime
    machine: int = 0


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
    """Spares of one SKU at the end of the period. ``service``: nodes in service; ``qualified``: spares; ``failures``:
    of a year; ``repair_days``: mean repair, ``WITH_RECORD``; ``needed``: spares for a job of ``days`` days on all nodes
    in service; ``covers``: nodes of the largest job for which the spares are enough.
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
    """A node that left service for a fault in the year before the period's end. ``back``: None while it is out.

    ``gone``: when it was retired instead.
    """

    node: str
    group: str
    out: datetime.datetime
    back: datetime.datetime | None
    gone: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Offender:
    """A node that failed in service ``times`` times in a year with the same parts, last at ``last`` (None: never).
    ``groups``: its groups of faults, in words; ``score``: its failures, each weighing less by the month; ``mark``: its
    mark as a lemon, if any.
    """

    node: str
    times: int
    last: datetime.datetime | None
    groups: str
    score: float
    mark: str = ""


@dataclasses.dataclass(frozen=True)
class Escapes:
    """How many of the ``passes`` of a stage at a level were followed by a failure in service, for a group of faults.
    ``rate``: per 1,000 passes; ``low`` and ``high``: its 90 % interval.
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
class Facts:
    """A period's facts, real or simulated nodes only. ``moves`` are in order of time.

    ``runs``: also the last conclusive one before the period of each node that failed in it.

    ``delivered``: {node: when it first entered production}, for those that did within the period. ``served``: the same
    of all that ever did, adopted ones included. ``escaped``: each failure that ``escapes`` count, as columns.
    ``scope``: the options of `muster digest` that choose these nodes.
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
    escaped: Sequence[tuple[str, ...]] = ()
    served: Mapping[str, datetime.datetime] = dataclasses.field(default_factory=dict)
    offenders: Sequence[Offender] = ()

    @functools.cached_property
    def present(self) -> dict[str, Node]:
        """The nodes that are not retired, by name."""
        return {name: node for name, node in self.nodes.items() if node.state != "retired"}

    def withdrawals(self) -> list[Move]:
        """The moves of these nodes out of service."""
        return [move for move in self.moves if move.withdrawn and move.node in self.nodes]

    def missed(self) -> list[tuple[Run, Run]]:
        """(passed, failed) for each FAIL of the period whose machine's conclusive run before ended well."""
        before: dict[str, Run] = {}
        found = []
        for run in sorted(self.runs, key=lambda run: run.ended_at):
            if run.node not in self.nodes or run.verdict not in CONCLUSIVE:
                continue
            last = before.get(run.node)
            if run.verdict == "FAIL" and last and last.verdict in PASSED and last.machine == run.machine:
                found.append((last, run))
            before[run.node] = run
        return found

    def first_failures(self) -> dict[str, datetime.datetime]:
        """{node: its first withdrawal for a failed test}."""
        return {move.node: move.at for move in reversed(self.withdrawals()) if move.failed}

    def hours_in(
        self, states: frozenset[str], until: Mapping[str, datetime.datetime] | None = None
    ) -> dict[str, float]:
        """{node: hours of the period that it spent in one of ``states``}, without nodes that spent none.

        ``until``: where counting ends earlier for a node.
        """
        ends = until or {}
        spent = dict.fromkeys(self.nodes, 0.0)
        for name, state, begun, over in self._spells:
            if state in states:
                spent[name] += max(0.0, (min(over, ends.get(name, over)) - begun).total_seconds() / 3600)
        return {name: hours for name, hours in spent.items() if hours > 0}

    def sku_hours(self, since: Mapping[str, datetime.datetime] | None = None) -> dict[str, dict[str, float]]:
        """{SKU: {state: node-hours of the period}}; with ``since``, only of its nodes, from then on."""
        spent: dict[str, dict[str, float]] = {}
        for name, state, begun, over in self._spells:
            if since is None or name in since:
                begin = begun if since is None else max(begun, since[name])
                of = spent.setdefault(self.nodes[name].sku, {})
                of[state] = of.get(state, 0.0) + max(0.0, (over - begin).total_seconds() / 3600)
        return spent

    @functools.cached_property
    def _spells(self) -> list[tuple[str, str, datetime.datetime, datetime.datetime]]:
        """(node, state, from, to) of all that these nodes went through in the period."""
        first = {move.node: move for move in reversed(self.moves)}
        state = {name: first[name].before if name in first else node.state for name, node in self.nodes.items()}
        begun = {name: max(self.since, node.added_at) for name, node in self.nodes.items()}
        found = []
        for move in self.moves:
            if move.node in state:
                found.append((move.node, state[move.node], begun[move.node], move.at))
                state[move.node], begun[move.node] = move.after, max(move.at, begun[move.node])
        return found + [(name, state[name], begun[name], self.until) for name in self.nodes]


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
