"""Racks whose NVLink domain is at fault: held for a person, once for all their nodes, until released."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from muster.errors import UnknownRack
from muster.model.racks import HeldRack
from muster.model.runs import RunKey
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.fabric import RackRow


def hold(
    key: RunKey, rack: str, codes: Sequence[str], why: str, nodes: Sequence[str], *, simulated: bool = False
) -> bool:
    """Hold a rack. Returns False, and changes nothing, if it is held already."""
    with writing() as session:
        try:
            with session.begin_nested():
                session.add(RackRow(
                    rack=rack, simulated=simulated, codes=list(codes), why=why, nodes=list(nodes), dag_id=key.dag_id,
                    run_id=key.run_id, since=access.now(),
                ))  # fmt: skip
        except IntegrityError:
            return False
        return True


def release(rack: str, person: str, reason: str) -> HeldRack:
    """End the hold, so that the rack's nodes are tested together again.

    Raises UnknownRack for one that is not held, NoPerson without a named person and a reason.
    """
    check_decision(person, reason, f"rack {rack} stays held")
    with writing() as session:
        rows = list(session.scalars(select(RackRow).where(RackRow.rack == rack, RackRow.released_at.is_(None))))
        if not rows:
            raise UnknownRack(f"rack {rack} is not held: `muster racks list` shows those that are")
        for row in rows:
            row.released_at, row.person, row.reason = access.now(), person, reason.strip()
        return _value(min(rows, key=lambda row: row.simulated))


def held(*, simulated: bool | None = None) -> list[HeldRack]:
    """The racks that are held, by name; ``simulated``: only those of simulated nodes, or of real ones."""
    query = select(RackRow).where(RackRow.released_at.is_(None)).order_by(RackRow.rack, RackRow.simulated)
    if simulated is not None:
        query = query.where(RackRow.simulated == simulated)
    with reading() as session:
        return [_value(row) for row in session.scalars(query)]


def _value(row: RackRow) -> HeldRack:
    found_by = RunKey(row.dag_id, row.run_id)
    return HeldRack(row.rack, tuple(row.codes), row.why, tuple(row.nodes), found_by, row.since, row.simulated)
