"""Recorded measurements as readings (``fleet.series.readings`` of the criteria), of which peers and histories are made.

Only stages that ended conclusively and without FAIL count. Values measured at another level, with other parameters of
the probe, or after other work and so at another temperature, are another quantity; real and simulated nodes are never
mixed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, Select, Text, cast, func, select
from sqlalchemy.orm import Session

from muster.model.states import State
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.models import FindingRow, MeasurementRow, NodeRow, PlacementRow, RunRow, StageRow
from muster.store.decisions.current import current_verdicts
from muster.store.fleet import revisions
from muster.store.fleet.suspects import nodes_with_suspects
from muster_criteria.fleet.budget import OWN_PAST
from muster_criteria.model import Action, Severity

if TYPE_CHECKING:
    import pandas as pd

NOT_PEERS = frozenset({State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA, State.RETIRED})
"""Nodes in these states are no peers."""

ZONE = "cooling_zone"
"""A node's label: nodes with the same value share cooling air. Nodes without it share one zone."""

VISITS = 5
"""Number of each node's latest visits in peer statistics. The last visit gives the usual values; all visits show how
far a device differs from its own past, which takes three past visits and two later readings."""


def fleet_readings(
    sku: str, level: str, metrics: Iterable[str], work: Mapping[str, str], *, simulated: bool, visits: int = VISITS
) -> pd.DataFrame:
    """The readings of these metrics from the latest ``visits`` of every node of that SKU at that level.

    ``work``: what the probes have to do (``work.work_of``); readings with other parameters are left out.
    """
    fleet = (NodeRow.sku == sku, NodeRow.simulated == simulated)
    with reading() as session:
        return _readings(session, _visits(level, visits, *fleet), tuple(metrics), level, work)


def node_readings(
    node: str,
    level: str,
    metrics: Iterable[str],
    work: Mapping[str, str],
    *,
    run_id: str,
    visits: int,
    before: datetime.datetime | None = None,
) -> pd.DataFrame:
    """The readings of the node's own latest ``visits`` at that level, without run ``run_id``, up to ``before`` (now).

    ``work``: as in ``fleet_readings``. Parts are followed by their serials: readings of another part in the same slot
    are left out. Raises UnknownNode.
    """
    with reading() as session:
        access.node_row(session, node)
        query = _visits(level, visits, NodeRow.name == node, RunRow.run_id != run_id, before=before)
        return _readings(session, query, tuple(metrics), level, work, before=before)


def excluded_from_peers(sku: str, *, simulated: bool) -> frozenset[str]:
    """Nodes of that SKU that do not count as peers.

    They are out of service, have an open critical finding (waived or not) or a part that once corrupted data, or differ
    from their own past without a second reading that clears them.
    """
    with reading() as session:
        fleet = (NodeRow.sku == sku, NodeRow.simulated == simulated)
        out = select(NodeRow.name).where(*fleet, NodeRow.state.in_(NOT_PEERS))
        candidates = select(NodeRow).where(*fleet).where(NodeRow.name.in_(select(FindingRow.node).where(_suspicious())))
        names = set(session.scalars(out))
        names |= {row.name for row in session.scalars(candidates) if _has_suspicious_finding(session, row)}
        names |= set(
            session.scalars(select(NodeRow.name).where(*fleet, NodeRow.name.in_(nodes_with_suspects(session))))
        )
        return frozenset(names)


def _has_suspicious_finding(session: Session, node: NodeRow) -> bool:
    stages = [stage for stage, _ in current_verdicts(session, node)]
    return session.scalar(select(FindingRow.id).where(FindingRow.stage.in_(stages), _suspicious()).limit(1)) is not None


def _suspicious() -> ColumnElement[bool]:
    suspect = FindingRow.rule.in_(OWN_PAST) & (FindingRow.action == Action.RETEST)
    return (FindingRow.severity == Severity.CRITICAL) | suspect


def _visits(
    level: str, visits: int, *of: ColumnElement[bool], before: datetime.datetime | None = None
) -> Select[tuple[Any, ...]]:
    """The latest sound stages of each kind on each machine, with where and when they were measured.

    ``of``: conditions on nodes and runs. ``before``: as recorded then, without later repeats of a stage.
    """
    if before is None:
        known: ColumnElement[bool] = StageRow.current.is_(True)
    else:
        latest = (
            select(func.max(StageRow.id))
            .join(RunRow, StageRow.run == RunRow.id)
            .join(NodeRow, NodeRow.name == RunRow.node)
        )
        latest = latest.where(StageRow.recorded_at < before, *of).group_by(StageRow.run, StageRow.stage)
        known = StageRow.id.in_(latest)
    latest_first = func.row_number().over(
        partition_by=(RunRow.node, StageRow.stage), order_by=(StageRow.origin.desc(), StageRow.id.desc())
    )
    # Rank only the ids: otherwise kilobytes of each visit would be sorted with them.
    ranked = (
        select(StageRow.id, latest_first.label("place"))
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(known, StageRow.level == level, StageRow.verdict.in_(access.SOUND), *of)
        .where(RunRow.machine == NodeRow.machine, RunRow.simulated == NodeRow.simulated)
        .subquery()
    )
    return (
        select(
            StageRow.id, StageRow.origin, StageRow.stage, StageRow.recorded_at, StageRow.sku.label("judged_as"),
            StageRow.sku_version, RunRow.dag_id, RunRow.run_id, StageRow.environment, NodeRow.name, NodeRow.sku,
            NodeRow.labels,
        )
        .join(ranked, ranked.c.id == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(ranked.c.place <= visits)
        .order_by(StageRow.id)
    )  # fmt: skip


def _readings(
    session: Session,
    stages: Select[Any],
    metrics: Sequence[str],
    level: str,
    work: Mapping[str, str],
    *,
    before: datetime.datetime | None = None,
) -> pd.DataFrame:
    from muster_criteria.fleet.series.readings import together

    listed = list(session.execute(stages))
    then = revisions.works(session, {(stage.judged_as, stage.sku_version) for stage in listed}, level)
    # The work of a revision that is not kept is unknown.
    unlike = {
        each: [key.split("/") for key in did.keys() | work.keys() if did.get(key) != work.get(key)]
        for each, did in then.items()
    }
    listed = [stage for stage in listed if (stage.judged_as, stage.sku_version) in unlike]
    since = _parts_since(session, sorted({stage.name for stage in listed}), before)
    return together(_batch(session, batch, metrics, since, unlike) for batch in batches(listed))


def _batch(
    session: Session,
    stages: Sequence[Row[Any]],
    metrics: Sequence[str],
    since: dict[tuple[str, str], int],
    unlike: Mapping[tuple[str, str], list[list[str]]],
) -> pd.DataFrame:
    import pandas as pd

    from muster_criteria.fleet.series.readings import as_readings, day_of, group_of
    from muster_criteria.fleet.single import FLEET_PROBE
    from muster_criteria.labels import labels_text

    origin = {
        stage.id: (
            stage.name, group_of(stage.sku, stage.environment, str(stage.labels.get(ZONE, ""))), stage.sku,
            day_of(stage.recorded_at), f"{stage.dag_id}/{stage.run_id}/{stage.stage}", stage.origin,
            {probe for of, probe in unlike[stage.judged_as, stage.sku_version] if of == stage.stage},
        )
        for stage in stages
    }  # fmt: skip
    figures = select(
        MeasurementRow.stage, MeasurementRow.probe, MeasurementRow.device, MeasurementRow.metric, MeasurementRow.unit,
        MeasurementRow.value,
        cast(MeasurementRow.labels, Text).label("labels"),
    ).where(
        MeasurementRow.stage.in_(list(origin)), MeasurementRow.metric.in_(metrics), MeasurementRow.value.is_not(None),
        MeasurementRow.probe != FLEET_PROBE,  # the judge's own figures are no measurements
    ).order_by(MeasurementRow.id)  # fmt: skip
    named: dict[str, str] = {}

    def rows() -> Iterator[tuple[object, ...]]:
        for stage, probe, device, metric, unit, value, labels in session.execute(figures):
            node, group, sku, day, run, tested, other = origin[stage]
            if tested <= since.get((node, device), 0) or probe in other:
                continue  # another part sat in this slot then, or the probe did something else
            if labels not in named:
                named[labels] = labels_text(json.loads(labels))
            yield node, device, group, sku, metric, named[labels], unit, value, day, run

    columns = ["node", "device", "group", "sku", "metric", "labels", "unit", "value", "at", "run"]
    return as_readings(pd.DataFrame(list(rows()), columns=columns))


def _parts_since(
    session: Session, nodes: Sequence[str], before: datetime.datetime | None
) -> dict[tuple[str, str], int]:
    """{(node, slot): the node's last stage before it got the part that sat there at ``before`` (now)}."""
    query = select(PlacementRow.node, PlacementRow.slot, PlacementRow.after)
    if before is None:
        query = query.where(PlacementRow.until.is_(None))
    else:
        query = query.where(PlacementRow.since < before)  # the latest of a slot wins below
    found: dict[tuple[str, str], int] = {}
    for some in batches(nodes):
        placed = query.where(PlacementRow.node.in_(some)).order_by(PlacementRow.id)
        found |= {(row.node, row.slot): row.after for row in session.execute(placed)}
    return found
