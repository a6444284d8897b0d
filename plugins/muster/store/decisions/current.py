"""Which verdicts on a node's machine are current."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, case, false, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, load_only

from muster.model.runs import StageVerdict
from muster.model.stages import LEVELS
from muster.rules.lifecycle.current import INCONCLUSIVE, current_of, thoroughness
from muster.store.database import access
from muster.store.database.models import NodeRow, RunRow, StageRow
from muster_criteria.model import Verdict

PRESENT = (StageRow.node == NodeRow.name) & (StageRow.machine == NodeRow.machine)
"""Joins stages to nodes, for their present machines only."""

Unjudged = tuple[str, str, str]
"""(stage, what was not judged, device); a PROVISIONAL stage also has (stage, "", "")."""


def unjudged(row: StageRow) -> set[Unjudged]:
    """What the stage left unjudged."""
    gaps = {(row.stage, gap["what"], gap["device"]) for gap in row.unjudged}
    return gaps | ({(row.stage, "", "")} if row.verdict == Verdict.PROVISIONAL else set())


def current_verdicts(session: Session, node: NodeRow) -> list[tuple[int, StageVerdict]]:
    """(id of the stage's row, verdict) of the current ones, oldest first.

    Reads only verdicts that no later conclusive verdict of their stage supersedes, through an index, so that the cost
    does not grow with the node's age. A pass by a former SKU's limits supersedes earlier verdicts but is not returned;
    a FAIL by them stays until its stage is measured again.
    """
    from_, now = _standing_from(session, node), of_machine(node)
    query = select(StageRow, RunRow).join(RunRow, StageRow.run == RunRow.id).where(*now, StageRow.current)
    standing = [
        and_(*now, StageRow.stage == stage, StageRow.level == level, StageRow.id >= first)
        for (stage, level), first in from_.items()
    ]
    query = query.where(or_(false(), *standing)).order_by(StageRow.id)
    columns = load_only(*(getattr(StageRow, name) for name in access.VERDICT_COLUMNS))
    query = query.options(columns, load_only(RunRow.dag_id, RunRow.run_id))
    ids = {access.to_verdict(stage, run): stage.id for stage, run in session.execute(query)}
    current = [(ids[verdict], verdict) for verdict in current_of(ids)]
    return [(id_, each) for id_, each in current if id_ > node.sku_after or each.verdict is Verdict.FAIL]


def superseded(mine: type[StageRow]) -> ColumnElement[bool]:
    """Whether a later conclusive verdict on the same machine and stage replaced this one (``lifecycle.current``)."""
    later, ranks = aliased(StageRow), {level: thoroughness(level) for level in LEVELS}

    def rank(level: InstrumentedAttribute[str]) -> ColumnElement[int]:
        return case(ranks, value=level, else_=-1)

    return (
        select(later.id)
        .where(later.node == mine.node, later.machine == mine.machine, later.stage == mine.stage, later.current)
        .where(later.id > mine.id, later.verdict.not_in(INCONCLUSIVE), rank(later.level) >= rank(mine.level))
        .correlate(mine)
        .exists()
    )


def of_machine(node: NodeRow) -> tuple[ColumnElement[bool], ...]:
    """Conditions that select the stages of the node's present machine."""
    return StageRow.node == node.name, StageRow.machine == node.machine


def _standing_from(session: Session, node: NodeRow) -> dict[tuple[str, str], int]:
    """{(stage, level): id of the first verdict that no later one supersedes}, by ``lifecycle.current``."""
    conclusive = func.max(StageRow.id).filter(StageRow.verdict.not_in(INCONCLUSIVE))
    query = select(StageRow.stage, StageRow.level, conclusive).where(*of_machine(node), StageRow.current)
    last = {(stage, level): id_ or 0 for stage, level, id_ in session.execute(query.group_by("stage", "level"))}
    return {
        (stage, level): max(
            id_ for (other, its), id_ in last.items() if other == stage and thoroughness(its) >= thoroughness(level)
        )
        for stage, level in last
    }
