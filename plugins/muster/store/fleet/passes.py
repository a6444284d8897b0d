"""Stages that ended with PASS or WARN, compared with the failures that followed."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, func, select

from muster.model.failures import Failure
from muster.rules.service import escapes as rules
from muster.rules.service.escapes import Escape, Pass
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.models import NodeRow, RunRow, StageRow
from muster_criteria.model import Verdict


def of_nodes(nodes: Collection[str], moment: datetime.datetime) -> list[Pass]:
    """Returns the stages of these nodes' present machines that ended with PASS or WARN since then, by time."""
    what = select(RunRow.node, StageRow.stage, RunRow.level, StageRow.recorded_at, RunRow.run_id)
    found: list[Pass] = []
    with reading() as session:
        for some in batches(sorted(nodes)):
            query = _passes(what, moment).where(RunRow.node.in_(some))
            found += [Pass(*row) for row in session.execute(query)]
    return sorted(found, key=lambda each: each.at)


def counts(
    since: datetime.datetime, until: datetime.datetime, *, simulated: bool
) -> dict[str, dict[tuple[str, str], int]]:
    """Returns {node: {(level, stage): how often it ended with PASS or WARN between these moments}}."""
    what = select(RunRow.node, RunRow.level, StageRow.stage, func.count(StageRow.id))
    query = _passes(what, since).where(StageRow.recorded_at < until, NodeRow.simulated == simulated)
    found: dict[str, dict[tuple[str, str], int]] = {}
    with reading() as session:
        for node, level, stage, count in session.execute(query.group_by(RunRow.node, RunRow.level, StageRow.stage)):
            found.setdefault(node, {})[level, stage] = count
    return found


def missed(failed: Sequence[Failure]) -> list[Escape]:
    """Returns the failures with the passes that had missed them."""
    from muster.rules.idle.worth import visible  # brings numpy, which a DAG file may not load

    if not failed:
        return []
    first = min(each.at for each in failed)
    return rules.escapes(failed, of_nodes({each.node for each in failed}, first - rules.WITHIN), visible())


def _passes(what: Select[*tuple[Any, ...]], moment: datetime.datetime) -> Select[*tuple[Any, ...]]:
    return (
        what.select_from(StageRow)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict.in_([Verdict.PASS, Verdict.WARN]))
        .where(StageRow.recorded_at >= moment, StageRow.machine == NodeRow.machine)
    )
