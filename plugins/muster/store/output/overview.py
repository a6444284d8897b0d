"""The fleet at a glance, one row per node, for pages and metrics, in a few statements whatever the fleet's size."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from muster.model.events import Event
from muster.model.figures import FleetRow
from muster.model.names import SPARE_LABEL
from muster.model.runs import Run, RunKey
from muster.model.states import IN_FLIGHT, State
from muster.store.database import access
from muster.store.database.decisions import QuestionRow
from muster.store.database.engine import reading
from muster.store.database.models import (
    EventRow,
    FindingRow,
    LeaseRow,
    MeasurementRow,
    NodeRow,
    PartRow,
    PlacementRow,
    RunRow,
    StageRow,
)
from muster.store.database.outgoing import PlaceRow
from muster.store.decisions.current import PRESENT, superseded
from muster.store.testing.runs import last_run_id
from muster_criteria.device_events.judge import CODED
from muster_criteria.model import Verdict


def version() -> str:
    """A text that changes whenever a node, a run, a verdict or a lease does; cheap to ask."""
    with reading() as session:
        row = session.execute(
            select(
                select(func.max(EventRow.id)).scalar_subquery(),
                select(func.max(StageRow.id)).scalar_subquery(),
                select(func.max(RunRow.id)).scalar_subquery(),
                select(func.count(RunRow.id)).where(RunRow.ended_at.is_(None)).scalar_subquery(),
                select(func.max(LeaseRow.id)).scalar_subquery(),
                select(func.count(NodeRow.name)).where(NodeRow.held_run != "").scalar_subquery(),
                select(func.max(QuestionRow.id)).scalar_subquery(),
                select(func.count(QuestionRow.id)).where(QuestionRow.answered_at.is_(None)).scalar_subquery(),
                select(func.count(PlaceRow.node)).where(PlaceRow.wanted != PlaceRow.done).scalar_subquery(),
            )
        ).one()
    return "-".join(str(number or 0) for number in row)


def rows(where: ColumnElement[bool] | None = None) -> list[FleetRow]:
    """All nodes by name, or those for which ``where`` holds."""
    moved = aliased(EventRow)
    last_move = select(func.max(moved.id)).where(moved.node == NodeRow.name, moved.from_state != moved.to_state)
    held = aliased(RunRow)
    of_held = held.node == NodeRow.name, held.dag_id + "/" + held.run_id == NodeRow.held_run
    held_for = select(held.verdict + ": " + held.headline + " It is held: " + held.why_held + ".").where(*of_held)
    query = (
        select(
            NodeRow.name, NodeRow.state, NodeRow.sku, NodeRow.rack, NodeRow.simulated, NodeRow.held_run,
            NodeRow.contact_at, RunRow.dag_id, RunRow.run_id, RunRow.verdict, RunRow.headline, RunRow.ended_at,
            func.coalesce(EventRow.at, NodeRow.added_at).label("state_since"),
            NodeRow.inconclusive, NodeRow.labels, EventRow.reason, EventRow.actor, EventRow.from_state,
            NodeRow.paused_until, NodeRow.shadow,
            case((NodeRow.held_run != "", held_for.correlate(NodeRow).scalar_subquery())).label("held_for"),
            and_(EventRow.evidence["run"].as_string().is_not(None), EventRow.evidence["person"].as_string().is_(None))
            .label("tested"),
        )
        .select_from(NodeRow)
        .outerjoin(RunRow, RunRow.id == last_run_id())
        .outerjoin(EventRow, EventRow.id == last_move.correlate(NodeRow).scalar_subquery())
        .order_by(NodeRow.name)
    )  # fmt: skip
    query = query if where is None else query.where(where)
    with reading() as session:
        return [_to_row(found) for found in session.execute(query)]


def _to_row(found: Any) -> FleetRow:
    """A row of the query. A reason that a test gave, or that is older than the last test, is not shown."""
    over = found.tested or (found.ended_at and found.state_since < found.ended_at)
    return FleetRow(
        node=found.name, state=State(found.state), sku=found.sku, rack=found.rack, simulated=found.simulated,
        held_run=RunKey.parse(found.held_run), contact_at=found.contact_at,
        dag_id=found.dag_id or "", run_id=found.run_id or "", verdict=Verdict(found.verdict) if found.verdict else None,
        headline=found.headline or "", ended_at=found.ended_at,
        state_since=found.state_since, inconclusive=found.inconclusive, paused_until=found.paused_until,
        pod=str(found.labels.get("pod", "")), slot=str(found.labels.get("slot", "")),
        spare=bool(found.labels.get(SPARE_LABEL)), came_from=State(found.from_state) if found.from_state else None,
        moved_for="" if over else found.reason or "", moved_by="" if over else found.actor or "",
        held_for=found.held_for or "", shadow=found.shadow,
    )  # fmt: skip


def moves_since(since: datetime.datetime, limit: int, nodes: Collection[str] | None = None) -> tuple[list[Event], int]:
    """The latest ``limit`` changes of state since then, latest first, and how many there are in all; only of ``nodes``
    if given. The start of a test does not count, nor does a move between two states in service.
    """
    query = (
        select(EventRow.id, EventRow.node)
        .where(EventRow.at >= since, EventRow.from_state != EventRow.to_state, EventRow.to_state.not_in(IN_FLIGHT))
        .where(~(access.COMES & access.GOES))
        .order_by(EventRow.at.desc(), EventRow.id.desc())
    )
    with reading() as session:
        ids = _ids(session, query, nodes)
        found = {row.id: row for row in session.scalars(select(EventRow).where(EventRow.id.in_(ids[:limit])))}
        return [access.to_event(found[number]) for number in ids[:limit]], len(ids)


def runs_under_way(
    limit: int, nodes: Collection[str] | None = None
) -> tuple[list[tuple[Run, datetime.datetime | None]], int]:
    """The oldest ``limit`` runs that have not ended, oldest first, each with the start of its first job (None while it
    waits for one), and how many there are in all; only of ``nodes`` if given.
    """
    query = select(RunRow.id, RunRow.node).where(RunRow.ended_at.is_(None)).order_by(RunRow.id)
    with reading() as session:
        ids = _ids(session, query, nodes)
        found = select(RunRow, access.first_job_at()).where(RunRow.id.in_(ids[:limit])).order_by(RunRow.id)
        return [(access.to_run(row), began) for row, began in session.execute(found)], len(ids)


def _ids(session: Session, query: Select[int, str], nodes: Collection[str] | None) -> list[int]:
    """The ids of an (id, node) query; only of ``nodes`` if given, which may be too many for an SQL list."""
    return [number for number, node in session.execute(query) if nodes is None or node in nodes]


_DRIVER_ERROR = re.compile(r"(?:(?P<kind>[a-z][a-z0-9-]{0,15}?)[ /]?)?(?P<code>\d{1,5})")
"""How a person may write a driver's error code in a search: "79", "xid 79", "xid79", "sxid/20034"."""


def nodes_with(text: str) -> set[str]:
    """Names of nodes with that serial, a current finding that contains the text, or a driver's error with that code.

    The beginning of a serial suffices; a number, or "xid 79", also finds drivers' errors of current verdicts. Current:
    of the present machine, and not superseded (``muster.rules.lifecycle.current``).
    """
    text = text.strip()
    if not text:
        return set()
    serials = (
        select(PlacementRow.node)
        .join(PartRow, PartRow.id == PlacementRow.part_id)
        .where(PlacementRow.until.is_(None), PartRow.serial.istartswith(text, autoescape=True))
    )
    findings = (
        select(FindingRow.node)
        .join(StageRow, StageRow.id == FindingRow.stage)
        .join(NodeRow, PRESENT)
        .where(
            StageRow.current,
            ~superseded(StageRow),
            or_(
                FindingRow.finding_id == text,
                *(
                    column.icontains(text, autoescape=True)
                    for column in (FindingRow.rule, FindingRow.metric, FindingRow.summary)
                ),
            ),
        )
    )
    queries = [serials, findings]
    if error := _DRIVER_ERROR.fullmatch(text.strip().lower()):
        labels = MeasurementRow.labels
        kind = [labels["kind"].as_string() == error["kind"]] if error["kind"] else []
        queries.append(
            select(StageRow.node)
            .join(NodeRow, PRESENT)
            .join(MeasurementRow, MeasurementRow.stage == StageRow.id)
            .where(StageRow.current, ~superseded(StageRow))
            .where(MeasurementRow.metric == CODED)
            .where(labels["code"].as_string() == error["code"], *kind)
        )
    with reading() as session:
        return {name for query in queries for name in session.scalars(query.distinct())}
