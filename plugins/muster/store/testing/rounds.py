"""The rounds of pairs of a block: as planned, what each node returned, and the parts that were found."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from pydantic import TypeAdapter
from sqlalchemy import ScalarSelect, Select, delete, func, select

from muster.model.rounds import Outcome, PlannedRound, Side
from muster.model.runs import RunKey
from muster.model.states import BROKEN
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.fabric import RoundRow, RoundSideRow
from muster.store.database.models import EventRow, LeaseRow, RunRow
from muster_criteria.cluster.fabric.judging.found import Fabric, FaultyPart
from muster_criteria.measured import Measured

_PARTS = TypeAdapter(tuple[FaultyPart, ...])


def plan(key: RunKey, planned: PlannedRound) -> None:
    """Store a round before it runs, unless one with this number is stored already. Raises UnknownRun."""
    with writing() as session:
        run = access.first_of_run(session, key)
        if session.scalar(select(RoundRow).where(RoundRow.run == run.id, RoundRow.number == planned.number)) is None:
            session.add(RoundRow(
                run=run.id, number=planned.number, kind=planned.kind, pairs=[list(pair) for pair in planned.pairs],
                variants=planned.variants, reference_pairs=planned.references, planned_at=access.now(),
            ))  # fmt: skip


def planned(key: RunKey) -> list[PlannedRound]:
    """The rounds of a block so far, in order. Raises UnknownRun."""
    with reading() as session:
        first = access.first_of_run(session, key)
        query = select(RoundRow).where(RoundRow.run == first.id).order_by(RoundRow.number)
        return [
            PlannedRound(row.number, row.kind, tuple((a, b) for a, b in row.pairs), row.variants, row.reference_pairs)
            for row in session.scalars(query)
        ]


def record(key: RunKey, number: int, side: Side) -> None:
    """Store what one node returned. Measured figures are never replaced, and a side with evidence is not replaced by a
    fault of the controller. Evidence stays when the pair is measured again. Raises UnknownRun.
    """
    with writing() as session:
        run = access.run_row(session, key, side.node)
        row = session.scalar(select(RoundSideRow).where(RoundSideRow.run == run.id, RoundSideRow.number == number))
        if row is None:
            row = RoundSideRow(run=run.id, number=number, evidence=[])
            session.add(row)
        elif row.outcome == Outcome.MEASURED or (row.evidence and side.outcome is Outcome.UNMEASURED):
            return
        row.outcome, row.why = side.outcome, side.why
        row.figures = [each.model_dump(mode="json") for each in side.figures]
        row.evidence = [*row.evidence, *(new for each in side.evidence if (new := list(each)) not in row.evidence)]


def sides(key: RunKey, number: int | None = None) -> dict[int, dict[str, Side]]:
    """{round: {node: what it returned}}; only of round ``number`` if it is given."""
    query = select(RoundSideRow, RunRow.node).join(RunRow, RoundSideRow.run == RunRow.id).order_by(RoundSideRow.id)
    query = query.where(*access.of_run(key))
    if number is not None:
        query = query.where(RoundSideRow.number == number)
    found: dict[int, dict[str, Side]] = {}
    with reading() as session:
        for row, node in session.execute(query):
            figures = tuple(Measured.model_validate(each) for each in row.figures)
            evidence = tuple((kind, sentence, job) for kind, sentence, job in row.evidence)
            found.setdefault(row.number, {})[node] = Side(node, Outcome(row.outcome), row.why, figures, evidence)
    return found


def broken_since(key: RunKey) -> list[str]:
    """The run's nodes that went into quarantine, triage, repair or RMA since its first round was planned."""
    mine = EventRow.node.in_(_nodes_of(key))
    query = select(EventRow.node).where(mine, EventRow.at >= _first_planned(key), EventRow.to_state.in_(BROKEN))
    with reading() as session:
        return sorted(set(session.scalars(query)))


def held_since(key: RunKey) -> list[str]:
    """The run's nodes that another run has leased since the run's first stored round was planned."""
    others = (LeaseRow.dag_id != key.dag_id) | (LeaseRow.run_id != key.run_id)
    mine = LeaseRow.node.in_(_nodes_of(key))
    query = select(LeaseRow.node).where(mine, LeaseRow.acquired_at >= _first_planned(key), others)
    with reading() as session:
        return sorted(set(session.scalars(query)))


def _nodes_of(key: RunKey) -> Select[str]:
    return select(RunRow.node).where(*access.of_run(key))


def _first_planned(key: RunKey) -> ScalarSelect[datetime.datetime]:
    first = select(func.min(RoundRow.planned_at)).join(RunRow, RoundRow.run == RunRow.id)
    return first.where(*access.of_run(key)).scalar_subquery()


def forget(key: RunKey) -> None:
    """Delete the rounds of a run, because they no longer say anything about its nodes."""
    runs = select(RunRow.id).where(*access.of_run(key))
    with writing() as session:
        for table in (RoundSideRow, RoundRow):
            session.execute(delete(table).where(table.run.in_(runs)))


def reopen(key: RunKey, node: str = "") -> None:
    """Forget that nodes, or only ``node``, could not be measured, so that they are in the next round again.

    In the latest round both sides of such a pair are deleted, since one alone cannot be measured. Evidence stays.
    """
    made = planned(key)
    known = sides(key)
    with writing() as session:
        for each in made:
            found = known.get(each.number, {})
            out = {name for name, side in found.items() if side.outcome is Outcome.UNMEASURED and node in ("", name)}
            if each is made[-1]:
                out |= {name for pair in each.pairs if out & set(pair) for name in pair}
            out -= {name for name, side in found.items() if side.evidence}
            runs = select(RunRow.id).where(*access.of_run(key), RunRow.node.in_(out))
            session.execute(delete(RoundSideRow).where(RoundSideRow.run.in_(runs), RoundSideRow.number == each.number))


def keep_parts(key: RunKey, found: Iterable[FaultyPart]) -> None:
    """Keep with the block the parts that its rounds found, in place of earlier ones. Raises UnknownRun."""
    with writing() as session:
        run = access.first_of_run(session, key)
        run.block = {**run.block, "fabric_parts": _PARTS.dump_python(tuple(found), mode="json")}


def parts(key: RunKey) -> list[FaultyPart]:
    """The parts that were found. Raises UnknownRun."""
    with reading() as session:
        return list(_PARTS.validate_python(access.first_of_run(session, key).block.get("fabric_parts", ())))


def fabric(key: RunKey) -> Fabric | None:
    """What a report shows of the run's rounds; None for a run without any."""
    with reading() as session:
        block = access.block_of(session, key)
    if "topology" not in block or not (made := planned(key)):
        return None
    # Imported here since it brings numpy, which DAG files that import this module must not load.
    from muster_criteria.cluster.fabric.judging.matrix import matrices
    from muster_criteria.cluster.fabric.topology import from_records

    known = sides(key)
    returned = [
        {
            name: side.figures if side.outcome is Outcome.MEASURED else None
            for name, side in known.get(each.number, {}).items()
        }
        for each in made
    ]
    topology = from_records(block["topology"])
    return Fabric(len(made), tuple(parts(key)), tuple(block.get("fabric_notes", ())), matrices(topology, returned))
