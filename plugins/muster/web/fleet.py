"""The overview as values: what needs a person, counts, the map, the rows that the filters leave. Pure."""

from __future__ import annotations

import collections
import csv
import dataclasses
import datetime
import io
import urllib.parse
from collections.abc import Collection, Mapping, Sequence

from muster.model.figures import FleetRow
from muster.model.runs import Run
from muster.model.states import IN_FLIGHT, State
from muster.rules.transitions import INCONCLUSIVE_BUDGET
from muster_criteria.text import one_line
from muster_reports.model import RunReport, Series

PAGE = 100
"""Rows of a table's page."""
ATTENTION_MAX = 50
GROUPS: Mapping[str, tuple[State, ...]] = {
    "out": (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA),
    "test": (*sorted(IN_FLIGHT), State.REVALIDATION),
    "ready": (State.REGISTERED, State.QUALIFIED),
    "serving": (State.PRODUCTION,),
    "gone": (State.RETIRED,),
}
"""Groups of states that share a colour and a symbol, worst first."""
SYMBOL = {"out": "✕", "test": "◔", "ready": "○", "serving": "●", "gone": "–"}
GROUP_OF = {state: group for group, states in GROUPS.items() for state in states}
TODO = {
    State.QUARANTINE: "repair it, or waive its findings",
    State.TRIAGE: "find out why it gives no verdict",
    State.REPAIR: "test it again after the repair",
    State.RMA: "replace it when the part is there",
    State.REGISTERED: "test it with `muster qualify`: it is not in service until it passes",
}
"""States that a person ends, in the order of urgency; ``REGISTERED``: of a node tested before, as after a repair."""


@dataclasses.dataclass(frozen=True)
class Filters:
    """What the URL's query asks for; an empty field does not filter."""

    state: str = ""
    verdict: str = ""
    sku: str = ""
    rack: str = ""
    q: str = ""
    colour: str = ""
    """What the map shows: "" the states, else a metric as ``shading.key`` writes it."""
    page: int = 1

    def url(self, **changes: object) -> str:
        """The query string with ``changes``; the page starts over unless it is named."""
        chosen = dataclasses.asdict(self) | {"page": 1} | changes
        kept = {name: value for name, value in chosen.items() if value and (name, value) != ("page", 1)}
        return f"?{urllib.parse.urlencode(kept)}"

    @property
    def narrowed(self) -> bool:
        """Whether any filter is set."""
        return dataclasses.replace(self, page=1, colour="") != Filters()


@dataclasses.dataclass(frozen=True)
class Attention:
    """A node that waits for a person: since when, why, and the first thing to do."""

    node: str
    state: State
    since: datetime.datetime | None
    why: str
    todo: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """What runs have in common whose durations are compared."""

    sku: str
    level: str
    dag_id: str
    simulated: bool
    stages: tuple[str, ...]


def kind_of(run: Run) -> Kind:
    """The run's kind."""
    return Kind(run.sku, run.level, run.dag_id, run.simulated, run.required_stages)


@dataclasses.dataclass(frozen=True)
class Progress:
    """A run that is under way. ``left_s``: seconds that such runs usually still take; None if none is recorded."""

    run: Run
    state: State | None
    left_s: float | None


def chosen(rows: Sequence[FleetRow], filters: Filters, found: Collection[str]) -> list[FleetRow]:
    """The rows that ``filters`` leave. ``found``: nodes that the records find by the search text."""
    text = filters.q.strip().lower()
    return [
        row
        for row in rows
        if filters.state in ("", row.state, GROUP_OF[row.state])
        and filters.verdict in ("", str(row.verdict or "none"))
        and filters.sku in ("", row.sku)
        and filters.rack in ("", row.rack)
        and (not text or text in row.node.lower() or text in row.rack.lower() or row.node in found)
    ]


def attention(rows: Sequence[FleetRow]) -> list[Attention]:
    """The nodes that wait for a person: held verdicts first, then by ``TODO``, then those that serve
    untested; the longest first within each kind."""
    found = []
    for row in rows:
        if row.held_run:
            found.append(
                (0, Attention(row.node, row.state, row.ended_at, row.headline, "decide on the verdict that is held"))
            )
        elif row.state is State.PRODUCTION and row.inconclusive >= INCONCLUSIVE_BUDGET:
            todo = "find out why its tests give no verdict"
            found.append((1 + len(TODO), Attention(row.node, row.state, row.ended_at, row.headline, todo)))
        elif row.state in TODO and (row.state is not State.REGISTERED or (row.moved_for and row.verdict)):
            found.append((1 + list(TODO).index(row.state), _waiting(row)))
    found.sort(key=lambda each: (each[0], each[1].since is None, each[1].since, each[1].node))
    return [each for _, each in found]


def _waiting(row: FleetRow) -> Attention:
    by_hand = row.state is State.QUARANTINE and row.moved_for
    todo = "move it to triage, and look into the reason" if by_hand else TODO[row.state]
    if row.state is State.TRIAGE and row.moved_for:
        todo = "find the cause, then move it to repair, or back to registered"
    why = row.moved_for or row.headline or "no test has ended yet"
    return Attention(row.node, row.state, row.state_since, why, todo)


def counts(rows: Sequence[FleetRow]) -> list[tuple[str, State, int]]:
    """(group, state, nodes) for each state that has any, worst group first."""
    number = collections.Counter(row.state for row in rows)
    return [(group, state, number[state]) for group, states in GROUPS.items() for state in states if number[state]]


def verdict_counts(rows: Sequence[FleetRow]) -> list[tuple[str, int]]:
    """(verdict of the last run, nodes), most frequent first; "none" without a run."""
    return collections.Counter(str(row.verdict or "none") for row in rows).most_common()


def progress(
    runs: Sequence[Run],
    states: Mapping[str, State],
    typical: Mapping[Kind, float | None],
    now: datetime.datetime,
) -> list[Progress]:
    """Runs under way, the oldest first. ``typical``: the seconds that a run of each kind usually takes."""
    found = []
    for run in sorted(runs, key=lambda run: run.started_at):
        usual = typical.get(kind_of(run))
        left = None if usual is None else max(0.0, usual - (now - run.started_at).total_seconds())
        found.append(Progress(run, states.get(run.node), left))
    return found


def curves_of(report: RunReport) -> dict[str, list[Series]]:
    """The telemetry of a run, by "stage: series (unit)"."""
    found: dict[str, list[Series]] = collections.defaultdict(list)
    for stage in report.stages:
        for each in stage.telemetry:
            found[f"{stage.judgement.stage}: {each.series} ({each.unit})"].append(each)
    return found


CSV_COLUMNS = ("node", "state", "state_since", "sku", "rack", "simulated", "verdict", "ended_at", "headline")


def csv_of(rows: Sequence[FleetRow]) -> str:
    """The rows as CSV (RFC 4180), times in UTC. A cell that a spreadsheet would run as a formula begins with "'"."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        writer.writerow(_cell(getattr(row, column)) for column in CSV_COLUMNS)
    return text.getvalue()


def _cell(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime.datetime) else one_line(str("" if value is None else value))
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
