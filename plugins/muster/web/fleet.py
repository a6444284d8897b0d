"""The overview as values: what needs a person, counts, the map, the rows that the filters leave. Pure."""

from __future__ import annotations

import collections
import csv
import dataclasses
import datetime
import io
import re
import urllib.parse
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.model.attention import Attention
from muster.model.figures import FleetRow
from muster.model.runs import Run
from muster.model.states import IN_FLIGHT, State
from muster_criteria.text import one_line
from muster_reports.model import RunReport, Series

PAGE = 100
"""Rows of a table's page."""
NONE = "none"
PAGES = ("page", "waits")
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


@dataclasses.dataclass(frozen=True)
class Filters:
    """What the URL's query asks for; an empty field does not filter, and ``NONE`` leaves the nodes without a verdict, a
    rack or a pod.

    ``colour``: what the map shows: "" the states, else a metric as ``keys.address`` writes it. ``page``, ``waits``: the
    page of the table of nodes, and of the list of those that do not serve.
    """

    state: str = ""
    verdict: str = ""
    sku: str = ""
    rack: str = ""
    pod: str = ""
    q: str = ""
    colour: str = ""
    page: int = 1
    waits: int = 1

    def url(self, **changes: object) -> str:
        """The query string with ``changes``; all pages start over if another filter is among them."""
        over = {} if changes.keys() <= set(PAGES) else dict.fromkeys(PAGES, 1)
        chosen = dataclasses.asdict(self) | over | changes
        kept = {name: value for name, value in chosen.items() if value and not (name in PAGES and value == 1)}
        return f"?{urllib.parse.urlencode(kept)}"

    def within(self, rows: int, waiting: int) -> Filters:
        """The same with the last page of each list in place of one beyond it."""
        page, waits = (min(max(1, at), max(1, -(-of // PAGE))) for at, of in ((self.page, rows), (self.waits, waiting)))
        return dataclasses.replace(self, page=page, waits=waits)

    @property
    def narrowed(self) -> bool:
        """Whether any filter is set."""
        return dataclasses.replace(self, page=1, waits=1, colour="") != Filters()


@dataclasses.dataclass(frozen=True)
class Progress:
    """A run that is under way. ``left_s``: seconds that such runs usually still take; None if none is recorded, or its
    first job has not begun.
    """

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
        and (not filters.verdict or (filters.verdict == str(row.verdict or NONE) and row.state is not State.RETIRED))
        and filters.sku in ("", row.sku)
        and filters.rack in ("", row.rack or NONE)
        and filters.pod in ("", row.pod or NONE)
        and (not text or text in row.node.lower() or text in row.rack.lower() or row.node in found)
    ]


def by_muster(found: Iterable[Attention]) -> list[tuple[str, int]]:
    """(cause, nodes) of what Muster itself ends, most frequent first."""
    return collections.Counter(str(each.cause) for each in found if not each.listed).most_common()


def counts(rows: Sequence[FleetRow]) -> list[tuple[str, State, int, int]]:
    """(group, state, real nodes, simulated ones) for each state that has any, worst group first."""
    number = collections.Counter((row.state, row.simulated) for row in rows)
    each = ((group, state, number[state, False], number[state, True]) for state, group in GROUP_OF.items())
    return [one for one in each if any(one[2:])]


def not_serving(rows: Sequence[FleetRow], found: Iterable[Attention]) -> list[tuple[int, int, bool]]:
    """(nodes that do not serve, of how many that are not retired, whether simulated), of each kind that has any."""
    present = collections.Counter(row.simulated for row in rows if row.state is not State.RETIRED)
    away = {(each.node, each.simulated) for each in found if not each.serving and each.state is not State.RETIRED}
    out = collections.Counter(simulated for _, simulated in away)
    return [(out[kind], present[kind], kind) for kind in (False, True) if out[kind]]


def verdict_counts(rows: Sequence[FleetRow]) -> list[tuple[str, int, int]]:
    """(verdict of the last run, real nodes, simulated ones), most frequent first; "none" without a run. No verdict says
    anything of a node that has left the fleet.
    """
    present = [row for row in rows if row.state is not State.RETIRED]
    number = collections.Counter((str(row.verdict or NONE), row.simulated) for row in present)
    most = collections.Counter(str(row.verdict or NONE) for row in present).most_common()
    return [(verdict, number[verdict, False], number[verdict, True]) for verdict, _ in most]


def progress(
    runs: Sequence[tuple[Run, datetime.datetime | None]],
    states: Mapping[str, State],
    usual_s: Sequence[float | None],
    now: datetime.datetime,
) -> list[Progress]:
    """Runs under way, each with the begin of its first job, the oldest first. ``usual_s``: the seconds that such runs
    usually take from there on, for each of them.
    """
    found = []
    for (run, began), usual in sorted(zip(runs, usual_s, strict=True), key=lambda each: each[0][0].started_at):
        left = None if usual is None or began is None else max(0.0, usual - (now - began).total_seconds())
        found.append(Progress(run, states.get(run.node), left))
    return found


def curves_of(report: RunReport) -> dict[str, list[Series]]:
    """The telemetry of a run, by "stage: series (unit)"."""
    found: dict[str, list[Series]] = collections.defaultdict(list)
    for stage in report.stages:
        for each in stage.telemetry:
            found[f"{stage.judgement.stage}: {each.series} ({each.unit})"].append(each)
    return found


CSV_COLUMNS = ("node", "state", "state_since", "sku", "rack", "simulated", "verdict", "ended_at", "latest")


def csv_of(rows: Sequence[FleetRow]) -> str:
    """The rows as CSV (RFC 4180), times in UTC. A cell that a spreadsheet would run as a formula begins with "'"."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        writer.writerow(_cell(getattr(row, column)) for column in CSV_COLUMNS)
    return text.getvalue()


_FORMULA = re.compile(r"(^|[;\t,])\s*[=+\-@]")


def _cell(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime.datetime) else one_line(str("" if value is None else value))
    # Some spreadsheets take ";" and tabs for the end of a cell, too, whatever the quotes say.
    return f"'{text}" if _FORMULA.search(text) else text
