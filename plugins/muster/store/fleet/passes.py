"""Stages that ended well, to be held against the failures that followed."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, func, select

from muster.rules.escapes import Pass
from muster.store.database.engine import reading
from muster.store.database.models import NodeRow, RunRow, StageRow
from muster_criteria.model import Verdict

AT_ONCE = 500
"""Names of nodes in one query."""


def of_nodes(nodes: Collection[str], moment: datetime.datetime) -> list[Pass]:
    """Returns the stages of these nodes' present machines that ended with PASS or WARN since then, by time."""
    what = select(RunRow.node, StageRow.stage, RunRow.level, StageRow.recorded_at, RunRow.run_id)
    names, found = sorted(nodes), []
    with reading() as session:
        for at in range(0, len(names), AT_ONCE):
            query = _passes(what, moment).where(RunRow.node.in_(names[at : at + AT_ONCE]))
            found += [Pass(*row) for row in session.execute(query)]
    return sorted(found, key=lambda each: each.at)


def counts(moment: datetime.datetime, *, simulated: bool) -> dict[str, dict[tuple[str, str], int]]:
    """Returns by node how often each (level, stage) ended so since then, of real or of simulated nodes."""
    what = select(RunRow.node, RunRow.level, StageRow.stage, func.count(StageRow.id))
    query = _passes(what, moment).where(NodeRow.simulated == simulated)
    found: dict[str, dict[tuple[str, str], int]] = {}
    with reading() as session:
        for node, level, stage, count in session.execute(query.group_by(RunRow.node, RunRow.level, StageRow.stage)):
            found.setdefault(node, {})[level, stage] = count
    return found


def _passes(what: Select[*tuple[Any, ...]], moment: datetime.datetime) -> Select[*tuple[Any, ...]]:
    return (
        what.select_from(StageRow)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict.in_([str(Verdict.PASS), str(Verdict.WARN)]))
        .where(StageRow.recorded_at >= moment, StageRow.recorded_at >= NodeRow.machine_since)
    )
